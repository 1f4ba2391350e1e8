//! Why the queue could not do something.

use std::path::PathBuf;

use crate::domain::{ClaimId, Code, EnvelopeId};

/// What went wrong in the queue, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The file or its folder cannot be opened or created.
    #[error("cannot open the queue `{}`: {detail}; check that the folder exists and belongs to you", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's words.
        detail: String,
    },
    /// The file is damaged.
    #[error("the queue `{}` is damaged: {detail}; move it away and start again: the hub sends what is not done once more", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What SQLite found.
        detail: String,
    },
    /// The file is some other program's database.
    #[error("`{}` is a database of another program; use another data directory", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a later version.
    #[error("the queue `{}` has version {found}, this program knows up to {known}; install the newer remote-collab", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version this program reads.
        known: i64,
    },
    /// Another program holds the file's lock for longer than the busy time-out.
    #[error("the queue is locked by another program; nothing was stored")]
    Busy,
    /// No space is left.
    #[error("the disk is full; nothing was stored, free some space")]
    DiskFull,
    /// The file can be read but not written.
    #[error("the queue cannot be written: {0}; check the file's owner and the mount")]
    ReadOnly(String),
    /// The queue holds as many envelopes as it may.
    #[error("the queue is full ({limit} envelopes wait); nothing was stored")]
    Full {
        /// How many may wait.
        limit: u64,
    },
    /// Somebody else claimed or finished the envelope first; nothing of the change was done.
    #[error("envelope {0} is not waiting any more")]
    NotQueued(EnvelopeId),
    /// The attempt already has a run; nothing of the change was done.
    #[error("attempt {attempt} of task {task} already has a run")]
    RunExists {
        /// The task.
        task: EnvelopeId,
        /// Its attempt.
        attempt: u32,
    },
    /// No such claim is open; nothing of the change was done.
    #[error("claim {0} is not open")]
    UnknownClaim(ClaimId),
    /// The writer is gone: the daemon is stopping.
    #[error("the queue is closed")]
    Closed,
    /// Anything else SQLite says.
    #[error("the queue failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// The stable code that a client sees.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::DiskFull => Code::DiskFull,
            Self::Full { .. } => Code::MailboxFull,
            Self::NotQueued(_) | Self::RunExists { .. } | Self::UnknownClaim(_) => Code::Conflict,
            Self::Open { .. }
            | Self::Corrupt { .. }
            | Self::Foreign { .. }
            | Self::Newer { .. }
            | Self::Busy
            | Self::ReadOnly(_)
            | Self::Closed
            | Self::Failed(_) => Code::StoreUnavailable,
        }
    }
}
