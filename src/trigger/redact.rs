//! What of a program's output may be kept: everything but what looks like a credential.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

/// Beginnings of credentials that are known by them.
const PREFIXES: [&str; 8] = [
    "sk-",
    "eyJ",
    "ghp_",
    "gho_",
    "github_pat_",
    "xox",
    "AKIA",
    "glpat-",
];
/// The length from which a mixed word without a known beginning is taken for a credential.
const OPAQUE: usize = 40;

/// The text with every word that looks like a credential replaced by `[redacted]`.
#[must_use]
pub fn redact(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '~');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        out.push_str(if is_secret(word) { "[redacted]" } else { word });
        let next = tail.find(is_word).unwrap_or(tail.len());
        out.push_str(&tail[..next]);
        rest = &tail[next..];
    }
    out
}

fn is_secret(word: &str) -> bool {
    let known = word.len() >= 16 && PREFIXES.iter().any(|p| word.starts_with(p));
    let run = word
        .split(['.', '~', '+'])
        .filter(|part| part.len() >= OPAQUE)
        .any(|part| {
            let has = |f: fn(&char) -> bool| part.chars().any(|c| f(&c));
            has(char::is_ascii_digit) && has(char::is_ascii_alphabetic)
        });
    known || run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_replaced_and_words_are_not() {
        let opaque = "a1".repeat(20);
        for secret in [
            "sk-ant-api03-AbCdEfGhIjKl",
            "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJkIn0.c2ln",
            "ghp_0123456789abcdef0123",
            opaque.as_str(),
        ] {
            let text = redact(&format!(
                "Authorization: Bearer {secret}, key=\"{secret}\" end"
            ));
            assert_eq!(
                text,
                "Authorization: Bearer [redacted], key=\"[redacted]\" end"
            );
        }
        for plain in [
            "No conversation found with session ID: 550e8400-e29b-41d4-a716-446655440000",
            "at /home/user/some-project-with-a-name/src/main.rs:12:3\n\tnext 文件 🚀",
            "sk-1 eyJ",
            "",
        ] {
            assert_eq!(redact(plain), plain);
        }
    }
}
