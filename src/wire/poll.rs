//! The bodies of the fallback: the link's frames, gathered into the answers of a few calls.
//!
//! `POST /poll/open` takes what `hello` carries and answers what `welcome` carries. `GET /poll` answers [`Polled`]:
//! `deliver` frames and `synced`. `POST /poll/ack` takes [`PollAck`]: `ack`, `report`s, `capacity` and `bye`, and answers
//! [`PollAcked`], once they are committed: a `report_ack`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RejectedReport;
use crate::domain::{Envelope, Epoch, Report, Seq};

/// Reports in one call at most.
pub const POLL_REPORTS: usize = 64;
/// Longest `wait_s` that is taken; the hub waits one heartbeat at most.
pub const POLL_WAIT_S: u64 = 60;

/// The answer of `GET /poll`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Polled {
    /// The life of the mailbox that the places belong to.
    pub epoch: Epoch,
    /// The session's number.
    pub generation: u64,
    /// Envelopes after `after`, in order; with what is unacked never more than `welcome.window`.
    pub envelopes: Vec<Delivered>,
    /// The end of the backlog, once everything up to it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<Seq>,
    /// Whether the next poll will find more at once.
    #[serde(default)]
    pub more: bool,
}

/// One envelope of a poll.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivered {
    /// Its place in the mailbox.
    pub seq: Seq,
    /// The envelope.
    pub envelope: Box<Envelope>,
}

/// The body of `POST /poll/ack`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PollAck {
    /// The life of the mailbox that `seq` belongs to.
    pub epoch: Epoch,
    /// The session's number: a later one fences this call out.
    pub generation: u64,
    /// Every envelope up to here is durable at the device (cumulative); said again, it changes nothing.
    pub seq: Seq,
    /// Rows of the outbox, in order, at most 64.
    #[serde(default)]
    pub reports: Vec<Report>,
    /// Free run slots, when they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Why the device leaves, in a word: the session ends after this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bye: Option<String>,
}

/// The answer of `POST /poll/ack`, after the commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PollAcked {
    /// The cursor at the hub.
    pub acked: Seq,
    /// The last report that is durable at the hub, or refused for good (cumulative).
    pub report_n: u64,
    /// Those of the call's reports that were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedReport>,
}

/// Writes a [`Polled`] around the envelopes' stored JSON, so that the hub need not read them again.
#[must_use]
pub fn encode_polled<'a>(
    epoch: Epoch,
    generation: u64,
    rows: impl IntoIterator<Item = (Seq, &'a str)>,
    synced: Option<Seq>,
    more: bool,
) -> String {
    let mut s = format!("{{\"epoch\":\"{epoch}\",\"generation\":{generation},\"envelopes\":[");
    for (i, (seq, json)) in rows.into_iter().enumerate() {
        if i > 0 {
            s.push(',');
        }
        s.push_str(&format!("{{\"seq\":{},\"envelope\":{json}}}", seq.0));
    }
    s.push(']');
    if let Some(seq) = synced {
        s.push_str(&format!(",\"synced\":{}", seq.0));
    }
    s.push_str(&format!(",\"more\":{more}}}"));
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_written_around_stored_rows_reads_back() {
        let epoch = Epoch::from_u128(7);
        let text = encode_polled(epoch, 3, [], Some(Seq(4)), false);
        let read: Polled = serde_json::from_str(&text).unwrap();
        assert_eq!(text, serde_json::to_string(&read).unwrap());
        assert_eq!((read.synced, read.generation), (Some(Seq(4)), 3));
    }
}
