//! Making visible what could mislead a reader.

use crate::domain::ClaimId;

/// The tags by which harnesses speak to models, and our own: whole words, or beginnings where a sign ends them.
const RESERVED: &[&str] = &[
    "remote-",
    "system",
    "system_",
    "cross-session",
    "task-notification",
    "persisted-output",
    "user-prompt",
    "local-command",
    "command-",
    "function_",
    "invoke",
    "parameter",
    "tool_",
    "tool-",
    "antml:",
    "human",
    "assistant",
    "user",
];

/// The text with everything that could pass for our words, for the harness's or for nothing at all made visible:
/// invisible, bidirectional and control characters as `⟦U+202E⟧`, the `<` of reserved tags as `‹`, the nonce as
/// `⟦nonce⟧`. Line ends become `\n`; joiners inside emoji and complex scripts stay.
#[must_use]
pub fn quote(text: &str, nonce: Option<ClaimId>) -> String {
    let nonce = nonce.map(|n| n.to_string());
    let mut out = String::with_capacity(text.len());
    let mut last = '\n';
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(nonce) = nonce.as_deref()
            && starts_with_ignore_case(rest, nonce)
        {
            out.push_str("⟦nonce⟧");
            rest = &rest[nonce.len()..];
            last = '⟧';
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '\r' => {
                if !rest.starts_with('\n') {
                    out.push('\n');
                }
            }
            '<' if opens_reserved(rest) => out.push('‹'),
            _ if shows_nothing(c, last, rest.chars().next()) => {
                out.push_str(&format!("⟦U+{:04X}⟧", u32::from(c)));
            }
            _ => out.push(c),
        }
        last = c;
    }
    out
}

fn starts_with_ignore_case(text: &str, what: &str) -> bool {
    text.get(..what.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(what))
}

/// Whether a reserved name follows a `<`, be it after `/` or blanks.
fn opens_reserved(rest: &str) -> bool {
    let name = rest.trim_start_matches(['/', ' ', '\t']);
    RESERVED.iter().any(|r| {
        let ends_word = r.ends_with(|c: char| c.is_ascii_alphanumeric());
        let goes_on = |c: char| c.is_alphanumeric() || c == '_';
        starts_with_ignore_case(name, r) && !(ends_word && name[r.len()..].starts_with(goes_on))
    })
}

fn shows_nothing(c: char, last: char, next: Option<char>) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{200C}' | '\u{200D}' => !(joins(last) && next.is_some_and(joins)),
        // Text or emoji presentation of the sign before it.
        '\u{FE0E}' | '\u{FE0F}' => {
            let takes_one = !last.is_ascii() || last.is_ascii_digit() || matches!(last, '#' | '*');
            !takes_one || matches!(last, '\u{FE00}'..='\u{FE0F}')
        }
        '\u{00AD}'
        | '\u{034F}'
        | '\u{061C}'
        | '\u{115F}'
        | '\u{1160}'
        | '\u{17B4}'
        | '\u{17B5}'
        | '\u{180B}'..='\u{180F}'
        | '\u{200B}'
        | '\u{200E}'
        | '\u{200F}'
        | '\u{2028}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{FE00}'..='\u{FE0D}'
        | '\u{FEFF}'
        | '\u{FFA0}'
        | '\u{FFF9}'..='\u{FFFB}'
        | '\u{1D173}'..='\u{1D17A}'
        | '\u{E0000}'..='\u{E0FFF}' => true,
        _ => c.is_control(),
    }
}

/// Emoji and the scripts in which a joiner changes what is seen.
const fn joins(c: char) -> bool {
    matches!(c, '\u{0590}'..='\u{1FFF}' | '\u{2190}'..='\u{2BFF}' | '\u{FE0F}' | '\u{1F000}'..='\u{1FAFF}')
}
