//! What others make of `proto/`: a tool that tries the hub's OpenAPI document, and a client that is not ours.
//!
//! Both are Python, with packages that `./tests/run` installs into `tests/.tools/python`.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed wait or step is a failed test"
)]

mod client;
mod openapi;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

/// A program of the installed Python packages.
fn python(program: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/.tools/python");
    let wanted = std::fs::read_to_string(here().join("requirements.txt")).unwrap();
    let installed = std::fs::read_to_string(tools.join("installed.txt")).unwrap_or_default();
    assert!(
        installed == wanted,
        "the packages of tests/conformance/requirements.txt are not installed in {}: run ./tests/run, or\n  \
         python3 -m venv {0} && {0}/bin/pip install -r tests/conformance/requirements.txt && \
         cp tests/conformance/requirements.txt {0}/installed.txt",
        tools.display()
    );
    tools.join("bin").join(program)
}
