//! Prompts for `claude -p`, safe to write to its stdin.
//!
//! The CLI treats a prompt as typed by its user: it puts the content of `@path` into the model's request (from any
//! folder, in every permission mode, with `Read` disallowed) and runs a prompt that begins with `/` as a command.
//! So remote text never begins a prompt, and its mentions are broken by U+2060 (word joiner), which shows nothing,
//! before the `@`.
//!
//! Measured with 2.1.332, one prompt per variant, the request searched for the file's content: `@` expands at the
//! beginning of the text or of a line, after every kind of white space (also U+0009, U+000B, U+000C, U+000D, U+00A0,
//! U+1680, U+2003, U+2028, U+2029, U+3000, U+FEFF) and after `。`, in the forms `@/abs`, `@~/x`, `@rel`, `@./rel`,
//! `@"with space"`, `@name#L1`; not after a letter, a digit or other punctuation. With the joiner before it, none
//! of 59 variants expanded. After an ASCII letter or digit (`me@example.org`, `pkg@1.2`) it is left alone; it
//! is broken everywhere else, also where this version would not look, and in its full-width and small forms.

use std::borrow::Cow;

const JOINER: char = '\u{2060}';

/// Remote text with every mention broken and every NUL replaced; the same text if there was none.
#[must_use]
pub fn neutralise(remote: &str) -> Cow<'_, str> {
    if !remote.contains(['@', '＠', '﹫', '\0']) {
        return Cow::Borrowed(remote);
    }
    let mut out = String::with_capacity(remote.len() + 16);
    let mut before = ' ';
    for c in remote.chars() {
        match c {
            '@' | '＠' | '﹫' if !before.is_ascii_alphanumeric() && before != JOINER => {
                out.push(JOINER);
                out.push(c);
            }
            '\0' => out.push(char::REPLACEMENT_CHARACTER),
            _ => out.push(c),
        }
        before = c;
    }
    Cow::Owned(out)
}

/// A prompt that is safe to write to the CLI's stdin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt(String);

impl Prompt {
    /// A prompt that begins with our own words and goes on with `body`, in which remote text may stand anywhere.
    ///
    /// A lead that does not begin with an ASCII letter is set behind one that does.
    #[must_use]
    pub fn new(lead: &'static str, body: &str) -> Self {
        let own = if lead.starts_with(|c: char| c.is_ascii_alphabetic()) {
            ""
        } else {
            "Request: "
        };
        Self(format!("{own}{lead}\n\n{}", neutralise(body)))
    }

    /// The text for stdin.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mentions_are_broken_and_addresses_are_not() {
        for (text, out) in [
            ("@/etc/passwd", "\u{2060}@/etc/passwd"),
            ("see @~/x", "see \u{2060}@~/x"),
            ("see @\"a b\"", "see \u{2060}@\"a b\""),
            ("x\n@y", "x\n\u{2060}@y"),
            ("。@y", "。\u{2060}@y"),
            ("＠y", "\u{2060}＠y"),
            ("@@@y", "\u{2060}@\u{2060}@\u{2060}@y"),
            ("me@example.org pkg@1.2", "me@example.org pkg@1.2"),
            ("a\0b", "a\u{fffd}b"),
            ("plain", "plain"),
        ] {
            assert_eq!(neutralise(text), out, "{text:?}");
        }
    }

    #[test]
    fn no_prompt_begins_with_remote_text_or_a_command() {
        for lead in ["", "/clear", " x", "@x", "#x", "!ls"] {
            let prompt = Prompt::new(lead, "/clear");
            assert!(prompt.as_str().starts_with("Request: "), "{prompt:?}");
        }
        assert_eq!(
            Prompt::new("A task.", "/clear").as_str(),
            "A task.\n\n/clear"
        );
    }

    proptest! {
        #[test]
        fn no_mention_is_left_and_nothing_else_is_changed(text in "[@＠a. \n\t\"/~\u{2060}。]{0,40}") {
            let out = neutralise(&text);
            let chars: Vec<char> = out.chars().collect();
            for (i, c) in chars.iter().enumerate() {
                if matches!(c, '@' | '＠') {
                    let before = i.checked_sub(1).and_then(|j| chars.get(j)).copied();
                    prop_assert!(before.is_some_and(|b| b == JOINER || b.is_ascii_alphanumeric()));
                }
            }
            let bare = |s: &str| s.replace(JOINER, "");
            prop_assert_eq!(bare(&out), bare(&text));
            prop_assert_eq!(neutralise(&out), out.clone());
        }
    }
}
