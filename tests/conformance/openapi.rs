//! schemathesis against the real hub, from the document that the hub itself serves.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::support::sites::HubSite;
use crate::{here, python};

/// Far above what a run takes.
const PATIENCE: Duration = Duration::from_secs(400);

#[tokio::test(flavor = "multi_thread")]
async fn the_hub_does_what_its_document_says_for_data_good_and_bad() {
    let hub = HubSite::start().await;
    let scratch = tempfile::tempdir().unwrap();
    let child = Command::new(python("schemathesis"))
        .arg("--config-file")
        .arg(here().join("schemathesis.toml"))
        .arg("run")
        .arg(format!("{}/openapi.json", hub.url()))
        .current_dir(scratch.path())
        .env("PYTHONPATH", here())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("HUB", hub.url())
        .env("HUB_TOKEN", &hub.token)
        .env("HUB_PROGRAM", env!("CARGO_BIN_EXE_remote-collab"))
        .env("HUB_DATA_DIR", hub.machine.data())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ran = timeout(PATIENCE, child.wait_with_output()).await;
    let ran = ran.expect("schemathesis ends").unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{errors}");
    println!("{said}");
}
