//! The rows of the queue as the rest of the daemon sees them: plain, neutral data.

use std::path::PathBuf;

use serde_json::Value;
use uuid::Uuid;

use crate::domain::{
    Activity, ClaimId, Cursor, Door, Envelope, EnvelopeId, EnvelopeKind, InstanceId, Priority,
    ProjectName, Receipt, Report, ReportBody, ReportKind, SessionId, SessionInfo, WallMs,
    WholeText,
};

/// What the file is, fixed at its birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreInfo {
    /// Names this life of the queue; `hello.instance`.
    pub instance: InstanceId,
    /// Names this life of the outbox.
    pub outbox_instance: InstanceId,
}

/// Where an envelope stands in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EnvelopeState {
    /// Waits, perhaps held for a reason.
    Queued,
    /// A door or a run has it.
    Claimed,
    /// Nothing follows; kept for a day so that it can be looked at.
    Terminal,
}

impl EnvelopeState {
    /// The word in the file and in `status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::Terminal => "terminal",
        }
    }

    pub(super) fn parse(s: &str) -> Option<Self> {
        [Self::Queued, Self::Claimed, Self::Terminal]
            .into_iter()
            .find(|v| v.as_str() == s)
    }
}

/// An envelope in the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvelopeRow {
    /// The envelope as it came.
    pub envelope: Envelope,
    /// Its order of arrival: order within a lane.
    pub ord: i64,
    /// Whether it came through the local API, so that the hub does not know it.
    pub local: bool,
    /// Where it stands.
    pub state: EnvelopeState,
    /// Why it waits, if it is held.
    pub hold_reason: Option<String>,
    /// The claim that has it.
    pub claim: Option<ClaimId>,
    /// When it was stored, Unix ms.
    pub received_at: WallMs,
    /// How often a run of it was begun that came to no end: the daemon died with it.
    pub starts: u32,
}

/// An envelope off the link, at its place in the mailbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    /// Its place; becomes the durable cursor.
    pub cursor: Cursor,
    /// The envelope.
    pub envelope: Envelope,
}

/// What storing an envelope did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is new and durable.
    New,
    /// Its id was taken before: nothing but the cursor changed.
    Duplicate,
}

/// Which envelopes to list; what is `None` or empty does not narrow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueFilter {
    /// The state; [`EnvelopeState::Queued`] if none is given.
    pub state: Option<EnvelopeState>,
    /// The kind.
    pub kind: Option<EnvelopeKind>,
    /// The addressed project.
    pub project: Option<ProjectName>,
    /// The addressed session: any of these ids (a session's own and its lineage).
    pub sessions: Vec<SessionId>,
    /// The lane.
    pub priority: Option<Priority>,
}

/// A report to be appended; its number is given by the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct NewReport {
    /// The envelope, session or project entry it is about.
    pub id: Uuid,
    /// What it tells.
    pub kind: ReportKind,
    /// When it happened, Unix ms.
    pub at: WallMs,
    /// The content.
    pub body: Value,
}

impl NewReport {
    /// The report with this content.
    #[must_use]
    pub fn new(id: Uuid, at: WallMs, body: ReportBody) -> Self {
        let (kind, body) = body.into_parts();
        Self { id, kind, at, body }
    }

    /// A receipt for an envelope.
    #[must_use]
    pub fn receipt(id: EnvelopeId, receipt: Receipt) -> Self {
        Self::new(id.0, receipt.at, ReportBody::Receipt(receipt))
    }
}

/// A claim as it stands in the file; the words of `state` and the shape of `detail` belong to whoever runs claims.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRow {
    /// The claim; its text is the nonce.
    pub id: ClaimId,
    /// The one door that holds it.
    pub door: Door,
    /// The session it is for; `None` for a run that begins a new one.
    pub session: Option<SessionId>,
    /// What it holds, in order.
    pub envelopes: Vec<EnvelopeId>,
    /// The transcript to look for evidence in.
    pub transcript: Option<PathBuf>,
    /// Where in the transcript to begin, bytes.
    pub offset: u64,
    /// When it was opened, Unix ms.
    pub opened_at: WallMs,
    /// When the lease ends, Unix ms.
    pub lease_until: WallMs,
    /// A word for where it stands.
    pub state: String,
    /// Whether nothing follows; a closed claim is kept for a day so that its nonce is still recognised.
    pub closed: bool,
    /// Turn info and what else the owner wants to keep.
    pub detail: Value,
}

/// A session as it stands in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Its present id.
    pub session_id: SessionId,
    /// Ids it had before, oldest first.
    pub lineage: Vec<SessionId>,
    /// The process that owns it.
    pub pid: Option<u32>,
    /// That process's start, clock ticks since boot.
    pub proc_start: Option<u64>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its transcript.
    pub transcript: Option<PathBuf>,
    /// The enabled project its folder belongs to.
    pub project: Option<ProjectName>,
    /// How it was started: `cli`, `sdk-cli`.
    pub entrypoint: Option<String>,
    /// What it is doing.
    pub activity: Activity,
    /// What tells so.
    pub reason: Option<String>,
    /// Its last sign of life, Unix ms.
    pub active_at: WallMs,
    /// Hash of the memory it was told last.
    pub told_memory: Option<String>,
    /// What else the registry wants to keep.
    pub detail: Value,
}

impl SessionRow {
    /// The session as the hub's directory shows it.
    #[must_use]
    pub fn info(&self) -> SessionInfo {
        SessionInfo {
            session_id: self.session_id,
            lineage: self.lineage.clone(),
            project: self.project.clone(),
            activity: self.activity,
            reason: self.reason.clone(),
            active_at: self.active_at,
        }
    }
}

/// A run as it stands in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// The envelope of the attempt.
    pub envelope: EnvelopeId,
    /// The task.
    pub task_id: EnvelopeId,
    /// Its attempt, from 1.
    pub attempt: u32,
    /// The child, once it was started.
    pub pid: Option<u32>,
    /// The child's start, clock ticks since boot.
    pub proc_start: Option<u64>,
    /// The session it works in.
    pub session_id: Option<SessionId>,
    /// When it was started, Unix ms.
    pub started_at: WallMs,
    /// A word for where it stands.
    pub state: String,
    /// Whether nothing follows.
    pub finished: bool,
    /// What else the runner wants to keep.
    pub detail: Value,
}

/// A text that is too long for a report, to be uploaded.
#[derive(Debug, Clone, PartialEq)]
pub struct NewUpload {
    /// The envelope of the attempt.
    pub envelope: EnvelopeId,
    /// Its task.
    pub task_id: EnvelopeId,
    /// Which attempt.
    pub attempt: u32,
    /// The text.
    pub text: String,
    /// Its length and hash.
    pub whole: WholeText,
    /// The reports that wait for it, in order.
    pub reports: Vec<NewReport>,
}

/// An upload under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The envelope of the attempt.
    pub envelope: EnvelopeId,
    /// Its task.
    pub task_id: EnvelopeId,
    /// Which attempt.
    pub attempt: u32,
    /// The text's length and hash.
    pub whole: WholeText,
    /// When it was begun, Unix ms.
    pub at: WallMs,
}

/// One step of a transaction, see [`super::Store::apply`].
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Append a report to the outbox.
    Report(NewReport),
    /// Say why a queued envelope waits, or with `None` that nothing holds it any more.
    Hold {
        /// The envelope; must be queued.
        id: EnvelopeId,
        /// The reason, a stable word.
        reason: Option<String>,
    },
    /// Give a claimed envelope back to the queue, at its old place; one that was called off meanwhile ends there.
    Requeue {
        /// The envelope.
        id: EnvelopeId,
        /// Why it waits now, a stable word.
        hold: Option<String>,
    },
    /// Nothing follows on this envelope; its reports in the same transaction are remembered as final.
    Finish(EnvelopeId),
    /// As `Finish`, but the whole transaction fails unless the envelope is still queued.
    FinishQueued(EnvelopeId),
    /// Open a claim; the whole transaction fails unless each of its envelopes is queued.
    OpenClaim(ClaimRow),
    /// Replace an open claim's row.
    UpdateClaim(ClaimRow),
    /// Insert or replace a session.
    Session(SessionRow),
    /// Forget a session's row, as after its id rotated into a successor's lineage.
    ForgetSession(SessionId),
    /// Start a run: claims the attempt's envelope if it is queued; the whole transaction fails if it is terminal or the attempt has a run.
    StartRun(RunRow),
    /// Replace a run's row.
    UpdateRun(RunRow),
    /// Forget the run of this attempt: it did nothing, says nothing about it, and the attempt may be started again.
    ForgetRun(EnvelopeId),
    /// As `ForgetRun`, for a run that the daemon died with: its start counts ([`EnvelopeRow::starts`]).
    LoseRun(EnvelopeId),
    /// Keep a text for upload, and its reports until it is up; with no room for it they are appended at once without it.
    Upload(NewUpload),
    /// Post an envelope of our own, as through the local API.
    Post(Envelope),
}

/// How many envelopes stand where, for `status`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueCounts {
    /// Waiting and not held.
    pub queued: u64,
    /// Held, by reason.
    pub held: Vec<(String, u64)>,
    /// At a door or in a run.
    pub claimed: u64,
    /// Done within the last day.
    pub terminal: u64,
    /// Reports that the hub does not have yet.
    pub outbox: u64,
    /// Reports that the hub refused for good.
    pub rejected_reports: u64,
}

/// Where the queue stands towards the hub: what `hello` says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// What the file is.
    pub info: StoreInfo,
    /// The durable cursor.
    pub last: Option<Cursor>,
    /// The number that the next report will carry.
    pub next_n: u64,
}

/// A report that was read back, for the link.
pub(super) fn report(n: u64, id: Uuid, kind: ReportKind, at: WallMs, body: Value) -> Report {
    Report {
        n,
        id,
        kind,
        at,
        body,
    }
}
