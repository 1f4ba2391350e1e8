//! The bodies of the fallback: one golden example each, read, written and checked against the schemas.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use remote_collab::wire::{
    DeviceFrame, Hello, HubFrame, PollAck, PollAcked, Polled, Welcome, encode, encode_polled,
    schema,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/poll")
}

fn golden(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn same<T: Serialize + DeserializeOwned>(name: &str, of: &str) -> T {
    let value = golden(name);
    let read: T = serde_json::from_value(value.clone()).unwrap();
    let written: Value = serde_json::from_str(&encode(&read)).unwrap();
    assert_eq!(value, written, "{name}: is written in another form");
    let all = schema::all();
    let (_, schema) = all.iter().find(|(n, _)| *n == of).unwrap();
    let validator = jsonschema::validator_for(schema).unwrap();
    assert!(
        validator.is_valid(&value),
        "{name} does not follow the schema"
    );
    read
}

#[test]
fn every_body_of_the_fallback_reads_from_and_writes_to_its_golden_file() {
    same::<Hello>("poll_open", "poll_open");
    same::<Welcome>("poll_opened", "poll_opened");
    same::<Polled>("polled_nothing", "polled");
    same::<PollAck>("poll_ack", "poll_ack");
    same::<PollAck>("poll_ack_bye", "poll_ack");
    same::<PollAcked>("poll_acked", "poll_acked");
    same::<PollAcked>("poll_acked_rejected", "poll_acked");
    let polled = same::<Polled>("polled", "polled");
    let rows: Vec<_> = polled
        .envelopes
        .iter()
        .map(|row| (row.seq, encode(&row.envelope)))
        .collect();
    let rows = rows.iter().map(|(seq, json)| (*seq, json.as_str()));
    let text = encode_polled(
        polled.epoch,
        polled.generation,
        rows,
        polled.synced,
        polled.more,
    );
    let around: Polled = serde_json::from_str(&text).unwrap();
    assert_eq!(around, polled, "around stored envelopes");
    assert_eq!(
        std::fs::read_dir(folder()).unwrap().count(),
        8,
        "a file here is checked by nothing"
    );
}

/// The session has the frames' fields: what a frame gains, the fallback gains.
#[test]
fn the_session_has_the_same_fields_as_the_frames() {
    fn fields(value: &Value) -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }
    let frame = |file: &str| -> Value {
        let path = folder().join("../frames").join(file);
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    for (file, ours) in [
        ("device/hello.json", "poll_open"),
        ("hub/welcome.json", "poll_opened"),
    ] {
        let mut theirs = fields(&frame(file));
        theirs.remove("type");
        assert_eq!(theirs, fields(&golden(ours)), "{ours}");
    }
    let mut report = golden("poll_ack")["reports"][0].clone();
    report["type"] = "report".into();
    assert!(matches!(
        serde_json::from_value(report),
        Ok(DeviceFrame::Report(_))
    ));
    let mut deliver = golden("polled")["envelopes"][0].clone();
    deliver["type"] = "deliver".into();
    assert!(matches!(
        serde_json::from_value(deliver),
        Ok(HubFrame::Deliver { .. })
    ));
}
