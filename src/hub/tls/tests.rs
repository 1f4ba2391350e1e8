use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;

struct Pair {
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        Self::valid_between((2020, 2090))
    }

    fn valid_between((from, until): (i32, i32)) -> Self {
        let pair = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["hub.test".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let cert = params.self_signed(&key).unwrap();
        pair.write_cert(&cert.pem());
        pair.write_key(&key.serialize_pem(), 0o600);
        pair
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            cert: self.dir.path().join("cert.pem"),
            key: self.dir.path().join("key.pem"),
        }
    }

    fn write_cert(&self, text: &str) {
        std::fs::write(self.files().cert, text).unwrap();
    }

    fn write_key(&self, text: &str, mode: u32) {
        let path = self.files().key;
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn error(&self) -> TlsError {
        ServerTls::open(&self.files()).unwrap_err()
    }
}

#[test]
fn a_good_pair_is_taken() {
    ServerTls::open(&Pair::new().files()).unwrap();
}

#[test]
fn a_missing_or_empty_file_is_named() {
    let pair = Pair::new();
    pair.write_cert("");
    let error = pair.error();
    assert!(matches!(error, TlsError::NoCertificate { .. }), "{error}");
    assert!(error.to_string().contains("cert.pem"), "{error}");
    std::fs::remove_file(pair.files().cert).unwrap();
    let error = pair.error();
    assert!(matches!(error, TlsError::Io { .. }), "{error}");

    let pair = Pair::new();
    pair.write_key("", 0o600);
    let error = pair.error();
    assert!(matches!(error, TlsError::BadKey { .. }), "{error}");
    assert!(error.to_string().contains("key.pem"), "{error}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let pair = Pair::new();
    let key = pair.files().key;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = pair.error();
    assert!(
        matches!(error, TlsError::Exposed(KeyError::Exposed { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("chmod 600"), "{error}");
}

#[test]
fn the_key_of_another_certificate_is_refused() {
    let (pair, other) = (Pair::new(), Pair::new());
    std::fs::copy(other.files().key, pair.files().key).unwrap();
    let error = pair.error();
    assert!(matches!(error, TlsError::Mismatch { .. }), "{error}");
}

#[test]
fn a_certificate_out_of_its_time_is_refused_with_the_day() {
    let error = Pair::valid_between((2020, 2021)).error();
    assert!(matches!(error, TlsError::Expired { .. }), "{error}");
    assert!(error.to_string().contains("2021-01-01"), "{error}");
    let error = Pair::valid_between((2089, 2090)).error();
    assert!(matches!(error, TlsError::NotYetValid { .. }), "{error}");
    assert!(error.to_string().contains("2089-01-01"), "{error}");
}

#[test]
fn a_renewed_pair_is_used_and_half_of_one_is_not() {
    let (pair, renewed) = (Pair::new(), Pair::new());
    let tls = ServerTls::open(&pair.files()).unwrap();
    let before = Arc::clone(&tls.served.current().pair);
    std::fs::copy(renewed.files().cert, pair.files().cert).unwrap();
    tls.served.refresh();
    assert!(Arc::ptr_eq(&before, &tls.served.current().pair));
    std::fs::copy(renewed.files().key, pair.files().key).unwrap();
    tls.served.refresh();
    let after = Arc::clone(&tls.served.current().pair);
    assert_ne!(before.cert, after.cert);
    tls.served.refresh();
    assert!(Arc::ptr_eq(&after, &tls.served.current().pair));
}

#[test]
fn a_renewed_key_that_stood_open_is_used_once_it_is_closed() {
    let (pair, renewed) = (Pair::new(), Pair::new());
    let tls = ServerTls::open(&pair.files()).unwrap();
    let before = Arc::clone(&tls.served.current().pair);
    let key = pair.files().key;
    std::fs::copy(renewed.files().cert, pair.files().cert).unwrap();
    std::fs::copy(renewed.files().key, &key).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    tls.served.refresh();
    assert!(Arc::ptr_eq(&before, &tls.served.current().pair));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    tls.served.refresh();
    assert_ne!(before.cert, tls.served.current().pair.cert);
}
