//! One daemon per data folder: an advisory lock held for the daemon's life.
//!
//! The kernel releases the lock with the process, so a crash leaves nothing stale. The file also holds the holder's
//! pid, for people: nothing decides by it, because a pid in a file may long belong to another process.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The lock's file inside the daemon's folder.
pub const FILE: &str = "lock";

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon serves this data folder.
    #[error("a daemon is already running for this data folder{}; end that one first, or give this one a `--data-dir` of its own", holder(*pid))]
    Held {
        /// Its pid as it noted it, for people.
        pid: Option<u32>,
    },
    /// The file cannot be used.
    #[error("cannot lock `{}`: {source}; check that the folder is on this machine's disk and belongs to you", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// The lock; released when it is dropped, or with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of this file, without waiting.
    ///
    /// # Errors
    /// When another process holds it, or the file cannot be used.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok();
                return Err(LockError::Held {
                    pid: pid.and_then(|_| text.trim().parse().ok()),
                });
            }
            Err(e) => return Err(io(e.into())),
        }
        let note = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        note(&mut file).map_err(io)?;
        Ok(Self { _file: file })
    }

    /// Takes the lock of this file for a short change, waiting until its holder is done.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub(super) fn wait(path: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path).map_err(io)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| io(e.into()))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused_and_told_who_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let first = Lock::take(&path).unwrap();
        let Err(LockError::Held { pid }) = Lock::take(&path) else {
            panic!("the lock was taken twice");
        };
        assert_eq!(pid, Some(std::process::id()));
        drop(first);
        Lock::take(&path).unwrap();
    }

    #[test]
    fn a_stale_file_naming_a_foreign_process_does_not_keep_the_daemon_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, "1\n").unwrap();
        Lock::take(&path).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), own);
    }
}
