//! Whom the daemon trusts: the system's certificates, and those that the user named.
//!
//! The key `ca_file`, `SSL_CERT_FILE` and `SSL_CERT_DIR` all add to the system's certificates and replace none: a private CA stands
//! beside the public ones, for the WebSocket and for HTTP alike. What is named has to be usable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use crate::config::CaSources;

/// Where systems keep their certificates in one file. The library's own search ends at `SSL_CERT_FILE` and `SSL_CERT_DIR`
/// where they are set.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why no connection can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// What the user named.
    #[error("`{named}` `{}` holds no certificates that can be used: {detail}", path.display())]
    Ca {
        /// The key or variable that names it.
        named: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// No certificate at all.
    #[error(
        "no trusted certificates were found; install your system's `ca-certificates`, or set `ca_file` or SSL_CERT_FILE"
    )]
    NoRoots,
}

/// The client's TLS: the system's certificates and these; blocks while files are read.
///
/// # Errors
/// When what was named is unusable, or no certificate was found at all.
pub(crate) fn client_config(ca: &CaSources) -> Result<Arc<ClientConfig>, TlsError> {
    crate::auth::crypto::install();
    let mut roots = RootCertStore::empty();
    for (named, file) in [("ca_file", &ca.file), ("SSL_CERT_FILE", &ca.env_file)] {
        if let Some(path) = file {
            add_file(&mut roots, named, path)?;
        }
    }
    add_dirs(&mut roots, &ca.env_dirs)?;
    roots.add_parsable_certificates(system(ca));
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn add_file(roots: &mut RootCertStore, named: &'static str, path: &Path) -> Result<(), TlsError> {
    let bad = |detail: String| TlsError::Ca {
        named,
        path: path.to_owned(),
        detail,
    };
    let certs: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| bad(e.to_string()))?;
    let (added, _) = roots.add_parsable_certificates(certs);
    if added == 0 {
        return Err(bad("no PEM certificate in it".into()));
    }
    Ok(())
}

/// Of several folders some may be missing, as variables that fit many systems name them.
fn add_dirs(roots: &mut RootCertStore, dirs: &[PathBuf]) -> Result<(), TlsError> {
    let mut detail = "no PEM certificate in it".to_owned();
    let mut added = 0;
    for dir in dirs {
        let found = load_certs_from_paths(None, Some(dir));
        if let Some(error) = found.errors.first() {
            detail = error.to_string();
            tracing::debug!(dir = %dir.display(), %error, "not every file of SSL_CERT_DIR holds certificates");
        }
        added += roots.add_parsable_certificates(found.certs).0;
    }
    match dirs.first() {
        Some(path) if added == 0 => Err(TlsError::Ca {
            named: "SSL_CERT_DIR",
            path: path.clone(),
            detail,
        }),
        _ => Ok(()),
    }
}

/// The system's own certificates.
fn system(ca: &CaSources) -> Vec<CertificateDer<'static>> {
    let named = ca.env_file.is_some() || !ca.env_dirs.is_empty();
    let bundle = BUNDLES.iter().map(Path::new).find(|p| p.is_file());
    let found = match bundle {
        Some(bundle) if named => load_certs_from_paths(Some(bundle), None),
        _ => load_native_certs(),
    };
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificates could not be read");
    }
    found.certs
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
