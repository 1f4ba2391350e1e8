//! The hub's folder, `<data-dir>/hub`: `hub.db`, `keys/`, `life`, `used-tokens`, `lock`, `admin.sock`; 0700, the files 0600.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::HubError;
use crate::auth::keys::make_private_dir;

/// The folder, held by this process until it is dropped: only one process writes a store.
#[derive(Debug)]
pub(crate) struct Home {
    dir: PathBuf,
    /// Dropping the file releases the lock, also when the process is killed.
    _lock: File,
}

impl Home {
    /// Makes the folder if it is missing and takes its lock.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process holds it.
    pub(crate) fn open(data_dir: &Path) -> Result<Self, HubError> {
        let dir = data_dir.join("hub");
        let io = |source| HubError::DataDir {
            path: dir.clone(),
            source,
        };
        make_private_dir(&dir).map_err(io)?;
        #[cfg(unix)]
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .map_err(io)?;
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(dir.join("lock")).map_err(io)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                super::backup::finish(&dir).map_err(io)?;
                Ok(Self { dir, _lock: lock })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Err(HubError::Held { path: dir }),
            Err(e) => Err(io(e.into())),
        }
    }

    /// The folder itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The mark of the store's present life.
    pub(crate) fn life(&self) -> PathBuf {
        self.dir.join("life")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.dir.join("hub.db")
    }

    /// The file of [`super::used`].
    pub(crate) fn used_tokens(&self) -> PathBuf {
        self.dir.join("used-tokens")
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.dir.join("keys")
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        admin_socket(&self.dir)
    }
}

pub(crate) fn admin_socket(hub_dir: &Path) -> PathBuf {
    hub_dir.join("admin.sock")
}
