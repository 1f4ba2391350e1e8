//! Claims: who holds a batch of envelopes on its way into a session, and what the signs mean.
//!
//! Nothing that was handed over can be called back, and the CLI answers nothing. So a claim is a small machine fed by
//! signs from outside, and one law governs it: **an envelope goes back to the queue only on proof that it did not
//! arrive.** Silence is not proof.
//!
//! ```text
//!            HandedOver             EvidenceSeen          TurnEnded
//!  Claimed ─────────────> HandedOver ───────────> Seen ────────────> Done
//!     │ lease over,          │  │ no transcript,     ▲
//!     │ output discarded,    │  │ lease over or      │ evidence, however late
//!     │ process gone         │  │ process gone       │
//!     ▼                      │  └──────────────> Unconfirmed
//!  Returned <────────────────┘
//!       proof: output discarded; process gone, turn boundary passed, or idle for 5 s, each with the
//!       transcript read up to then and the nonce not in it
//! ```
//!
//! - The daemon stores `HandedOver` **before** the bytes leave its hands. A crash in between then costs a look into the
//!   transcript; the other order would cost a repeat.
//! - `Unconfirmed` is `handed_over` for the sender: it is never repeated. It only frees the lane, so that one session
//!   without a readable transcript does not stop its queue for ever.
//! - A claim that was never handed over (the hook died, a program fetched and did not confirm) returns at its lease's
//!   end. For [`Door::LocalApi`] that is the documented contract: what is not confirmed comes again.
//! - Tasks run headless are no claims: their end is decided by `trigger`, and they are never repeated silently.
//!
//! A claim covers one or more lanes; a lane of a session with an open claim gives nothing to another one, which keeps
//! the order within the lane. [`select()`] picks what the next claim takes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::domain::{ClaimId, Door, EnvelopeId, Priority, SessionId, Stage, WallMs, limits};

mod select;

pub use select::{Boundary, MAX_CONTINUATIONS, Queued, Selection, SessionView, select};

/// How long an idle session may show nothing before that counts as proof of non-delivery, ms.
pub const IDLE_EVIDENCE_MS: i64 = 5_000;

/// Where a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// A door has it; nothing has left our hands.
    Claimed,
    /// The text left our hands.
    HandedOver,
    /// The text left our hands and nothing will tell whether it arrived; not repeated, the lane is free.
    Unconfirmed,
    /// The transcript shows that it reached the model.
    Seen,
    /// The turn that saw it ended, or the program that fetched it confirmed. Final.
    Done,
    /// It did not arrive; the envelopes are back in the queue. Final.
    Returned,
}

impl ClaimState {
    /// Whether the claim keeps its lanes to itself.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Claimed | Self::HandedOver)
    }

    /// Whether no sign can change it any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Returned)
    }
}

/// A lease on a batch of envelopes by exactly one door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its name; the text form is the nonce that every handed-over text carries.
    pub id: ClaimId,
    /// The door that holds it.
    pub door: Door,
    /// The session it is for.
    pub session: SessionId,
    /// The batch, in order.
    pub envelopes: Vec<EnvelopeId>,
    /// The lanes that it keeps.
    pub lanes: BTreeSet<Priority>,
    /// The transcript that will show the nonce; `None` if there is none to read.
    pub transcript: Option<String>,
    /// Where in the transcript to look from, bytes.
    pub offset: u64,
    /// When to look again, Unix ms; no concern of a state that is not open.
    pub lease_until: WallMs,
    /// When it was handed over, Unix ms.
    pub handed_at: Option<WallMs>,
    /// Whether the transcript shows the text waiting in the CLI's own queue.
    pub enqueued: bool,
    /// Where it stands.
    pub state: ClaimState,
}

/// What the session does at the time a lease is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiet {
    /// In a turn, at a permission prompt, or nobody knows.
    Busy,
    /// Between turns since this time.
    IdleSince(WallMs),
}

/// A sign from outside. Whoever sends a sign that speaks of the transcript has read it to its end first and has sent
/// [`Sign::EvidenceSeen`] if the nonce was in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The text is about to leave our hands.
    HandedOver {
        /// Whether the session is in a turn.
        busy: bool,
    },
    /// The nonce is in the transcript, in an entry that went to the model.
    EvidenceSeen {
        /// Whether the transcript also shows the end of that turn.
        turn_ended: bool,
    },
    /// The nonce is in the CLI's own queue.
    EnqueueSeen,
    /// The transcript passed the end of a turn without the nonce.
    TurnBoundaryWithoutNonce,
    /// The hook's output was discarded, or the text could not be handed over at all.
    OutputDiscarded,
    /// The session's process is gone and the transcript does not show the nonce.
    ProcessGone,
    /// `lease_until` has come.
    LeaseDue(Quiet),
    /// The session's turn ended.
    TurnEnded,
    /// The program that fetched the batch confirmed it.
    Confirmed,
}

/// What a sign led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effect {
    /// Stages that every envelope of the batch has reached now, in order.
    pub receipts: Vec<Stage>,
    /// Whether the envelopes go back to the queue, at their old places.
    pub requeue: bool,
}

impl Effect {
    fn reached<const N: usize>(receipts: [Stage; N]) -> Self {
        Self {
            receipts: receipts.into(),
            requeue: false,
        }
    }
}

/// What a claim is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimParts {
    /// Its random name.
    pub id: ClaimId,
    /// The door.
    pub door: Door,
    /// The session.
    pub session: SessionId,
    /// The batch with its lanes, in order.
    pub batch: Vec<(EnvelopeId, Priority)>,
    /// The transcript, if there is one to read.
    pub transcript: Option<String>,
    /// The transcript's length now, bytes.
    pub offset: u64,
}

impl Claim {
    /// The claim of a door on a batch; `busy` tells whether the session is in a turn. Reports `claimed{door}`.
    #[must_use]
    pub fn open(parts: ClaimParts, busy: bool, now: WallMs) -> (Self, Effect) {
        let claim = Self {
            id: parts.id,
            door: parts.door,
            session: parts.session,
            envelopes: parts.batch.iter().map(|(id, _)| *id).collect(),
            lanes: parts.batch.iter().map(|(_, lane)| *lane).collect(),
            transcript: parts.transcript,
            offset: parts.offset,
            lease_until: now.plus(lease_ms(busy)),
            handed_at: None,
            enqueued: false,
            state: ClaimState::Claimed,
        };
        let effect = Effect::reached([Stage::Claimed { door: claim.door }]);
        (claim, effect)
    }

    /// The nonce that every text of this claim carries.
    #[must_use]
    pub fn nonce(&self) -> String {
        self.id.to_string()
    }

    /// Takes a sign. Signs that do not concern the present state change nothing: they may come late, twice or in any
    /// order.
    pub fn on(&mut self, sign: Sign, now: WallMs) -> Effect {
        use ClaimState::{Claimed, Done, HandedOver, Returned, Seen, Unconfirmed};
        match (self.state, sign) {
            (Done | Returned, _) => Effect::default(),

            (Claimed, Sign::HandedOver { busy }) => {
                self.state = HandedOver;
                self.handed_at = Some(now);
                self.lease_until = now.plus(if busy {
                    lease_ms(true)
                } else {
                    IDLE_EVIDENCE_MS
                });
                Effect::reached([Stage::HandedOver])
            }
            // The evidence outruns our own note of the hand-over when a daemon died in between.
            (Claimed, Sign::EvidenceSeen { turn_ended }) => {
                let mut effect = self.seen(turn_ended);
                effect.receipts.insert(0, Stage::HandedOver);
                effect
            }
            (HandedOver | Unconfirmed, Sign::EvidenceSeen { turn_ended }) => self.seen(turn_ended),
            (Claimed, Sign::Confirmed) => {
                self.state = Done;
                Effect::reached([Stage::HandedOver, Stage::Done])
            }
            (HandedOver | Unconfirmed | Seen, Sign::Confirmed) | (Seen, Sign::TurnEnded) => {
                self.state = Done;
                Effect::reached([Stage::Done])
            }

            (Claimed, Sign::OutputDiscarded | Sign::ProcessGone | Sign::LeaseDue(_))
            | (HandedOver | Unconfirmed, Sign::OutputDiscarded) => self.give_back(),

            (HandedOver, Sign::ProcessGone) if self.transcript.is_none() => self.give_up_asking(),
            (HandedOver, Sign::ProcessGone) => self.give_back(),
            (HandedOver, Sign::TurnBoundaryWithoutNonce) if self.transcript.is_none() => {
                Effect::default()
            }
            // A text in the CLI's own queue starts the next turn: the end of this one says nothing about it.
            (HandedOver, Sign::TurnBoundaryWithoutNonce) if self.enqueued => {
                self.enqueued = false;
                self.extend(now, lease_ms(true))
            }
            (HandedOver, Sign::TurnBoundaryWithoutNonce) => self.give_back(),
            (HandedOver, Sign::EnqueueSeen) => {
                self.enqueued = true;
                self.extend(now, lease_ms(true))
            }
            // No evidence, but the session is idle from now on: a lease for a busy one would be too long a wait.
            (HandedOver, Sign::TurnEnded) => {
                self.lease_until = self.lease_until.min(now.plus(IDLE_EVIDENCE_MS));
                Effect::default()
            }
            (HandedOver, Sign::LeaseDue(_)) if self.transcript.is_none() => self.give_up_asking(),
            (HandedOver, Sign::LeaseDue(Quiet::Busy)) => self.extend(now, lease_ms(true)),
            (HandedOver, Sign::LeaseDue(Quiet::IdleSince(idle))) => {
                // Five seconds of idleness since the hand-over; a clock set back starts them anew.
                let since = idle.max(self.handed_at.unwrap_or(now)).min(now);
                let proof_at = since.plus(IDLE_EVIDENCE_MS);
                if now >= proof_at {
                    self.give_back()
                } else {
                    self.lease_until = proof_at;
                    Effect::default()
                }
            }

            (Claimed, Sign::EnqueueSeen | Sign::TurnBoundaryWithoutNonce | Sign::TurnEnded)
            | (HandedOver, Sign::HandedOver { .. })
            | (
                Unconfirmed,
                Sign::HandedOver { .. }
                | Sign::EnqueueSeen
                | Sign::TurnBoundaryWithoutNonce
                | Sign::ProcessGone
                | Sign::LeaseDue(_)
                | Sign::TurnEnded,
            )
            | (
                Seen,
                Sign::HandedOver { .. }
                | Sign::EvidenceSeen { .. }
                | Sign::EnqueueSeen
                | Sign::TurnBoundaryWithoutNonce
                | Sign::OutputDiscarded
                | Sign::ProcessGone
                | Sign::LeaseDue(_),
            ) => Effect::default(),
        }
    }

    fn seen(&mut self, turn_ended: bool) -> Effect {
        if turn_ended {
            self.state = ClaimState::Done;
            return Effect::reached([Stage::Seen, Stage::Done]);
        }
        self.state = ClaimState::Seen;
        Effect::reached([Stage::Seen])
    }

    fn give_back(&mut self) -> Effect {
        self.state = ClaimState::Returned;
        Effect {
            receipts: Vec::new(),
            requeue: true,
        }
    }

    fn give_up_asking(&mut self) -> Effect {
        self.state = ClaimState::Unconfirmed;
        Effect::default()
    }

    fn extend(&mut self, now: WallMs, ms: i64) -> Effect {
        self.lease_until = now.plus(ms);
        Effect::default()
    }
}

const fn lease_ms(busy: bool) -> i64 {
    if busy {
        limits::CLAIM_LEASE_BUSY_MS.cast_signed()
    } else {
        limits::CLAIM_LEASE_MS.cast_signed()
    }
}

#[cfg(test)]
mod tests;
