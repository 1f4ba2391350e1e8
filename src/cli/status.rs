//! `status`: what the daemon says of itself, for people or as it is.

use std::time::Duration;

use serde_json::Value;

use super::report::{Exit, Failure, say};
use super::{Global, daemon_client};

const DEADLINE: Duration = Duration::from_secs(5);

pub(super) fn run(global: &Global) -> Result<Exit, Failure> {
    let status: Value = daemon_client(&global.places()?).get("/status", DEADLINE)?;
    if global.json {
        say(&status)?;
    } else {
        say(render(&status))?;
    }
    Ok(if status["link"]["state"] == "SYNCED" {
        Exit::Ok
    } else {
        Exit::NotConnected
    })
}

fn text(v: &Value) -> String {
    match v {
        Value::Null => "-".to_owned(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// The document for people: one fact a line, what is wrong with what to do.
fn render(s: &Value) -> String {
    let mut lines = Vec::new();
    let link = &s["link"];
    let mut line = format!("link      {}", text(&link["state"]));
    if let Some(hub) = link["hub"].as_str() {
        line.push_str(&format!("  {hub}"));
    }
    lines.push(line);
    for (label, key) in [
        ("  polls   ", "fallback_cause"),
        ("  cause   ", "cause"),
        ("  do      ", "hint"),
        ("  store   ", "store_error"),
    ] {
        if let Some(value) = link[key].as_str() {
            lines.push(format!("{label}{value}"));
        }
    }
    let queue = &s["queue"];
    let held = queue["held"].as_object().cloned().unwrap_or_default();
    let held: Vec<_> = held
        .iter()
        .map(|(reason, n)| format!("{n} {reason}"))
        .collect();
    lines.push(format!(
        "queue     {} waiting, {} held{}, {} on their way",
        text(&queue["queued"]),
        queue["held"]
            .as_object()
            .map_or(0, |h| h.values().filter_map(Value::as_u64).sum::<u64>()),
        if held.is_empty() {
            String::new()
        } else {
            format!(" ({})", held.join(", "))
        },
        text(&queue["claimed"]),
    ));
    lines.push(format!(
        "outbox    {} to report",
        text(&s["outbox"]["waiting"])
    ));
    if s["paused"] == true {
        lines.push("paused    everything is held; `remote-collab resume` goes on".to_owned());
    }
    let listeners = &s["listeners"];
    match listeners["local_error"].as_str() {
        Some(error) => lines.push(format!("local     off ({error})")),
        None => lines.push(format!("local     {}", text(&listeners["local"]))),
    }
    let claude = &s["claude"];
    match claude["path"].as_str() {
        Some(path) => lines.push(format!("claude    {} {path}", text(&claude["version"]))),
        None => lines.push(format!(
            "claude    not found; tasks wait ({})",
            text(&claude["problem"])
        )),
    }
    let list = |key: &str| s[key].as_array().cloned().unwrap_or_default();
    for p in list("projects") {
        lines.push(format!(
            "project   {}  {}",
            text(&p["name"]),
            text(&p["path"])
        ));
    }
    if list("projects").is_empty() {
        lines.push("project   none; `remote-collab enable` in a project's folder".to_owned());
    }
    for session in list("sessions") {
        lines.push(format!(
            "session   {}  {} ({})  {}",
            text(&session["session_id"]),
            text(&session["activity"]),
            text(&session["reason"]),
            text(&session["cwd"]),
        ));
    }
    for run in list("runs") {
        lines.push(format!(
            "run       {}  {}",
            text(&run["task_id"]),
            text(&run["state"])
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_names_what_is_wrong_and_what_to_do() {
        let shown = render(&json!({
            "link": {"state": "DISCONNECTED", "cause": "not enrolled", "hint": "run login"},
            "queue": {"queued": 1, "held": {"no_session": 2}, "claimed": 0},
            "outbox": {"waiting": 3},
            "paused": true,
            "listeners": {"local": "http://127.0.0.1:9988"},
            "claude": {"path": null, "problem": "none on PATH"},
        }));
        for part in [
            "DISCONNECTED",
            "not enrolled",
            "run login",
            "2 no_session",
            "3 to report",
            "resume",
            "tasks wait",
            "enable",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
    }
}
