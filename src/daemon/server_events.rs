//! Server-sent events, read from bytes as they come (the event stream format of the HTML standard, section 9.2.6).

/// Largest event and longest line that are read, bytes.
const MAX_EVENT: usize = 4 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerEvent {
    /// Its id, if the stream named one: where to go on after a break.
    pub id: Option<String>,
    /// Its kind; `message` where the stream names none.
    pub kind: String,
    /// Its data.
    pub data: String,
}

/// Takes bytes, gives events.
#[derive(Debug, Default)]
pub struct EventReader {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that hold no line's end.
    searched: usize,
    after_cr: bool,
    event: ServerEvent,
    id: Option<String>,
    has_data: bool,
}

impl EventReader {
    /// Adds bytes of the stream.
    ///
    /// # Errors
    /// When an event is larger than anything that the hub sends.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if self.bytes.len() + self.event.data.len() + bytes.len() > MAX_EVENT {
            return Err("an event is too large");
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole event.
    pub fn take(&mut self) -> Option<ServerEvent> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if std::mem::take(&mut self.has_data) {
                    return Some(ServerEvent {
                        id: self.id.clone(),
                        kind: if event.kind.is_empty() {
                            "message".to_owned()
                        } else {
                            event.kind
                        },
                        data: event.data,
                    });
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event.kind),
                "data" => {
                    if self.has_data {
                        self.event.data.push('\n');
                    }
                    self.has_data = true;
                    self.event.data.push_str(value);
                }
                "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
                // Comments, `retry`, and fields of later versions.
                _ => {}
            }
        }
    }

    /// The next line without its end: CR, LF or both.
    fn line(&mut self) -> Option<String> {
        if self.after_cr && !self.bytes.is_empty() {
            self.after_cr = false;
            if self.bytes.first() == Some(&b'\n') {
                self.bytes.remove(0);
                self.searched = 0;
            }
        }
        let rest = self.bytes.get(self.searched..)?;
        let Some(at) = rest.iter().position(|b| matches!(b, b'\n' | b'\r')) else {
            self.searched = self.bytes.len();
            return None;
        };
        let end = self.searched + at;
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        self.searched = 0;
        self.after_cr = line.pop() == Some(b'\r');
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<ServerEvent> {
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            reader.push(piece).unwrap();
            events.extend(std::iter::from_fn(|| reader.take()));
        }
        events
    }

    const STREAM: &[u8] = b": hello\r\nid: e1.7\nevent: status\ndata: {\"a\":\rdata:1}\r\n\r\nretry: 3\n\ndata\n\nid: e1.8\ndata: last\n\ndata: cut";

    #[test]
    fn events_come_whole_however_the_bytes_are_cut() {
        let whole = all(&[STREAM]);
        let told: Vec<_> = whole
            .iter()
            .map(|e| (e.id.as_deref(), e.kind.as_str(), e.data.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (Some("e1.7"), "status", "{\"a\":\n1}"),
                (Some("e1.7"), "message", ""),
                (Some("e1.8"), "message", "last"),
            ]
        );
        for at in 0..STREAM.len() {
            let (a, b) = STREAM.split_at(at);
            assert_eq!(all(&[a, b]), whole, "cut at {at}");
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(all(&single), whole);
    }

    #[test]
    fn an_event_without_an_end_is_refused_before_it_fills_the_memory() {
        let mut reader = EventReader::default();
        let piece = vec![b'x'; 1 << 20];
        let mut refused = false;
        for _ in 0..8 {
            refused |= reader.push(&piece).is_err();
            assert_eq!(reader.take(), None);
        }
        assert!(refused);
    }
}
