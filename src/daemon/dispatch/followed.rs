//! A claim on its way with what its transcript said so far.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::claude::transcript;
use crate::daemon::store::ClaimRow;
use crate::delivery::claims::{Claim, Sign};
use crate::domain::{ClaimId, WallMs};

/// Bytes of one transcript that are read at a time; the rest follows at the next look.
const READ: u64 = 8 << 20;

/// What the claim's row keeps beside its columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Detail {
    claim: Claim,
    #[serde(default)]
    last_message: Option<String>,
}

/// A claim with what was read about it.
#[derive(Debug, Clone)]
pub(super) struct Followed {
    pub(super) claim: Claim,
    pub(super) opened_at: WallMs,
    watch: transcript::Watch,
    /// Whether the transcript goes on behind what was read.
    pub(super) behind: bool,
    /// The last assistant message of the turn that it ended with, once that ended.
    pub(super) last_message: Option<String>,
}

impl Followed {
    pub(super) fn new(claim: Claim, opened_at: WallMs) -> Self {
        let watch = transcript::Watch::new(claim.offset, [claim.nonce()]);
        Self {
            claim,
            opened_at,
            watch,
            behind: false,
            last_message: None,
        }
    }

    /// The claim as it was stored; `None` for a row of another shape, which a program's own claim has.
    pub(super) fn load(row: ClaimRow) -> Option<(ClaimId, Self)> {
        let detail: Detail = serde_json::from_value(row.detail).ok()?;
        let mut followed = Self::new(detail.claim, row.opened_at);
        followed.last_message = detail.last_message;
        Some((row.id, followed))
    }

    /// The turn ended with this message.
    pub(super) fn ended(&mut self, last: Option<&str>) {
        self.last_message = last.map(str::to_owned);
    }

    /// The row of a claim.
    pub(super) fn row(claim: &Claim, last: Option<&str>, opened_at: WallMs) -> ClaimRow {
        let word = serde_json::to_value(claim.state).unwrap_or_default();
        let detail = Detail {
            claim: claim.clone(),
            last_message: last.map(str::to_owned),
        };
        ClaimRow {
            id: claim.id,
            door: claim.door,
            session: Some(claim.session),
            envelopes: claim.envelopes.clone(),
            transcript: claim.transcript.as_ref().map(PathBuf::from),
            offset: claim.offset,
            opened_at,
            lease_until: claim.lease_until,
            state: word.as_str().unwrap_or_default().to_owned(),
            closed: claim.state.is_final(),
            detail: serde_json::to_value(detail).unwrap_or_default(),
        }
    }

    /// Whether the transcript has the text, and nothing tells yet whether it stays.
    pub(super) fn is_pending(&self) -> bool {
        let trace = self.watch.trace(&self.claim.nonce());
        trace.is_some_and(transcript::Trace::is_pending)
    }

    /// What the transcript says now, in the order in which the claim should hear it.
    pub(super) fn read(&mut self) -> Vec<Sign> {
        let Some(path) = self.claim.transcript.clone() else {
            return Vec::new();
        };
        let reach = transcript::follow(Path::new(&path), &mut self.watch, READ);
        self.behind = matches!(
            reach,
            Ok(transcript::Reach::More | transcript::Reach::Replaced)
        );
        match reach {
            Ok(transcript::Reach::Replaced) => {
                // Another file of the same name: what matters is in it, or nowhere.
                self.watch = transcript::Watch::new(0, [self.claim.nonce()]);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, path, "a transcript cannot be read now"),
        }
        let nonce = self.claim.nonce();
        let Some(trace) = self.watch.trace(&nonce) else {
            return Vec::new();
        };
        let mut signs = Vec::new();
        if trace.enqueued.is_some() && !self.claim.enqueued {
            signs.push(Sign::EnqueueSeen);
        }
        if trace.taken_back.is_some() {
            signs.push(Sign::TurnBoundaryWithoutNonce);
        } else if trace.is_pending() {
            // Esc could still take it back.
        } else if trace.seen.is_some() {
            let turn_ended = self.watch.ended_after(&nonce);
            // The hook at `Stop` tells it first-hand, but may be late or lost.
            if self.last_message.is_none() {
                let answer = self.watch.answer_after(&nonce);
                self.last_message = answer.map(str::to_owned);
            }
            signs.push(Sign::EvidenceSeen { turn_ended });
            if turn_ended {
                signs.push(Sign::TurnEnded);
            }
        } else if let (Some(end), Some(prompt)) =
            (self.watch.ends().first, self.watch.prompts().last)
            && prompt > end
        {
            // A prompt after an end: a whole turn passed, whatever the file was behind by.
            signs.push(Sign::TurnBoundaryWithoutNonce);
        }
        signs
    }
}

/// Whether a transcript holds a nonce that went to the model; `None` if it cannot be read.
pub(super) async fn holds(path: &Path, nonce: ClaimId) -> Option<bool> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let nonce = nonce.to_string();
        let mut watch = transcript::Watch::new(0, [nonce.clone()]);
        loop {
            match transcript::follow(&path, &mut watch, READ) {
                Ok(transcript::Reach::More) => {}
                Ok(_) => break,
                // What cannot be read proves nothing, neither way.
                Err(_) => return None,
            }
        }
        Some(watch.trace(&nonce).is_some_and(|t| t.seen.is_some()))
    });
    read.await.ok().flatten()
}
