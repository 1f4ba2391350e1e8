//! The hub's own TLS: a certificate and its key from two PEM files, taken anew when they change.
//!
//! Both files are checked before the hub listens: there, readable, a key that only its owner can read, the two belong together,
//! in force today. Before each handshake the files' times are looked at; a changed pair is checked in the same way and then
//! used, so that a renewal needs no restart. A pair that cannot be used is told in the log once, and the one before stays: a
//! renewal that writes one file after the other passes through such a state.

mod validity;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::validity::{Date, Validity};
use super::clock::wall;
use crate::auth::keys::check_private;
use crate::auth::{KeyError, crypto};
use crate::domain::WallMs;

/// The largest file that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The two PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those between it and the root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why a certificate and a key cannot be used; every variant names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("the TLS file {} cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No certificate in the file.
    #[error("{} holds no certificate: it has to begin with `-----BEGIN CERTIFICATE-----`", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A certificate that cannot be read or used.
    #[error("the certificate in {} cannot be used: {detail}", path.display())]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The certificate's time is over.
    #[error("the certificate in {} expired on {since}: renew it", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// Its last day.
        since: String,
    },
    /// The certificate's time has not come.
    #[error("the certificate in {} is not valid before {from}: look at this machine's clock, or wait", path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// Its first day.
        from: String,
    },
    /// The key is exposed.
    #[error(transparent)]
    Exposed(KeyError),
    /// No key in the file.
    #[error("{} holds no private key that can be used: {detail}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The two do not belong together.
    #[error("the key in {} is not the one of the certificate in {}", key.display(), cert.display())]
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
}

/// What tells one state of a file from another.
type Mark = Option<(SystemTime, u64, [i64; 3])>;

#[derive(Debug)]
struct Current {
    pair: Arc<CertifiedKey>,
    /// The files' marks when they were looked at last.
    marks: [Mark; 2],
}

/// The pair in use.
#[derive(Debug)]
struct Served {
    files: TlsFiles,
    current: Mutex<Current>,
}

/// Speaks TLS with whoever connects.
#[derive(Clone)]
pub(super) struct ServerTls {
    served: Arc<Served>,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("files", &self.served.files)
            .finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Reads and checks both files; blocks while it does.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(super) fn open(files: &TlsFiles) -> Result<Self, TlsError> {
        crypto::install();
        let marks = marks(files);
        let served = Arc::new(Served {
            current: Mutex::new(Current {
                pair: Arc::new(load(files, wall())?),
                marks,
            }),
            files: files.clone(),
        });
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&served) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            served,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        })
    }

    /// One handshake, with the files as they are now; the caller bounds the time.
    pub(super) async fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let served = Arc::clone(&self.served);
        tokio::task::spawn_blocking(move || served.refresh())
            .await
            .map_err(io::Error::other)?;
        self.acceptor.accept(tcp).await
    }
}

impl Served {
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the files anew if they changed.
    fn refresh(&self) {
        let now = marks(&self.files);
        if self.current().marks == now {
            return;
        }
        let loaded = load(&self.files, wall());
        let mut current = self.current();
        if current.marks == now {
            // Another handshake was faster.
            return;
        }
        current.marks = now;
        match loaded {
            Ok(pair) => {
                current.pair = Arc::new(pair);
                tracing::info!(cert = %self.files.cert.display(), "a new certificate is in use");
            }
            Err(e) => tracing::warn!(
                error = %e,
                "the changed certificate cannot be used; the one before stays in use"
            ),
        }
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current().pair))
    }
}

fn marks(files: &TlsFiles) -> [Mark; 2] {
    [&files.cert, &files.key].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        // The change time tells a key that was closed to others after it was written.
        #[cfg(unix)]
        let node = {
            use std::os::unix::fs::MetadataExt as _;
            [meta.ino().cast_signed(), meta.ctime(), meta.ctime_nsec()]
        };
        #[cfg(not(unix))]
        let node = [0; 3];
        Some((meta.modified().ok()?, meta.len(), node))
    })
}

/// The pair of these files, checked.
fn load(files: &TlsFiles, now: WallMs) -> Result<CertifiedKey, TlsError> {
    let (cert, key) = (&files.cert, &files.key);
    let bad = |detail: String| TlsError::BadCertificate {
        path: cert.clone(),
        detail,
    };
    let text = read(&open(cert)?, cert)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| bad(e.to_string()))?;
    let first = chain
        .first()
        .ok_or_else(|| TlsError::NoCertificate { path: cert.clone() })?;
    let valid = Validity::of(first).ok_or_else(|| bad("it is not X.509".to_owned()))?;
    check_time(&valid, now, cert)?;

    let file = open(key)?;
    check_private(&file, key).map_err(TlsError::Exposed)?;
    let bad_key = |detail: String| TlsError::BadKey {
        path: key.clone(),
        detail,
    };
    let text = secrecy::SecretSlice::from(read(&file, key)?);
    let der = PrivateKeyDer::from_pem_slice(secrecy::ExposeSecret::expose_secret(&text))
        .map_err(|_| bad_key("no PEM private key without a passphrase in it".to_owned()))?;
    let provider = CryptoProvider::get_default().ok_or_else(|| bad_key("no TLS".to_owned()))?;
    CertifiedKey::from_der(chain, der, provider).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
            cert: cert.clone(),
            key: key.clone(),
        },
        rustls::Error::InvalidCertificate(_) => bad(e.to_string()),
        other => bad_key(other.to_string()),
    })
}

fn check_time(valid: &Validity, now: WallMs, path: &Path) -> Result<(), TlsError> {
    let now = Date::from_unix(now.0.div_euclid(1000));
    if now > valid.until {
        return Err(TlsError::Expired {
            path: path.to_owned(),
            since: valid.until.to_string(),
        });
    }
    if now < valid.from {
        return Err(TlsError::NotYetValid {
            path: path.to_owned(),
            from: valid.from.to_string(),
        });
    }
    Ok(())
}

fn open(path: &Path) -> Result<File, TlsError> {
    let io = |source| TlsError::Io {
        path: path.to_owned(),
        source,
    };
    // A pipe would keep its reader waiting for ever.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::other("it is no regular file")));
    }
    File::open(path).map_err(io)
}

fn read(file: &File, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    match file.take(MAX_FILE).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(TlsError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests;
