//! How a command ends: an exit code, and an error told once, in one form.

use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};

/// The exit codes of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Tried and failed.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The daemon or the hub is not running.
    NotRunning = 3,
    /// The daemon is not connected to its hub.
    NotConnected = 4,
    /// The credential does not allow it.
    NotAuthorised = 5,
}

/// Why a command failed: what happened, what caused it, what to do next.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened, to what; lower case, no full stop.
    pub message: String,
    /// The causes, nearest first.
    pub causes: Vec<String>,
    /// What to do next.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Failed,
            message: message.into(),
            causes: Vec::new(),
            hint: None,
        }
    }

    /// The failure of `what`, with the error and its sources as causes; a source that the error before it quotes is left out.
    pub fn of(what: impl Into<String>, error: &dyn std::error::Error) -> Self {
        let mut failure = Self::new(what);
        let mut next = Some(error);
        while let Some(e) = next {
            let text = e.to_string();
            if failure.causes.last().is_none_or(|c| !c.contains(&text)) {
                failure.causes.push(text);
            }
            next = e.source();
        }
        failure
    }

    /// The failure with another exit code.
    #[must_use]
    pub fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// The failure with advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The text for standard error.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let (red, cyan, off) = if colour {
            ("\x1b[31m", "\x1b[36m", "\x1b[0m")
        } else {
            ("", "", "")
        };
        let mut text = format!("{red}error{off}: {}\n", tame(&self.message));
        for cause in &self.causes {
            text.push_str(&format!("  caused by: {}\n", tame(cause)));
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("\n{cyan}hint{off}: {}\n", tame(hint)));
        }
        text
    }

    /// Writes the failure to standard error.
    pub(crate) fn print(&self) {
        let mut err = std::io::stderr().lock();
        let text = self.render(colour(&err));
        // Nobody is left to tell when standard error is gone.
        drop(err.write_all(text.as_bytes()));
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

/// Whether to colour what goes to this stream.
pub(crate) fn colour(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// The text with its control characters made visible, but for line ends and tabs: what came from afar must not move the
/// cursor, set titles or write into the clipboard of whoever reads it in a terminal.
pub(crate) fn tame(text: &str) -> Cow<'_, str> {
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let picture = |c: char| match c {
        c if plain(c) => c,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        _ => '\u{fffd}',
    };
    Cow::Owned(text.replace("\r\n", "\n").chars().map(picture).collect())
}

/// Writes one line to standard output, tamed if that is a terminal and as it is if not; a closed pipe is not an error.
///
/// # Errors
/// When standard output cannot be written for another reason.
pub(crate) fn say(line: impl fmt::Display) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        return say_styled(tame(&line.to_string()));
    }
    say_styled(line)
}

/// As [`say`], for a line of our own words with colours in it.
///
/// # Errors
/// When standard output cannot be written for another reason than a closed pipe.
pub(crate) fn say_styled(line: impl fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::of("cannot write to standard output", &e))
        }
        _ => Ok(()),
    }
}

/// Something for the person in front, on standard error; nothing depends on it.
pub(crate) fn note(text: fmt::Arguments<'_>) {
    // Standard error may be gone; the command goes on.
    drop(writeln!(std::io::stderr(), "{}", tame(&text.to_string())));
}

/// Whether standard output is a terminal that may be coloured.
pub(crate) fn colour_out() -> bool {
    let out = std::io::stdout();
    out.is_terminal() && colour(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_quoted_already_is_not_told_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot listen: {source}")]
        struct Outer {
            source: std::io::Error,
        }
        let outer = Outer {
            source: std::io::Error::other("address in use"),
        };
        let failure = Failure::of("the hub did not start", &outer);
        assert_eq!(failure.causes, ["cannot listen: address in use"]);
    }

    #[test]
    fn remote_text_cannot_steer_the_terminal() {
        let text = "\x1b]52;c;cm0=\x07a\tb\r\nc\rd\u{9b}2J\x7f é\n";
        assert_eq!(tame(text), "␛]52;c;cm0=␇a\tb\nc␍d\u{fffd}2J␡ é\n");
        assert!(matches!(tame("plain\n"), Cow::Borrowed(_)));
        let mut failure = Failure::new("\x1b[2J").hint("\x1b[3J");
        failure.causes.push("\x1b[4J".into());
        assert!(!failure.render(false).contains('\x1b'));
    }

    #[test]
    fn a_failure_reads_as_error_causes_and_hint() {
        let mut failure = Failure::new("cannot reach `http://h`").hint("start it");
        failure.causes.push("connection refused".into());
        assert_eq!(
            failure.render(false),
            "error: cannot reach `http://h`\n  caused by: connection refused\n\nhint: start it\n"
        );
    }
}
