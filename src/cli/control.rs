//! `connect`, `disconnect`, `pause`, `resume`: one word to the daemon.

use std::time::Duration;

use serde_json::{Value, json};

use super::report::{Exit, Failure, say};
use super::{Global, daemon_client};

/// How long the daemon may take.
const DEADLINE: Duration = Duration::from_secs(15);

pub(super) fn run(global: &Global, verb: &str) -> Result<Exit, Failure> {
    let client = daemon_client(&global.places()?);
    let answer: Value = client.post(&format!("/control/{verb}"), &json!({}), DEADLINE)?;
    if global.json {
        say(answer)?;
    } else {
        say(format_args!("{verb}: done"))?;
    }
    Ok(Exit::Ok)
}
