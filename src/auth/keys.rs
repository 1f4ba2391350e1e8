//! Key files: PKCS#8 PEM, mode 0600, made atomically, refused when anybody else could read or replace them.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretSlice};

use super::crypto::{self, CryptoError};
use crate::domain::IdError;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
/// A key file is one short PEM block; anything larger is something else.
const MAX_FILE_BYTES: u64 = 8 << 10;

/// Why a key cannot be used; every variant names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("cannot use the key file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Other users can read or write the file.
    #[error(
        "the key file {path} is open to other users (mode {mode:o}): run `chmod 600` on it, or replace the key if it may have been read"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file belongs to somebody else.
    #[error("the key file {path} belongs to user {owner}, not to the user who runs this")]
    WrongOwner {
        /// The file.
        path: PathBuf,
        /// The owner's uid.
        owner: u32,
    },
    /// The file holds no Ed25519 key: empty, cut, a placeholder, or another kind.
    #[error(
        "{path} holds no Ed25519 private key (PKCS#8 PEM): restore it from a backup, or move it away to have a new one made"
    )]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// The provider failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// An Ed25519 public key; its text form is the base64url of its 32 bytes (a JWK's `x`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The raw 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The RFC 7638 thumbprint (SHA-256, base64url): the key's `kid`.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{self}"}}"#);
        URL_SAFE_NO_PAD.encode(crypto::sha256(canonical.as_bytes()))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        URL_SAFE_NO_PAD
            .decode(s)
            .ok()
            .and_then(|b| <[u8; 32]>::try_from(b).ok())
            .filter(|b| b.iter().any(|x| *x != 0))
            .map(Self)
            .ok_or(IdError {
                what: "public key",
                rule: "the base64url (no padding) of an Ed25519 public key of 32 bytes",
            })
    }
}

/// A private key with its public half; `Debug` shows the public half only.
struct Pair {
    pkcs8: SecretSlice<u8>,
    public: PublicKey,
}

impl Pair {
    fn generate() -> Result<Self, CryptoError> {
        Self::from_der(crypto::generate_ed25519()?)
    }

    fn from_der(der: Vec<u8>) -> Result<Self, CryptoError> {
        let public = PublicKey(crypto::public_of(&der)?);
        Ok(Self {
            pkcs8: der.into(),
            public,
        })
    }

    fn to_pem(&self) -> String {
        let body = STANDARD.encode(self.pkcs8.expose_secret());
        let mut pem = String::from(BEGIN);
        for (i, c) in body.chars().enumerate() {
            if i % 64 == 0 {
                pem.push('\n');
            }
            pem.push(c);
        }
        pem.push('\n');
        pem.push_str(END);
        pem.push('\n');
        pem
    }

    fn load(path: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        check_private(&file, path)?;
        let mut text = String::new();
        let not_a_key = || KeyError::NotAKey {
            path: path.to_owned(),
        };
        match file.take(MAX_FILE_BYTES).read_to_string(&mut text) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => return Err(not_a_key()),
            Err(e) => return Err(io(e)),
        }
        let text: SecretSlice<u8> = text.into_bytes().into();
        let der = std::str::from_utf8(text.expose_secret())
            .ok()
            .and_then(|t| t.trim().strip_prefix(BEGIN)?.strip_suffix(END))
            .map(|b| b.split_ascii_whitespace().collect::<String>())
            .and_then(|b| STANDARD.decode(b).ok())
            .ok_or_else(not_a_key)?;
        Self::from_der(der).map_err(|_| not_a_key())
    }

    /// Makes the file, whole or not at all; an existing one is left alone and loaded instead.
    fn create(path: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io {
            path: path.to_owned(),
            source,
        };
        let pair = Self::generate()?;
        let dir = path.parent().unwrap_or_else(|| Path::new("."));
        make_private_dir(dir).map_err(io)?;
        // Named temporary files are created with mode 0600.
        let mut tmp = tempfile::NamedTempFile::new_in(dir).map_err(io)?;
        tmp.write_all(pair.to_pem().as_bytes()).map_err(io)?;
        tmp.as_file().sync_all().map_err(io)?;
        match tmp.persist_noclobber(path) {
            Ok(_) => {}
            Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Self::load(path);
            }
            Err(e) => return Err(io(e.error)),
        }
        File::open(dir).and_then(|d| d.sync_all()).map_err(io)?;
        Ok(pair)
    }

    fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match Self::load(path) {
            Err(KeyError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Self::create(path)
            }
            other => other,
        }
    }
}

/// Makes a directory that only this user can enter, with its parents; an existing one is left as it is.
///
/// # Errors
/// When the file system refuses.
pub fn make_private_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Refuses a secret file that other users can read, write or own.
///
/// # Errors
/// When the file is exposed or belongs to somebody else.
pub fn check_private(file: &File, path: &Path) -> Result<(), KeyError> {
    let meta = file.metadata().map_err(|source| KeyError::Io {
        path: path.to_owned(),
        source,
    })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let mode = meta.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(KeyError::WrongOwner {
                path: path.to_owned(),
                owner: meta.uid(),
            });
        }
    }
    #[cfg(not(unix))]
    drop(meta);
    Ok(())
}

/// A device's own key: signs its connect JWTs.
pub struct DeviceKey(Pair);

impl DeviceKey {
    /// The key in this file.
    ///
    /// # Errors
    /// When the file is missing, exposed, somebody else's, or no key.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Pair::load(path).map(Self)
    }

    /// The key in this file, which is made first when it is missing.
    ///
    /// # Errors
    /// As [`Self::load`], or when the file cannot be made.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        Pair::load_or_create(path).map(Self)
    }

    /// A key that lives in memory only.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(Pair::generate()?))
    }

    /// The public half, as enrolment sends it.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.0.public
    }

    pub(super) fn pkcs8(&self) -> &[u8] {
        self.0.pkcs8.expose_secret()
    }
}

impl fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceKey({})", self.0.public)
    }
}

/// The hub's keys: the newest signs, all of them verify, so that a rotation invalidates nothing.
///
/// A token may live for ten years, and a hub that was restored knows of no token that was made after its backup: so no
/// key is ever dropped by itself. Whoever wants an older one gone, with every token that it signed, takes its file away
/// while the hub is stopped.
pub struct HubKeys {
    dir: Option<PathBuf>,
    /// Oldest first; never empty.
    pairs: Vec<Pair>,
    /// The number of the newest: files of older ones may have been taken away.
    newest: u32,
}

impl HubKeys {
    /// The keys in this folder (`000001.pem`, `000002.pem`, …), the first of which is made when there is none.
    ///
    /// # Errors
    /// When a file is exposed, somebody else's or no key, or the folder cannot be used.
    pub fn open(dir: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io {
            path: dir.to_owned(),
            source,
        };
        make_private_dir(dir).map_err(io)?;
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
            .map_err(io)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(io)?
            .into_iter()
            .map(|e| e.path())
            .filter(|p| number_of(p).is_some())
            .collect();
        files.sort();
        if files.is_empty() {
            files.push(dir.join("000001.pem"));
        }
        let pairs = files
            .iter()
            .map(|p| Pair::load_or_create(p))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            dir: Some(dir.to_owned()),
            pairs,
            newest: files.last().and_then(|p| number_of(p)).unwrap_or(0),
        })
    }

    /// One key that lives in memory only.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self {
            dir: None,
            pairs: vec![Pair::generate()?],
            newest: 1,
        })
    }

    /// Adds a key that signs from now on; the older ones go on verifying.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn rotate(&mut self) -> Result<(), KeyError> {
        let pair = match &self.dir {
            None => Pair::generate()?,
            Some(dir) => Pair::create(&dir.join(format!("{:06}.pem", self.newest + 1)))?,
        };
        self.newest += 1;
        self.pairs.push(pair);
        Ok(())
    }

    /// The files of the keys, by name, for a backup.
    #[must_use]
    pub(crate) fn export(&self) -> Vec<(String, Vec<u8>)> {
        let files = self.pairs.iter().zip(1_u32..);
        files
            .map(|(pair, n)| (format!("{n:06}.pem"), pair.to_pem().into_bytes()))
            .collect()
    }

    /// The public keys, newest first.
    pub fn publics(&self) -> impl Iterator<Item = &PublicKey> {
        self.pairs.iter().rev().map(|p| &p.public)
    }

    /// The `kid` and PKCS#8 of the key that signs.
    pub(super) fn signer(&self) -> Option<(String, &[u8])> {
        let pair = self.pairs.last()?;
        Some((pair.public.thumbprint(), pair.pkcs8.expose_secret()))
    }

    /// The public key with this `kid`.
    pub(super) fn by_kid(&self, kid: &str) -> Option<&PublicKey> {
        self.pairs
            .iter()
            .map(|p| &p.public)
            .find(|p| p.thumbprint() == kid)
    }
}

impl fmt::Debug for HubKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.pairs.iter().map(|p| &p.public))
            .finish()
    }
}

fn number_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".pem")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_file_is_private_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/device.pem");
        let made = DeviceKey::load_or_create(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(DeviceKey::load(&path).unwrap().public(), made.public());
        assert_eq!(
            DeviceKey::load_or_create(&path).unwrap().public(),
            made.public()
        );
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1
        );
    }

    #[test]
    fn an_exposed_empty_or_placeholder_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.pem");
        DeviceKey::load_or_create(&path).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o644] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(
                DeviceKey::load(&path),
                Err(KeyError::Exposed { .. })
            ));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for text in [
            "",
            "changeme",
            "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----",
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(
                matches!(
                    DeviceKey::load_or_create(&path),
                    Err(KeyError::NotAKey { .. })
                ),
                "{text:?}"
            );
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(
            DeviceKey::load(&path),
            Err(KeyError::NotAKey { .. })
        ));
    }

    #[test]
    fn debug_shows_no_private_half() {
        let key = DeviceKey::generate().unwrap();
        let secret = URL_SAFE_NO_PAD.encode(&key.pkcs8()[16..]);
        assert!(!format!("{key:?}").contains(&secret));
        assert!(format!("{key:?}").contains(&key.public().to_string()));
    }

    #[test]
    fn rotation_keeps_the_older_keys() {
        let dir = tempfile::tempdir().unwrap();
        let mut keys = HubKeys::open(dir.path()).unwrap();
        let (old, _) = keys.signer().map(|(k, _)| (k, ())).unwrap();
        keys.rotate().unwrap();
        let reopened = HubKeys::open(dir.path()).unwrap();
        assert!(reopened.by_kid(&old).is_some());
        assert_ne!(reopened.signer().unwrap().0, old);
        assert_eq!(reopened.publics().count(), 2);
        // An older key that was taken away is not known, and the next one does not take a number that is in use.
        std::fs::remove_file(dir.path().join("000001.pem")).unwrap();
        let mut keys = HubKeys::open(dir.path()).unwrap();
        assert!(keys.by_kid(&old).is_none());
        let signs = keys.signer().unwrap().0;
        keys.rotate().unwrap();
        assert_ne!(keys.signer().unwrap().0, signs);
        let reopened = HubKeys::open(dir.path()).unwrap();
        assert_eq!(reopened.signer().unwrap().0, keys.signer().unwrap().0);
        assert_eq!(reopened.publics().count(), 2);
    }

    #[test]
    fn the_thumbprint_is_the_one_of_rfc_8037() {
        let key: PublicKey = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
            .parse()
            .unwrap();
        assert_eq!(
            key.thumbprint(),
            "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
        );
        assert!("".parse::<PublicKey>().is_err());
        assert!("AAAA".parse::<PublicKey>().is_err());
    }
}
