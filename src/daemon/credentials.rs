//! Who this device is at its hub: `device.json` and the private key, both 0600 in the daemon's folder.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::auth::keys::check_private;
use crate::auth::{AuthError, DeviceKey, KeyError, Token, mint_connect};
use crate::config::HubUrl;
use crate::domain::{AccountId, DeviceId, WallMs};
use crate::local::write_private;

const FILE: &str = "device.json";
const KEY_FILE: &str = "device.key";
const REVOKED_KEY_FILE: &str = "device.key.revoked";
/// Its presence says that a person moved the device to this folder.
const TAKE_OVER: &str = "take-over";
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Why the device's credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The private key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file cannot be read or written.
    #[error("cannot use `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is damaged.
    #[error("`{}` is damaged: {detail}; run `remote-collab login` again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
}

/// What enrolment gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    /// The hub's address.
    pub hub: HubUrl,
    /// The hub's own name: the audience of what this device signs.
    pub hub_id: String,
    /// The device's name at the hub.
    pub device: DeviceId,
    /// The account it belongs to.
    pub account: AccountId,
}

/// The enrolment with the key that proves it.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// What enrolment gave.
    pub enrolment: Enrolment,
    key: Arc<DeviceKey>,
}

impl Credentials {
    /// The enrolment with its key.
    #[must_use]
    pub fn new(enrolment: Enrolment, key: DeviceKey) -> Self {
        Self {
            enrolment,
            key: Arc::new(key),
        }
    }

    /// The credentials in the daemon's folder; `None` before `login`.
    ///
    /// # Errors
    /// When a file is exposed, damaged or cannot be read.
    pub fn load(dir: &Path) -> Result<Option<Self>, CredentialsError> {
        let path = dir.join(FILE);
        let io = |source| CredentialsError::Io {
            path: path.clone(),
            source,
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        check_private(&file, &path)?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES)
            .read_to_string(&mut text)
            .map_err(io)?;
        let enrolment = serde_json::from_str(&text).map_err(|e| CredentialsError::Damaged {
            path: path.clone(),
            detail: e.to_string(),
        })?;
        let key = DeviceKey::load(&dir.join(KEY_FILE))?;
        Ok(Some(Self::new(enrolment, key)))
    }

    /// When the enrolment was written last; `None` before `login`.
    #[must_use]
    pub fn written_at(dir: &Path) -> Option<SystemTime> {
        let meta = std::fs::metadata(dir.join(FILE)).ok()?;
        meta.modified().ok()
    }

    /// The device's key in the daemon's folder, made first if it is missing.
    ///
    /// # Errors
    /// When the file is exposed, no key, or cannot be made.
    pub fn key(dir: &Path) -> Result<DeviceKey, CredentialsError> {
        Ok(DeviceKey::load_or_create(&dir.join(KEY_FILE))?)
    }

    /// A new key in place of one that a hub revoked, which is kept aside.
    ///
    /// # Errors
    /// When the files cannot be changed.
    pub fn replace_key(dir: &Path) -> Result<DeviceKey, CredentialsError> {
        let path = dir.join(KEY_FILE);
        match std::fs::rename(&path, dir.join(REVOKED_KEY_FILE)) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(CredentialsError::Io { path, source })
            }
            _ => Self::key(dir),
        }
    }

    /// Keeps an enrolment beside the key.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(dir: &Path, enrolment: &Enrolment) -> Result<(), CredentialsError> {
        let path = dir.join(FILE);
        let json = serde_json::to_vec_pretty(enrolment).unwrap_or_default();
        write_private(&path, &json).map_err(|source| CredentialsError::Io { path, source })
    }

    /// Notes that a person moved the device to this folder, for the daemon that connects next.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn ask_take_over(dir: &Path) -> Result<(), CredentialsError> {
        let path = dir.join(TAKE_OVER);
        write_private(&path, b"").map_err(|source| CredentialsError::Io { path, source })
    }

    /// Whether a person moved the device to this folder and no connection has told the hub yet.
    #[must_use]
    pub fn is_take_over_asked(dir: &Path) -> bool {
        dir.join(TAKE_OVER).exists()
    }

    /// The hub knows that the device was moved here.
    pub fn forget_take_over(dir: &Path) {
        if let Err(error) = std::fs::remove_file(dir.join(TAKE_OVER))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "the note of a take-over stays behind");
        }
    }

    /// A fresh connect JWT; `now` is the hub's time as far as the device knows it.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn mint(&self, now: WallMs) -> Result<Token, AuthError> {
        let who = &self.enrolment;
        mint_connect(&self.key, &who.device, &who.hub_id, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enrolment() -> Enrolment {
        Enrolment {
            hub: "https://hub.example/base".parse().unwrap(),
            hub_id: "hub-1".into(),
            device: DeviceId::new("laptop").unwrap(),
            account: AccountId::new("default").unwrap(),
        }
    }

    #[test]
    fn credentials_come_back_as_they_were_saved() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Credentials::load(dir.path()).unwrap().is_none());
        let key = Credentials::key(dir.path()).unwrap();
        Credentials::save(dir.path(), &enrolment()).unwrap();
        let loaded = Credentials::load(dir.path()).unwrap().unwrap();
        assert_eq!(loaded.enrolment, enrolment());
        assert_eq!(loaded.key.public(), key.public());
        let now = WallMs(1_000_000);
        let token = loaded.mint(now).unwrap();
        let device = &enrolment().device;
        crate::auth::verify_connect(key.public(), device, "hub-1", token.expose(), now).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn an_exposed_file_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        Credentials::key(dir.path()).unwrap();
        Credentials::save(dir.path(), &enrolment()).unwrap();
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(dir.path().join(FILE), open).unwrap();
        let refused = Credentials::load(dir.path()).unwrap_err();
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }
}
