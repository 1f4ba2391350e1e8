//! Bytes ↔ frames: the only place where JSON of the link is read or written.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{Envelope, EnvelopeId, Report, ReportKind, Seq, WallMs};

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

/// A `deliver` frame whose envelope this version cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its place in the mailbox.
    pub seq: Seq,
    /// The envelope's id, if at least that can be read.
    pub id: Option<EnvelopeId>,
    /// What is wrong with it.
    pub reason: String,
}

/// What can be said of a text that is no frame but a `deliver` with a place; `None` for everything else.
#[must_use]
pub fn unreadable_envelope(text: &str) -> Option<Unreadable> {
    #[derive(Deserialize)]
    struct Deliver {
        r#type: String,
        seq: Seq,
        #[serde(default)]
        envelope: Value,
    }
    let frame: Deliver = serde_json::from_str(text).ok()?;
    if frame.r#type != "deliver" {
        return None;
    }
    let id = frame.envelope.get("id").cloned();
    let id = id.and_then(|id| serde_json::from_value(id).ok());
    let reason = match serde_json::from_value::<Envelope>(frame.envelope) {
        Ok(_) => "the frame around it cannot be read".to_owned(),
        Err(e) => e.to_string(),
    };
    let seq = frame.seq;
    Some(Unreadable { seq, id, reason })
}

/// A text that is no frame but a `report` with a number, as a report that says nothing: it is refused by its number.
#[must_use]
pub fn unreadable_report(text: &str) -> Option<Report> {
    #[derive(Deserialize)]
    struct Numbered {
        r#type: String,
        n: u64,
    }
    let frame: Numbered = serde_json::from_str(text).ok()?;
    (frame.r#type == "report").then(|| Report {
        n: frame.n,
        id: Uuid::nil(),
        kind: ReportKind::Other("unreadable".to_owned()),
        at: WallMs(0),
        body: Value::Null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DeviceFrame, HubFrame};

    #[test]
    fn of_an_unreadable_envelope_its_place_and_its_id_are_told_if_they_are_there() {
        let id = EnvelopeId(Uuid::from_u128(7));
        let text = format!(r#"{{"type":"deliver","seq":3,"envelope":{{"id":"{id}","kind":1}}}}"#);
        let told = unreadable_envelope(&text).unwrap();
        assert_eq!((told.seq, told.id), (Seq(3), Some(id)));
        let nameless = unreadable_envelope(r#"{"type":"deliver","seq":3,"envelope":[]}"#).unwrap();
        assert_eq!(nameless.id, None);
        for text in [
            "",
            "{}",
            r#"{"type":"deliver","seq":"x"}"#,
            r#"{"type":"synced","seq":3}"#,
        ] {
            assert_eq!(unreadable_envelope(text), None, "{text}");
        }
    }

    #[test]
    fn an_unreadable_report_keeps_its_number() {
        let report = unreadable_report(r#"{"type":"report","n":4,"id":"no uuid"}"#).unwrap();
        assert_eq!(report.n, 4);
        assert!(report.read().is_err());
        assert_eq!(unreadable_report(r#"{"type":"ack","n":4}"#), None);
    }

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
