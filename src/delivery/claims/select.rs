//! Which queued envelopes the next claim of a session takes.

use std::collections::BTreeSet;

use crate::domain::{EnvelopeId, Priority};

/// Continuations of ours in a row without a prompt of the user. The CLI breaks a chain after eight, and its marker
/// (`stop_hook_active`) already keeps us to one per turn; this is the second lock, should the marker ever fail.
pub const MAX_CONTINUATIONS: u32 = 4;

/// A hook event at which mail may be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// `PostToolUse` and `PostToolUseFailure`: urgent mail only.
    Tool,
    /// `Stop`: handing over continues the turn.
    Stop {
        /// The event's `stop_hook_active`: the turn is itself a continuation.
        active: bool,
        /// Continuations of ours since the user's last prompt.
        continuations: u32,
    },
    /// `UserPromptSubmit`, or a door of our own that wakes the session.
    Prompt,
}

/// What of a session bears on the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionView {
    /// A one-shot `-p` session of the user: only mail addressed by id.
    pub one_shot: bool,
    /// One of our runs: no mail.
    pub own_run: bool,
    /// The event came from a subagent (`agent_id`): no mail.
    pub subagent: bool,
}

/// One envelope in the session's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Its name.
    pub id: EnvelopeId,
    /// Its lane.
    pub lane: Priority,
    /// Whether it names the session, and not only its project or device.
    pub by_id: bool,
    /// The length of its text for the model, see `budget::length`.
    pub length: usize,
}

/// What a claim takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Whole envelopes, urgent first, each lane in the queue's order.
    pub take: Vec<(EnvelopeId, Priority)>,
    /// How many more wait for this session, to be announced.
    pub rest: usize,
}

/// Chooses whole envelopes for one hook output; `queue` is in order of arrival, `open` names the lanes that an open
/// claim of this session keeps, `budget` is what the texts may take together, in the measure of [`Queued::length`].
///
/// The first envelope that does not fit ends the choice: nothing overtakes within a lane, nothing less pressing
/// overtakes the more pressing. An envelope longer than the budget alone has to come in as its preview.
#[must_use]
pub fn select(
    queue: &[Queued],
    session: SessionView,
    open: &BTreeSet<Priority>,
    event: Boundary,
    budget: usize,
) -> Selection {
    if session.own_run || session.subagent {
        return Selection::default();
    }
    let mine = |q: &&Queued| q.by_id || !session.one_shot;
    let waiting = queue.iter().filter(mine).count();
    let lanes: &[Priority] = match event {
        Boundary::Tool => &[Priority::Urgent],
        Boundary::Stop {
            active: false,
            continuations: 0..MAX_CONTINUATIONS,
        }
        | Boundary::Prompt => &[Priority::Urgent, Priority::Normal, Priority::Low],
        Boundary::Stop { .. } => &[],
    };
    let mut left = budget;
    let mut take = Vec::new();
    'lanes: for lane in lanes.iter().filter(|l| !open.contains(l)) {
        for q in queue.iter().filter(mine).filter(|q| q.lane == *lane) {
            match left.checked_sub(q.length) {
                Some(rest) => left = rest,
                None => break 'lanes,
            }
            take.push((q.id, q.lane));
        }
    }
    let rest = waiting - take.len();
    Selection { take, rest }
}
