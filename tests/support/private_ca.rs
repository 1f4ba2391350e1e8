//! A private certificate authority, and what it issued.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use remote_collab::auth::crypto;
use remote_collab::hub::TlsFiles;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub(crate) struct PrivateCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl PrivateCa {
    /// A new authority; its own certificate is `ca.pem` in this folder.
    pub(crate) fn new(dir: &Path) -> Self {
        crypto::install();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        std::fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        Self {
            issuer,
            dir: dir.to_owned(),
        }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for these names with its key, in the files `<stem>.pem` and `<stem>.key`, each replaced whole.
    pub(crate) fn issue(&self, stem: &str, names: &[&str]) -> TlsFiles {
        let names: Vec<_> = names.iter().map(|n| (*n).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = TlsFiles {
            cert: self.dir.join(format!("{stem}.pem")),
            key: self.dir.join(format!("{stem}.key")),
        };
        for (path, text) in [(&files.key, key.serialize_pem()), (&files.cert, cert.pem())] {
            let new = path.with_extension("new");
            std::fs::write(&new, text).unwrap();
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::fs::rename(&new, path).unwrap();
        }
        files
    }

    /// The TLS of a client that trusts this authority alone.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        Arc::new(config.with_no_client_auth())
    }

    /// The TLS of a server with this certificate.
    pub(crate) fn server(files: &TlsFiles) -> Arc<ServerConfig> {
        let cert = CertificateDer::from_pem_file(&files.cert).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::from_pem_file(&files.key).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![cert], key).unwrap())
    }
}
