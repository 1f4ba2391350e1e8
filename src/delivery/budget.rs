//! How long a text is for the CLI, and where it may be cut.
//!
//! The CLI measures a hook's output in the units of its own language, UTF-16 code units: a Chinese character is one, an
//! emoji two. Counting those units keeps every text within the limit by either reading of "character".

use crate::domain::limits;

/// What the own words around a batch may take, units; a test holds `fence::batch` to it.
pub const FRAME_UNITS: usize = 1_000;

/// What the fenced texts of one hook output may take together, units.
pub const BATCH_UNITS: usize = limits::HOOK_OUTPUT_CHARS - FRAME_UNITS;

/// What is shown of a body that does not fit whole, units.
pub const PREVIEW_UNITS: usize = 2_000;

/// How far a cut goes back to keep a cluster whole; longer clusters are no script's.
const CLUSTER_CHARS: usize = 32;

/// The text's length, UTF-16 code units.
#[must_use]
pub fn length(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// The longest beginning of at most `max` units that does not end within a character, a joined emoji or a letter with
/// its marks.
#[must_use]
pub fn cut(text: &str, max: usize) -> &str {
    let mut units = 0;
    let end = text.char_indices().find_map(|(at, c)| {
        units += c.len_utf16();
        (units > max).then_some(at)
    });
    let Some(end) = end else { return text };
    let mut at = end;
    for _ in 0..CLUSTER_CHARS {
        let (head, tail) = text.split_at(at);
        let (Some(last), Some(next)) = (head.chars().next_back(), tail.chars().next()) else {
            break;
        };
        if !holds_together(last, next, head) {
            return head;
        }
        at -= last.len_utf8();
    }
    &text[..end]
}

/// Whether a cut between these two would split what is read as one sign.
fn holds_together(last: char, next: char, head: &str) -> bool {
    let regional = |c: char| ('\u{1F1E6}'..='\u{1F1FF}').contains(&c);
    if regional(last) && regional(next) {
        let run = head.chars().rev().take_while(|c| regional(*c)).count();
        return run % 2 == 1;
    }
    last == '\u{200D}' || extends(next)
}

/// Joiners, variation selectors, skin tones and the common combining marks.
const fn extends(c: char) -> bool {
    matches!(c,
        '\u{0300}'..='\u{036F}' | '\u{0483}'..='\u{0489}' | '\u{0591}'..='\u{05BD}'
        | '\u{064B}'..='\u{065F}' | '\u{093A}'..='\u{093C}' | '\u{093E}'..='\u{094D}'
        | '\u{0E31}' | '\u{0E34}'..='\u{0E3A}' | '\u{0E47}'..='\u{0E4E}'
        | '\u{1AB0}'..='\u{1AFF}' | '\u{1DC0}'..='\u{1DFF}' | '\u{200C}' | '\u{200D}'
        | '\u{20D0}'..='\u{20FF}' | '\u{3099}' | '\u{309A}' | '\u{FE00}'..='\u{FE0F}'
        | '\u{FE20}'..='\u{FE2F}' | '\u{1F3FB}'..='\u{1F3FF}' | '\u{E0020}'..='\u{E007F}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAMILY: &str = "\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}";

    #[test]
    fn chinese_counts_one_and_emoji_two() {
        assert_eq!(length("abc"), 3);
        assert_eq!(length("文件夹"), 3);
        assert_eq!(length("🚀"), 2);
        assert_eq!(length(FAMILY), 8);
    }

    #[test]
    fn a_cut_keeps_clusters_whole() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abc", 2), "ab");
        assert_eq!(cut("a🚀", 2), "a");
        assert_eq!(cut(&format!("a{FAMILY}b"), 8), "a");
        assert_eq!(cut(&format!("a{FAMILY}b"), 9), format!("a{FAMILY}"));
        assert_eq!(cut("xe\u{301}y", 2), "x");
        assert_eq!(
            cut("\u{1F1E9}\u{1F1EA}\u{1F1EB}\u{1F1F7}", 6),
            "\u{1F1E9}\u{1F1EA}"
        );
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn a_hostile_pile_of_marks_is_cut_all_the_same() {
        let pile = format!("a{}", "\u{301}".repeat(1000));
        assert_eq!(length(cut(&pile, 500)), 500);
    }

    proptest! {
        #[test]
        fn a_cut_is_a_beginning_within_its_limit(text in any::<String>(), max in 0..64_usize) {
            let head = cut(&text, max);
            prop_assert!(text.starts_with(head) && length(head) <= max);
        }
    }
}
