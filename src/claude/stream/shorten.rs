//! A line too long to be kept is made shorter while it passes by: long strings lose their ends, everything else stays.
//!
//! The result is JSON if the line was: a string is cut between characters and never within an escape, and its closing
//! quote follows. So the fields behind a result text of any length (its cost, its session, how it ended) are still
//! read. One byte of look-behind is all the state there is beside what is kept.

/// Shortens one line.
#[derive(Debug)]
pub(super) struct Shortener {
    out: Vec<u8>,
    /// Decoded bytes of each string that are kept.
    most: usize,
    /// Bytes outside strings, and of the whole, that may be kept.
    structure: usize,
    place: Place,
    /// Decoded bytes of this string that were kept.
    kept: usize,
    cutting: bool,
    left_out: u64,
}

#[derive(Debug)]
enum Place {
    Outside,
    /// Within a string; whether the last character was kept, whose further bytes share its lot.
    Inside {
        kept: bool,
    },
    /// Within an escape, as far as it was read.
    Escape(Vec<u8>),
}

impl Shortener {
    /// Keeps at most `most` bytes of each string and `structure` bytes between strings.
    pub(super) const fn new(most: usize, structure: usize) -> Self {
        Self {
            out: Vec::new(),
            most,
            structure,
            place: Place::Outside,
            kept: 0,
            cutting: false,
            left_out: 0,
        }
    }

    /// Takes further bytes in; false if what is kept would still be too long.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while let [first, after @ ..] = rest {
            let plain = self.plain(rest);
            if plain > 0 {
                rest = &rest[plain..];
                continue;
            }
            self.byte(*first);
            rest = after;
            if self.structure == 0 {
                return false;
            }
        }
        true
    }

    /// Takes at once what is kept or left out as a whole: the text of a string up to its end, an escape or its limit. It
    /// looks no further than it takes, else the bytes before a limit would each cost a look at all that follows.
    fn plain(&mut self, bytes: &[u8]) -> usize {
        let Place::Inside { kept } = &mut self.place else {
            return 0;
        };
        let room = self.most.saturating_sub(self.kept + 1);
        let within = if self.cutting {
            bytes
        } else {
            &bytes[..room.min(bytes.len())]
        };
        let end = within.iter().position(|b| matches!(b, b'"' | b'\\'));
        let n = end.unwrap_or(within.len());
        if self.cutting {
            self.left_out += n as u64;
        } else if n > 0 {
            self.out.extend_from_slice(&bytes[..n]);
            self.kept += n;
            *kept = true;
        }
        n
    }

    /// The shortened line, and how many bytes of strings it lost.
    pub(super) fn finish(self) -> (Vec<u8>, u64) {
        (self.out, self.left_out)
    }

    fn byte(&mut self, b: u8) {
        match &mut self.place {
            Place::Outside => {
                self.structure -= 1;
                self.out.push(b);
                if b == b'"' {
                    self.place = Place::Inside { kept: true };
                    (self.kept, self.cutting) = (0, false);
                }
            }
            Place::Inside { .. } if b == b'"' => {
                self.structure = self.structure.saturating_sub(1);
                self.out.push(b);
                self.place = Place::Outside;
            }
            Place::Inside { .. } if b == b'\\' => self.place = Place::Escape(vec![b]),
            // A character's further bytes.
            Place::Inside { kept } if b & 0xC0 == 0x80 => {
                if *kept {
                    self.out.push(b);
                    self.kept += 1;
                } else {
                    self.left_out += 1;
                }
            }
            Place::Inside { .. } => {
                let kept = self.unit(&[b], 1, false);
                self.place = Place::Inside { kept };
            }
            Place::Escape(read) => {
                read.push(b);
                let whole = if read.get(1) == Some(&b'u') { 6 } else { 2 };
                if read.len() < whole {
                    return;
                }
                let read = std::mem::take(read);
                // The second half of a surrogate pair shares the lot of the first.
                let second = whole == 6
                    && matches!(read[2], b'd' | b'D')
                    && matches!(read[3], b'c'..=b'f' | b'C'..=b'F');
                let kept = self.unit(&read, whole / 2, second);
                self.place = Place::Inside { kept };
            }
        }
    }

    /// Keeps or drops one unit of a string that decodes to about `size` bytes.
    fn unit(&mut self, raw: &[u8], size: usize, second: bool) -> bool {
        self.cutting |= self.kept >= self.most && !second;
        if self.cutting {
            self.left_out += size as u64;
        } else {
            self.out.extend_from_slice(raw);
            self.kept += size;
        }
        !self.cutting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn shorten(line: &[u8], most: usize) -> (Vec<u8>, u64) {
        let mut s = Shortener::new(most, 1 << 20);
        assert!(s.feed(line));
        s.finish()
    }

    proptest! {
        #[test]
        fn a_shortened_line_is_the_same_json_with_the_beginnings_of_its_strings(
            texts in proptest::collection::vec("[a-c\"\\\\\n\u{1}é→😀]{0,30}", 1..5), most in 0_usize..40,
            ascii in any::<bool>(),
        ) {
            let mut line = json!({"type": "result", "list": texts, "n": 1.5, "end": true}).to_string();
            if ascii {
                // As an encoder that escapes everything but ASCII writes it.
                let mut units = [0; 2];
                line = line.chars().map(|c| match c.is_ascii() {
                    true => c.to_string(),
                    false => c.encode_utf16(&mut units).iter().map(|u| format!("\\u{u:04x}")).collect(),
                }).collect();
            }
            let most = most.max(6);
            let (short, left_out) = shorten(line.as_bytes(), most);
            let read: Value = serde_json::from_slice(&short).unwrap();
            prop_assert_eq!(&read["n"], 1.5);
            for (got, text) in read["list"].as_array().unwrap().iter().zip(&texts) {
                let got = got.as_str().unwrap();
                prop_assert!(text.starts_with(got));
                prop_assert!(got.len() <= most + 6);
                prop_assert!(got.len() == text.len() || left_out > 0);
            }
        }
    }

    #[test]
    fn a_line_whose_structure_alone_is_too_long_is_refused() {
        let mut s = Shortener::new(10, 100);
        assert!(!s.feed("[1,".repeat(100).as_bytes()));
    }
}
