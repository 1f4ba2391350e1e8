//! Golden events: what a stream's reader parses does not change by accident, and every type has a file.
//!
//! `UPDATE_PROTO=1 cargo test --test contract events` writes files that are missing; it never changes one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use remote_collab::domain::{
    DeviceId, EnvelopeId, InstanceId, Priority, ProjectName, Receipt, Sender, Seq, SessionId,
    Stage, TaskStatus, Trust, WallMs,
};
use remote_collab::wire::event::{
    Accepted, Answered, AttemptBegan, CallbackData, EndReason, Event, Outcome, Position, Reached,
    Rerouted, ResetReason, Stands, Step, StreamNotice, Told, Webhook, utc,
};
use remote_collab::wire::schema;
use serde_json::{Value, json};

const NOW: WallMs = WallMs(1_790_000_000_000);

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/events")
}

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(0x0199_3c5e_7a00_7000_8000_0000_0000_0000 + n)
}

fn told() -> Vec<Told> {
    let session = SessionId::from_u128(0x3f0c_8e52_6b1d_4c9a_9e77_1f2a_3b4c_5d6e);
    let accepted = || Accepted {
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        priority: Priority::Normal,
        expires_at: NOW.plus(86_400_000),
        session_id: None,
    };
    let rerouted = || Rerouted {
        from_device: DeviceId::new("laptop-1").unwrap(),
    };
    let reached = |stage: Stage| Reached {
        terminal: stage.is_terminal(),
        receipt: Receipt {
            stage,
            at: NOW,
            evidence: None,
        },
    };
    let answered = || Answered {
        reply_id: id(9),
        content: "the tests pass now".into(),
        truncated: false,
        session_id: Some(session),
        written_at: NOW,
    };
    vec![
        Told::TaskAccepted(accepted()),
        Told::TaskAttempt(AttemptBegan {
            attempt: 2,
            envelope: id(2),
        }),
        Told::TaskRerouted(rerouted()),
        Told::TaskReceipt(reached(Stage::OnDevice)),
        Told::TaskProgress(Step {
            text: "Edit src/main.rs".into(),
            truncated: false,
        }),
        Told::TaskReply(answered()),
        Told::TaskResult(Outcome {
            text: "done".into(),
            truncated: false,
            is_error: false,
            cost_usd: Some(0.25),
            num_turns: Some(3),
            session_id: Some(session),
            permission_denials: 0,
        }),
        Told::TaskStatus(Stands {
            status: TaskStatus::Completed,
            reason: None,
            until: None,
            attempt: Some(1),
            terminal: true,
        }),
        Told::MessageAccepted(accepted()),
        Told::MessageRerouted(rerouted()),
        Told::MessageReply(answered()),
        Told::MessageReceipt(reached(Stage::Done)),
    ]
}

fn place() -> String {
    let place = Position {
        epoch: InstanceId::from_u128(0x6e1f_0c2a_97d4_4b57_8a3e_5d21_c0ff_ee01),
        seq: Seq(42),
        at: NOW,
    };
    place.to_string()
}

fn notices() -> Vec<StreamNotice> {
    vec![
        StreamNotice::Open { position: place() },
        StreamNotice::Reset {
            reason: ResetReason::Gone,
        },
        StreamNotice::Snapshot {
            task: Some(json!({"id": id(1), "status": "running"})),
            message: None,
        },
        StreamNotice::End {
            reason: EndReason::Finished,
            position: place(),
        },
    ]
}

/// Every example: its name, its schema, its JSON.
fn all() -> Vec<(&'static str, &'static str, Value)> {
    let event = |what: Told| {
        let kind = what.kind();
        let event = Event {
            id: id(1),
            at: NOW,
            device: DeviceId::new("laptop-2").unwrap(),
            project: Some(ProjectName::new("github.com/acme/shop").unwrap()),
            what,
        };
        (kind, "event", serde_json::to_value(event).unwrap())
    };
    let notice = |n: StreamNotice| (n.kind(), "stream_notice", serde_json::to_value(&n).unwrap());
    told()
        .into_iter()
        .map(event)
        .chain(notices().into_iter().map(notice))
        .collect()
}

#[test]
fn every_type_of_event_has_its_golden_file_and_follows_its_schema() {
    let kinds: Vec<_> = told().iter().map(Told::kind).collect();
    assert_eq!(kinds, Told::TYPES);
    let schemas = schema::all();
    for (name, schema, value) in all() {
        let path = dir().join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
        if std::env::var_os("UPDATE_PROTO").is_some() && !path.exists() {
            std::fs::create_dir_all(dir()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(stored, text, "{name}: run with UPDATE_PROTO=1");
        assert_eq!(value["type"], name);
        let (_, schema) = schemas.iter().find(|(n, _)| *n == schema).unwrap();
        let validator = jsonschema::validator_for(schema).unwrap();
        if let Err(e) = validator.validate(&value) {
            panic!("{name}: {e}");
        }
        assert!(!validator.is_valid(&json!({"type": "hologram"})));
    }
    let files: BTreeSet<String> = std::fs::read_dir(dir())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let wanted: BTreeSet<String> = all().iter().map(|(n, ..)| format!("{n}.json")).collect();
    assert_eq!(files, wanted);
}

#[test]
fn the_golden_callback_follows_its_schema() {
    let status = told().remove(7);
    let outcome = match told().remove(6) {
        Told::TaskResult(outcome) => Some(outcome),
        _ => None,
    };
    let event = Event {
        id: id(1),
        at: NOW,
        device: DeviceId::new("laptop-2").unwrap(),
        project: None,
        what: status,
    };
    let webhook = Webhook {
        kind: event.what.kind().to_owned(),
        timestamp: utc(event.at),
        data: CallbackData {
            url: format!("/tasks/{}", event.id),
            event,
            result: outcome,
            metadata: Some(json!({"build": 7})),
        },
    };
    let path = dir().parent().unwrap().join("webhook.json");
    let text = serde_json::to_string_pretty(&webhook).unwrap() + "\n";
    if std::env::var_os("UPDATE_PROTO").is_some() && !path.exists() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text);
    let (_, schema) = schema::all()
        .into_iter()
        .find(|(n, _)| *n == "webhook")
        .unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    jsonschema::validator_for(&schema)
        .unwrap()
        .validate(&value)
        .unwrap();
}

#[test]
fn the_reference_names_every_type_of_event() {
    let readme = dir().parent().unwrap().join("README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    for (name, ..) in all() {
        assert!(readme.contains(&format!("| `{name}` |")), "{name}");
    }
}
