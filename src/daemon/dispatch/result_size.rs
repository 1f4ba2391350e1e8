//! What of a result goes into a report, which has to fit into a frame, and what is uploaded beside the link. Pure.

use serde_json::json;

use crate::domain::{PermissionDenial, TaskResult, limits};

/// A text in a report at most, bytes as JSON.
const TEXT: usize = 512 << 10;
/// The beginning of a text that is uploaded, bytes as JSON.
const HEAD: usize = 128 << 10;
/// Refused tool uses in a report at most, bytes as JSON: their inputs may hold whole files.
const DENIALS: usize = 128 << 10;

/// The result as its report carries it, and its whole text where that is uploaded.
pub(super) fn for_report(mut result: TaskResult) -> (TaskResult, Option<String>) {
    let mut room = DENIALS;
    result.permission_denials.retain_mut(|denial| {
        let size = |d: &PermissionDenial| json!(d).to_string().len();
        if size(denial) > room {
            denial.tool_input = json!({"left_out": "too long"});
        }
        let size = size(denial);
        let fits = size <= room;
        room -= if fits { size } else { 0 };
        fits
    });
    if head(&result.text, TEXT) == result.text.len() {
        return (result, None);
    }
    let beginning = result.text[..head(&result.text, HEAD)].to_owned();
    let mut whole = std::mem::replace(&mut result.text, beginning);
    result.truncated = true;
    let mut most = (0..=limits::MAX_RESULT_BYTES.min(whole.len())).rev();
    let most = most.find(|i| whole.is_char_boundary(*i));
    whole.truncate(most.unwrap_or(0));
    (result, Some(whole))
}

/// A text that is reported whole or with its beginning and a note.
pub(super) fn cut(mut text: String) -> String {
    if head(&text, TEXT) < text.len() {
        let end = head(&text, HEAD);
        let more = text.len() - end;
        text.truncate(end);
        text.push_str(&format!(
            "\n[cut: {more} bytes more; the session's transcript on the device has them]"
        ));
    }
    text
}

/// The length of the longest beginning that takes at most `most` bytes as JSON.
fn head(text: &str, most: usize) -> usize {
    let mut room = most;
    for (i, c) in text.char_indices() {
        let size = match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            _ => c.len_utf8(),
        };
        if size > room {
            return i;
        }
        room -= size;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: String) -> TaskResult {
        TaskResult {
            text,
            ..TaskResult::default()
        }
    }

    #[test]
    fn every_report_fits_into_a_frame_whatever_the_result_holds() {
        for unit in ["x", "\u{1}", "\"", "汉", "😀", "\n"] {
            for n in [1, 90_000, 600_000] {
                let text = unit.repeat(n);
                let mut long = result(text.clone());
                long.permission_denials = vec![
                    PermissionDenial {
                        tool_name: "Write".into(),
                        tool_input: json!({"content": "y".repeat(100_000)}),
                    };
                    40
                ];
                let (told, whole) = for_report(long);
                assert!(json!(told).to_string().len() < limits::MAX_FRAME_BYTES - 4096);
                assert_eq!(told.permission_denials.len(), 40);
                match whole {
                    None => assert_eq!(told.text, text),
                    Some(whole) => {
                        assert!(told.truncated && whole.starts_with(&told.text));
                        assert!(!told.text.is_empty() && text.starts_with(&whole));
                        assert_eq!(whole, text);
                    }
                }
                assert!(json!(cut(text)).to_string().len() < limits::MAX_FRAME_BYTES - 4096);
            }
        }
    }

    #[test]
    fn a_text_beyond_what_can_be_uploaded_is_cut_between_characters() {
        let text = "汉".repeat(6 << 20);
        let (_, whole) = for_report(result(text.clone()));
        let whole = whole.unwrap();
        assert!(text.starts_with(&whole) && whole.len() + 3 > limits::MAX_RESULT_BYTES);
    }

    #[test]
    fn refusals_beyond_all_room_are_left_out() {
        let mut many = result("done".into());
        let denial = PermissionDenial {
            tool_name: "Bash".into(),
            tool_input: json!({}),
        };
        many.permission_denials = vec![denial; 10_000];
        let (told, _) = for_report(many);
        let kept = told.permission_denials.len();
        assert!(kept > 1_000 && kept < 10_000, "{kept}");
    }
}
