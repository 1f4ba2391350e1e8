//! Golden frames: the bytes on the wire do not change by accident, and every variant has a file.
//!
//! `UPDATE_PROTO=1 cargo test --test contract frames` writes files that are missing; it never changes one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use remote_collab::domain::{
    Activity, Address, Cursor, Envelope, EnvelopeId, EnvelopeKind, InstanceId, Priority,
    ProjectInfo, ProjectName, Report, ReportKind, Sender, Seq, SessionId, SessionInfo, Trust,
    WallMs,
};
use remote_collab::wire::{
    DeviceFrame, Hello, HubFrame, OutboxPosition, RejectedReport, Resume, Welcome, decode, encode,
    encode_deliver, schema,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const MAX: usize = 1 << 20;
const NOW: WallMs = WallMs(1_790_000_000_000);
const EPOCH: InstanceId = InstanceId::from_u128(0x6e1f_0c2a_97d4_4b57_8a3e_5d21_c0ff_ee01);

fn proto() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")
}

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(0x0199_3c5e_7a00_7000_8000_0000_0000_0000 + n)
}

fn session() -> SessionId {
    SessionId::from_u128(0x3f0c_8e52_6b1d_4c9a_9e77_1f2a_3b4c_5d6e)
}

fn project() -> ProjectName {
    ProjectName::new("github.com/acme/shop").unwrap()
}

fn envelope(kind: EnvelopeKind, body: Value) -> Envelope {
    Envelope {
        id: id(1),
        kind,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        to: Address {
            project: Some(project()),
            session_id: None,
        },
        priority: Priority::Normal,
        body,
        wake: true,
        created_at: NOW,
        expires_at: NOW.plus(86_400_000),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

fn device_frames() -> Vec<(&'static str, DeviceFrame)> {
    let hello = Hello {
        instance: InstanceId::from_u128(0x1111_2222_3333_4444_8555_6666_7777_8888),
        last: Some(Cursor {
            epoch: EPOCH,
            seq: Seq(41),
        }),
        take_over: false,
        outbox: OutboxPosition {
            instance: InstanceId::from_u128(0x9999_aaaa_bbbb_4ccc_8ddd_eeee_ffff_0000),
            next_n: 8,
        },
        build: "0.1.0".into(),
        os: "linux".into(),
        claude_version: Some("2.1.0".into()),
        capacity: 2,
        projects: vec![ProjectInfo {
            name: project(),
            path: "/home/ada/shop".into(),
            enabled: true,
        }],
        sessions: vec![SessionInfo {
            session_id: session(),
            lineage: vec![],
            project: Some(project()),
            activity: Activity::Idle,
            reason: Some("stop hook".into()),
            active_at: NOW,
        }],
    };
    let first = Hello {
        last: None,
        claude_version: None,
        projects: vec![],
        sessions: vec![],
        ..hello.clone()
    };
    let report = |kind, body| {
        DeviceFrame::Report(Report {
            n: 7,
            id: id(1).0,
            kind,
            at: NOW,
            body,
        })
    };
    vec![
        ("hello", DeviceFrame::Hello(hello)),
        ("hello_first", DeviceFrame::Hello(first)),
        ("ack", DeviceFrame::Ack { seq: Seq(42) }),
        (
            "report_receipt",
            report(
                ReportKind::Receipt,
                json!({"stage": "claimed", "door": "hooks", "at": NOW.0}),
            ),
        ),
        (
            "report_status",
            report(
                ReportKind::Status,
                json!({"status": "blocked", "reason": "usage_limit", "until": NOW.0}),
            ),
        ),
        (
            "report_progress",
            report(ReportKind::Progress, json!({"text": "running the tests"})),
        ),
        (
            "report_result",
            report(
                ReportKind::Result,
                json!({"text": "done", "is_error": false, "num_turns": 3, "permission_denials": []}),
            ),
        ),
        (
            "report_reply",
            report(
                ReportKind::Reply,
                json!({"content": "yes", "at": NOW.0, "id": id(2).to_string()}),
            ),
        ),
        (
            "report_session",
            report(
                ReportKind::Session,
                json!({"session_id": session().to_string(), "activity": "busy", "active_at": NOW.0}),
            ),
        ),
        (
            "report_project",
            report(
                ReportKind::Project,
                json!({"name": "github.com/acme/shop", "path": "/home/ada/shop", "enabled": true}),
            ),
        ),
        (
            "report_note",
            report(ReportKind::Note, json!({"name": "style"})),
        ),
        ("capacity", DeviceFrame::Capacity { free: 1 }),
        (
            "auth",
            DeviceFrame::Auth {
                token: "header.payload.signature".into(),
            },
        ),
        (
            "bye",
            DeviceFrame::Bye {
                reason: "shutdown".into(),
            },
        ),
    ]
}

fn hub_frames() -> Vec<(&'static str, HubFrame)> {
    let welcome = Welcome {
        epoch: EPOCH,
        head: Seq(57),
        resume: Resume::Continue,
        generation: 12,
        now: NOW,
        heartbeat_s: 20,
        window: 256,
        max_frame_bytes: 1 << 20,
        auth_expires_in_s: 900,
        report_n: 6,
    };
    let reset = Welcome {
        resume: Resume::Reset,
        report_n: 0,
        ..welcome.clone()
    };
    let deliver = |envelope| HubFrame::Deliver {
        seq: Seq(42),
        envelope: Box::new(envelope),
    };
    let task = Envelope {
        attempt: Some(1),
        ..envelope(
            EnvelopeKind::Task,
            json!({"task_id": id(1).to_string(), "task": "fix the build", "options": {"max_turns": 10}}),
        )
    };
    let message = Envelope {
        to: Address {
            project: None,
            session_id: Some(session()),
        },
        priority: Priority::Urgent,
        reply_to: Some(id(9)),
        ..envelope(
            EnvelopeKind::Message,
            json!({"content": "the build is red"}),
        )
    };
    vec![
        ("welcome", HubFrame::Welcome(welcome)),
        ("welcome_reset", HubFrame::Welcome(reset)),
        ("deliver_message", deliver(message)),
        ("deliver_task", deliver(task)),
        (
            "deliver_cancel",
            deliver(envelope(
                EnvelopeKind::Cancel,
                json!({"task_id": id(1).to_string()}),
            )),
        ),
        (
            "deliver_cancel_attempt",
            deliver(envelope(
                EnvelopeKind::Cancel,
                json!({"task_id": id(1).to_string(), "attempt": 1}),
            )),
        ),
        (
            "deliver_recall",
            deliver(envelope(
                EnvelopeKind::Cancel,
                json!({"message_id": id(9).to_string()}),
            )),
        ),
        (
            "deliver_memory_changed",
            deliver(envelope(EnvelopeKind::MemoryChanged, json!({}))),
        ),
        (
            "deliver_decision",
            deliver(envelope(EnvelopeKind::Decision, json!({"approved": true}))),
        ),
        (
            "deliver_unknown_kind",
            deliver(envelope(
                EnvelopeKind::Other("hologram".into()),
                json!(null),
            )),
        ),
        ("synced", HubFrame::Synced { seq: Seq(57) }),
        (
            "report_ack",
            HubFrame::ReportAck {
                n: 7,
                rejected: vec![],
            },
        ),
        (
            "report_ack_rejected",
            HubFrame::ReportAck {
                n: 7,
                rejected: vec![RejectedReport {
                    n: 6,
                    code: "invalid_field".into(),
                }],
            },
        ),
        ("reauth", HubFrame::Reauth { within_s: 60 }),
        (
            "error",
            HubFrame::Error {
                code: "going_away".into(),
                message: "the hub restarts".into(),
                retry_after_s: Some(3),
            },
        ),
    ]
}

/// The file that a variant must have; a new variant does not compile without one.
fn device_type(frame: &DeviceFrame) -> &'static str {
    match frame {
        DeviceFrame::Hello(_) => "hello",
        DeviceFrame::Ack { .. } => "ack",
        DeviceFrame::Report(_) => "report",
        DeviceFrame::Capacity { .. } => "capacity",
        DeviceFrame::Auth { .. } => "auth",
        DeviceFrame::Bye { .. } => "bye",
        DeviceFrame::Unknown => "unknown",
    }
}

fn hub_type(frame: &HubFrame) -> &'static str {
    match frame {
        HubFrame::Welcome(_) => "welcome",
        HubFrame::Deliver { .. } => "deliver",
        HubFrame::Synced { .. } => "synced",
        HubFrame::ReportAck { .. } => "report_ack",
        HubFrame::Reauth { .. } => "reauth",
        HubFrame::Error { .. } => "error",
        HubFrame::Unknown => "unknown",
    }
}

fn golden<F>(side: &str, frames: &[(&str, F)])
where
    F: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let dir = proto().join("frames").join(side);
    for (name, frame) in frames {
        let path = dir.join(format!("{name}.json"));
        if !path.exists() && std::env::var_os("UPDATE_PROTO").is_some() {
            let text = serde_json::to_string_pretty(frame).unwrap();
            std::fs::write(&path, text + "\n").unwrap();
        }
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{name}: no golden frame ({e}); run with UPDATE_PROTO=1"));
        let read: F = decode(&text, MAX).unwrap();
        assert_eq!(&read, frame, "{name}: reads as another frame");
        let value: Value = serde_json::from_str(&text).unwrap();
        let written: Value = serde_json::from_str(&encode(frame)).unwrap();
        assert_eq!(value, written, "{name}: is written in another form");
    }
    let named: BTreeSet<String> = frames.iter().map(|(n, _)| format!("{n}.json")).collect();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let file = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(named.contains(&file), "{side}/{file} is checked by nothing");
    }
}

/// The `type` values that the schema of a frame enum lists.
fn types_in(schema: &str) -> BTreeSet<String> {
    let all = schema::all();
    let (_, value) = all.iter().find(|(name, _)| *name == schema).unwrap();
    let variants = value["oneOf"].as_array().unwrap();
    let types = variants.iter().map(|v| &v["properties"]["type"]["const"]);
    types.map(|t| t.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_frame_reads_from_and_writes_to_its_golden_file() {
    golden("device", &device_frames());
    golden("hub", &hub_frames());
}

#[test]
fn every_variant_has_a_golden_file() {
    let device: BTreeSet<String> = device_frames()
        .iter()
        .map(|(_, f)| device_type(f).to_owned())
        .collect();
    assert_eq!(device, types_in("device_frame"));
    let hub: BTreeSet<String> = hub_frames()
        .iter()
        .map(|(_, f)| hub_type(f).to_owned())
        .collect();
    assert_eq!(hub, types_in("hub_frame"));
}

#[test]
fn the_frame_around_a_stored_envelope_is_the_frame_of_the_envelope() {
    for (name, frame) in hub_frames() {
        if let HubFrame::Deliver { seq, envelope } = &frame {
            let text = encode_deliver(*seq, &encode(envelope));
            assert_eq!(decode::<HubFrame>(&text, MAX).unwrap(), frame, "{name}");
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,20}", Just("\u{0}\"\\\n\u{2028}🦀".to_owned())]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn any_envelope() -> impl Strategy<Value = Envelope> {
    let kind = prop_oneof![
        Just(EnvelopeKind::Message),
        Just(EnvelopeKind::Task),
        Just(EnvelopeKind::Decision),
        "x[a-z]{1,8}".prop_map(EnvelopeKind::Other),
    ];
    (
        kind,
        value(),
        text(),
        any::<(u128, bool, i64, i64, Option<u32>, u8, Option<u128>)>(),
    )
        .prop_map(|(kind, body, name, rest)| {
            let (n, wake, created, expires, attempt, hops, reply_to) = rest;
            Envelope {
                id: EnvelopeId::from_u128(n),
                from: Sender {
                    name,
                    trust: Trust::Suggest,
                },
                wake,
                created_at: WallMs(created),
                expires_at: WallMs(expires),
                attempt,
                hops,
                reply_to: reply_to.map(EnvelopeId::from_u128),
                ..envelope(kind, body)
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_envelope_survives_the_wire(envelope in any_envelope(), seq in any::<u64>()) {
        let frame = HubFrame::Deliver { seq: Seq(seq), envelope: Box::new(envelope) };
        prop_assert_eq!(decode::<HubFrame>(&encode(&frame), MAX).unwrap(), frame);
    }

    #[test]
    fn any_report_survives_the_wire(n in any::<u64>(), id in any::<u128>(), at in any::<i64>(), body in value()) {
        let report = Report { n, id: uuid::Uuid::from_u128(id), kind: ReportKind::Progress, at: WallMs(at), body };
        let frame = DeviceFrame::Report(report);
        prop_assert_eq!(decode::<DeviceFrame>(&encode(&frame), MAX).unwrap(), frame);
    }

    #[test]
    fn reading_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        drop(decode::<HubFrame>(&text, MAX));
        drop(decode::<DeviceFrame>(&text, MAX));
    }

    #[test]
    fn reading_a_damaged_frame_never_panics(
        which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in 32u8..127, cut in any::<bool>()
    ) {
        let frames = hub_frames();
        let mut bytes = encode(&frames[which.index(frames.len())].1).into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        let text = String::from_utf8_lossy(&bytes);
        drop(decode::<HubFrame>(&text, MAX));
        drop(decode::<DeviceFrame>(&text, MAX));
    }
}
