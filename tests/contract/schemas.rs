//! The files of `proto/` are current: schemas, and the tables of the README.
//!
//! `UPDATE_PROTO=1 cargo test --test contract schemas` writes the schemas anew.

use std::path::{Path, PathBuf};

use remote_collab::domain::{Code, limits};
use remote_collab::wire::{CloseCode, SUBPROTOCOL, schema};
use serde_json::Value;

fn proto() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")
}

#[test]
fn the_schemas_are_current() {
    let dir = proto().join("schema");
    for (name, schema) in schema::all() {
        let path = dir.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("UPDATE_PROTO").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(stored, text, "{name}: run with UPDATE_PROTO=1");
    }
    assert_eq!(
        std::fs::read_dir(&dir).unwrap().count(),
        schema::all().len(),
        "proto/schema holds a file that nothing generates"
    );
}

#[test]
fn the_golden_frames_follow_the_schemas() {
    let all = schema::all();
    let validator = |name: &str| {
        let (_, schema) = all.iter().find(|(n, _)| *n == name).unwrap();
        jsonschema::validator_for(schema).unwrap()
    };
    let bodies = |kind: &str| match kind {
        "message" | "task" | "cancel" => Some(format!("body_{kind}")),
        _ => None,
    };
    for (side, schema) in [("device", "device_frame"), ("hub", "hub_frame")] {
        let frames = validator(schema);
        for entry in std::fs::read_dir(proto().join("frames").join(side)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let frame: Value = serde_json::from_str(&text).unwrap();
            if let Err(e) = frames.validate(&frame) {
                panic!("{}: {e}", path.display());
            }
            if frame["type"] == "report" && frame["kind"] != "note" {
                let name = format!("report_{}", frame["kind"].as_str().unwrap());
                if let Err(e) = validator(&name).validate(&frame["body"]) {
                    panic!("{}: body: {e}", path.display());
                }
            }
            let envelope = &frame["envelope"];
            let recall = envelope["body"].get("message_id").is_some();
            let name = match envelope["kind"].as_str() {
                Some("cancel") if recall => Some("body_recall".to_owned()),
                kind => kind.and_then(bodies),
            };
            if let Some(name) = name {
                validator("envelope").validate(envelope).unwrap();
                if let Err(e) = validator(&name).validate(&envelope["body"]) {
                    panic!("{}: body: {e}", path.display());
                }
            }
        }
        for wrong in [
            r#"{"type":"ack"}"#,
            r#"{"type":"hologram"}"#,
            r#"{"seq":1}"#,
            r#"{"type":"deliver","seq":"1","envelope":{}}"#,
        ] {
            let wrong: Value = serde_json::from_str(wrong).unwrap();
            assert!(!frames.is_valid(&wrong), "{wrong}");
        }
    }
}

fn readme() -> String {
    std::fs::read_to_string(proto().join("README.md")).unwrap()
}

/// The rows of the table under this heading, cells trimmed.
fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let section = text.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells
                .map(|c| c.trim().trim_matches('`').to_owned())
                .collect()
        })
        .collect()
}

#[test]
fn the_table_of_close_codes_is_complete() {
    let rows = table(&readme(), "Close codes");
    let named: Vec<u16> = rows.iter().map(|r| r[0].parse().unwrap()).collect();
    let ours: Vec<u16> = CloseCode::ALL.iter().map(|c| c.as_u16()).collect();
    assert_eq!(named, ours);
}

#[test]
fn the_table_of_error_codes_is_complete() {
    let rows = table(&readme(), "Error codes");
    let named: Vec<(String, u16)> = rows
        .iter()
        .map(|r| (r[0].clone(), r[1].parse().unwrap()))
        .collect();
    let ours: Vec<(String, u16)> = Code::ALL
        .iter()
        .map(|c| (c.as_str().to_owned(), c.http_status()))
        .collect();
    assert_eq!(named, ours);
}

#[test]
fn the_limits_are_those_of_the_code() {
    let text = readme();
    let rows = table(&text, "Limits");
    let stated = |what: &str| {
        let row = rows.iter().find(|r| r[0] == what);
        let row = row.unwrap_or_else(|| panic!("no limit `{what}`"));
        row[1].replace(',', "").parse::<u64>().unwrap()
    };
    for (what, value) in [
        ("connect timeout, ms", limits::CONNECT_TIMEOUT_MS),
        ("handshake timeout, ms", limits::HANDSHAKE_TIMEOUT_MS),
        ("heartbeat, ms", limits::HEARTBEAT_MS),
        ("dead after silence of, ms", limits::HEARTBEAT_DEAD_MS),
        ("connect JWT, s", limits::CONNECT_JWT_S),
        ("in-band authentication, s", limits::AUTH_EXPIRES_S),
        ("window, envelopes", u64::from(limits::WINDOW_ENVELOPES)),
        ("window, bytes", limits::WINDOW_BYTES),
        ("frame, bytes", limits::MAX_FRAME_BYTES as u64),
        ("envelope, bytes", limits::MAX_ENVELOPE_BYTES as u64),
        ("uploaded result, bytes", limits::MAX_RESULT_BYTES as u64),
        (
            "piece of an upload, bytes",
            limits::RESULT_CHUNK_BYTES as u64,
        ),
        (
            "reports in flight",
            remote_collab::core::REPORT_WINDOW as u64,
        ),
        (
            "uncommitted reports at the hub",
            remote_collab::core::REPORT_BACKLOG as u64,
        ),
        ("stable after SYNCED for, ms", limits::STABLE_AFTER_MS),
    ] {
        assert_eq!(stated(what), value, "{what}");
    }
    assert!(text.contains(SUBPROTOCOL));
}
