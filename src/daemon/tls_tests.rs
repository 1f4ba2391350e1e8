use super::*;

fn ca_pem() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.self_signed(&key).unwrap().pem()
}

#[test]
fn what_holds_no_certificates_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    for content in [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        std::fs::write(&path, content).unwrap();
        let file = || Some(path.clone());
        for (name, ca) in [
            (
                "ca_file",
                CaSources {
                    file: file(),
                    ..CaSources::default()
                },
            ),
            (
                "SSL_CERT_FILE",
                CaSources {
                    env_file: file(),
                    ..CaSources::default()
                },
            ),
        ] {
            let error = client_config(&ca).unwrap_err().to_string();
            assert!(error.contains("ca.pem") && error.contains(name), "{error}");
        }
    }
    let ca = CaSources {
        env_dirs: vec![dir.path().to_owned()],
        ..CaSources::default()
    };
    let error = client_config(&ca).unwrap_err().to_string();
    assert!(error.contains("SSL_CERT_DIR"), "{error}");
    let missing = CaSources {
        env_file: Some(dir.path().join("missing")),
        ..CaSources::default()
    };
    let error = client_config(&missing).unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}

#[test]
fn a_named_certificate_stands_beside_those_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, ca_pem()).unwrap();
    let ca = CaSources {
        env_file: Some(path),
        env_dirs: vec![dir.path().join("missing"), dir.path().to_owned()],
        ..CaSources::default()
    };
    client_config(&ca).unwrap();
    let without = CaSources::default();
    assert_eq!(system(&ca).is_empty(), system(&without).is_empty());
}
