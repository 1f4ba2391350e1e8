//! An envelope as the actor keeps it: what plans need of it, without its text.

use crate::daemon::store::{EnvelopeRow, EnvelopeState};
use crate::delivery::fence::Letter;
use crate::domain::{Envelope, EnvelopeKind, WallMs};

/// An envelope that waits or is held by a claim or a run.
#[derive(Debug, Clone)]
pub(super) struct Mail {
    /// The envelope; its body's text is left out once it was measured.
    pub(super) head: Envelope,
    /// When the hub lets it expire, by the hub's clock; `None` for mail of this device.
    expires: Option<WallMs>,
    /// Its order of arrival.
    pub(super) ord: i64,
    /// What its text takes of a batch, units.
    pub(super) units: usize,
    /// Why it waits, as last reported.
    pub(super) hold: Option<String>,
    /// Whether a claim or a run has it.
    pub(super) taken: bool,
    /// When its plan may change by time alone.
    pub(super) until: Option<WallMs>,
}

impl Mail {
    /// `offset_ms` is the hub's time minus this device's.
    pub(super) fn of(row: EnvelopeRow, offset_ms: i64) -> Self {
        let units = Letter::of(&row.envelope).map_or(0, |l| l.units());
        let mut head = row.envelope;
        for key in ["content", "task", "metadata", "options"] {
            if let Some(value) = head.body.get_mut(key) {
                *value = if key == "options" {
                    serde_json::json!({})
                } else {
                    "".into()
                };
            }
        }
        let expires = (!row.local).then_some(head.expires_at);
        let mut mail = Self {
            head,
            expires,
            ord: row.ord,
            units,
            hold: row.hold_reason,
            taken: row.state != EnvelopeState::Queued,
            until: None,
        };
        mail.tell_time(offset_ms);
        mail
    }

    /// Tells its expiry in this device's time.
    pub(super) fn tell_time(&mut self, offset_ms: i64) {
        if let Some(expires) = self.expires {
            self.head.expires_at = expires.plus(offset_ms.saturating_neg());
        }
    }

    pub(super) fn is_task(&self) -> bool {
        self.head.kind == EnvelopeKind::Task
    }
}
