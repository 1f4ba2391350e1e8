//! The words of the project: plain data, no I/O, no clock, no randomness.
//!
//! | word | type |
//! |---|---|
//! | one immutable message, task attempt or control item | [`Envelope`] |
//! | a position in a device's mailbox | [`Cursor`] |
//! | a stage an envelope reached, with time and evidence | [`Receipt`] |
//! | where a task stands | [`TaskState`] |
//! | what a device says upwards | [`Report`] |
//! | a Claude Code conversation as the hub knows it | [`SessionInfo`] |
//! | a folder that the user enabled | [`ProjectInfo`] |
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod code;
mod cursor;
mod envelope;
mod ids;
pub mod limits;
mod receipt;
mod report;
mod session;
mod task;
mod time;

pub use code::{Code, FieldFault, Problem};
pub use cursor::{Cursor, Epoch, Seq};
pub use envelope::{
    Address, CancelBody, Envelope, EnvelopeKind, MessageBody, Priority, RecallBody, Sender,
    TaskBody, Trust,
};
pub use ids::{
    AccountId, ClaimId, DeviceId, EnvelopeId, IdError, InstanceId, ProjectName, SessionId,
};
pub use receipt::{Door, Receipt, Stage};
pub use report::{NotAReport, Report, ReportBody, ReportKind};
pub use session::{Activity, ProjectInfo, SessionInfo};
pub use task::{
    PermissionDenial, PermissionMode, Progress, Reply, RunOptions, TaskResult, TaskState,
    TaskStatus, WholeText,
};
pub use time::{Ts, WallMs};
