//! Whom the daemon trusts: the system's certificates, and those of a file that the user named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Why no connection can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The named file.
    #[error("`ca_file` `{}` holds no certificates that can be used: {detail}", path.display())]
    CaFile {
        /// The file.
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

/// The client's TLS: the system's certificates (or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`) and those of `ca_file`; blocks
/// while files are read.
///
/// # Errors
/// When `ca_file` is unusable, or no certificate was found at all.
pub fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    crate::auth::crypto::install();
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca_file {
        let bad = |detail: String| TlsError::CaFile {
            path: path.to_owned(),
            detail,
        };
        let certs = CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))?;
        for cert in certs {
            let cert = cert.map_err(|e| bad(e.to_string()))?;
            roots.add(cert).map_err(|e| bad(e.to_string()))?;
        }
        if roots.is_empty() {
            return Err(bad("no PEM certificate in it".into()));
        }
    }
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "some of the system's certificates could not be read");
    }
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_without_certificates_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        for content in [
            "",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            std::fs::write(&path, content).unwrap();
            let error = client_config(Some(&path)).unwrap_err();
            assert!(error.to_string().contains("ca.pem"), "{error}");
        }
        assert!(client_config(Some(&dir.path().join("missing"))).is_err());
    }
}
