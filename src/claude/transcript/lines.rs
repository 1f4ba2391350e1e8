//! Whole lines of a growing file, in bounded memory.

use std::io::{self, BufRead};

/// Bytes of a line that is still read; a longer one is passed over.
pub const MAX_TRANSCRIPT_LINE: usize = 4 << 20;

/// A whole line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its bytes without the line break; `None` if it was too long.
    pub bytes: Option<&'a [u8]>,
    /// Where the next line begins.
    pub end: u64,
}

/// Reads whole lines; what follows the last line break stays unread.
#[derive(Debug)]
pub struct LineReader<R> {
    input: R,
    at: u64,
    line: Vec<u8>,
}

impl<R: BufRead> LineReader<R> {
    /// A reader of an input that stands at this offset.
    pub fn new(input: R, at: u64) -> Self {
        Self {
            input,
            at,
            line: Vec::new(),
        }
    }

    /// The next whole line; `None` if there is none yet.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let mut too_long = false;
        let mut end = self.at;
        loop {
            let part = match self.input.fill_buf() {
                Ok(part) => part,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if part.is_empty() {
                return Ok(None);
            }
            let at = part.iter().position(|b| *b == b'\n');
            let text = at.and_then(|i| part.get(..i)).unwrap_or(part);
            if self.line.len() + text.len() > MAX_TRANSCRIPT_LINE {
                too_long = true;
                self.line = Vec::new();
            } else if !too_long {
                self.line.extend_from_slice(text);
            }
            let used = at.map_or(part.len(), |i| i + 1);
            self.input.consume(used);
            end += used as u64;
            if at.is_some() {
                self.at = end;
                return Ok(Some(Line {
                    bytes: (!too_long).then_some(self.line.as_slice()),
                    end,
                }));
            }
        }
    }
}
