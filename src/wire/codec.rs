//! Bytes ↔ frames: the only place where JSON of the link is read or written.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::domain::Seq;

/// Why a text is not a frame; the connection is closed with 4400 or 4413, the queue is untouched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Larger than the frame limit.
    #[error("a frame of {got} bytes; at most {max} are allowed")]
    TooLarge {
        /// Its size in bytes.
        got: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Not JSON, or not of a known type's shape.
    #[error("not a frame: {0}")]
    Malformed(String),
}

/// Reads one frame of at most `max` bytes.
///
/// # Errors
/// When the text is too large or not a frame; an unknown `type` is not an error.
pub fn decode<F: DeserializeOwned>(text: &str, max: usize) -> Result<F, DecodeError> {
    if text.len() > max {
        return Err(DecodeError::TooLarge {
            got: text.len(),
            max,
        });
    }
    serde_json::from_str(text).map_err(|e| DecodeError::Malformed(e.to_string()))
}

/// Writes a frame.
#[must_use]
pub fn encode<F: Serialize>(frame: &F) -> String {
    // Frames are plain data with string keys: serialisation cannot fail.
    serde_json::to_string(frame).unwrap_or_default()
}

/// The size of a frame as [`encode`] would write it, bytes.
#[must_use]
pub fn encoded_len<F: Serialize>(frame: &F) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
            self.0 += buf.len();
            Ok(buf.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, frame) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

/// Writes a `deliver` frame around an envelope's stored JSON, so that the hub need not read it again.
#[must_use]
pub fn encode_deliver(seq: Seq, envelope_json: &str) -> String {
    let mut s = String::with_capacity(envelope_json.len() + 48);
    s.push_str("{\"type\":\"deliver\",\"seq\":");
    s.push_str(&seq.0.to_string());
    s.push_str(",\"envelope\":");
    s.push_str(envelope_json);
    s.push('}');
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DeviceFrame, HubFrame};

    #[test]
    fn an_unknown_frame_type_and_unknown_fields_are_ignored() {
        let frame: DeviceFrame = decode(r#"{"type":"teleport","x":1}"#, 100).unwrap();
        assert_eq!(frame, DeviceFrame::Unknown);
        let frame: DeviceFrame = decode(r#"{"type":"ack","seq":3,"later":true}"#, 100).unwrap();
        assert_eq!(frame, DeviceFrame::Ack { seq: Seq(3) });
    }

    #[test]
    fn the_counted_length_is_the_written_length() {
        let frame = DeviceFrame::Bye {
            reason: "päuse \"now\"".into(),
        };
        assert_eq!(encoded_len(&frame), encode(&frame).len());
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_read() {
        assert!(matches!(
            decode::<HubFrame>(&"x".repeat(11), 10),
            Err(DecodeError::TooLarge { got: 11, max: 10 })
        ));
    }
}
