use std::path::Path;

use serde_json::json;

use super::brain::Publisher;
use super::*;
use crate::config::Sources;
use crate::daemon::store::{Change, ClaimRow, FILE, NewReport};
use crate::domain::{
    Activity, Address, ClaimId, Door, Envelope, EnvelopeId, EnvelopeKind, Priority, ReportKind,
    Sender, Trust, WallMs,
};

/// A dispatcher's state over a queue in a folder, moved by hand.
struct Bed {
    brain: Brain,
    store: Store,
    dir: tempfile::TempDir,
    _rx: mpsc::Receiver<Msg>,
}

fn parts(dir: &Path, store: Store) -> Parts {
    let places = Places::resolve(Some(dir), &|_| None).unwrap();
    places.create_daemon_dirs().unwrap();
    let sources = Sources {
        file: None,
        env: &|_| None,
        flags: &[],
    };
    Parts {
        store,
        config: Arc::new(DaemonConfig::load(sources).unwrap()),
        claude: None,
        claude_dir: dir.join("claude"),
        projects: Projects::new(places.daemon()),
        memory: MemorySource::new(None, dir.join("memory"), crate::daemon::clock::wall),
        places,
    }
}

async fn load(parts: Parts) -> (Brain, mpsc::Receiver<Msg>) {
    let (tx, rx) = mpsc::channel(QUEUE);
    let publisher = Publisher {
        view: watch::channel(View::default()).0,
        capacity: watch::channel(0).0,
    };
    let brain = Brain::load(parts, tx, publisher, TaskTracker::new());
    (brain.await.unwrap(), rx)
}

/// A bed with the project `shop`, in whose folder the file `own` lies.
async fn bed(own: &str) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join(FILE)).unwrap();
    let parts = parts(dir.path(), store.clone());
    let shop = dir.path().join("shop");
    std::fs::create_dir_all(shop.join(".claude")).unwrap();
    std::fs::write(shop.join(".claude/remote-collab.json"), own).unwrap();
    let name = ProjectName::new("shop").unwrap();
    parts.projects.enable(&shop, Some(name), WallMs(1)).unwrap();
    let (brain, rx) = load(parts).await;
    Bed {
        brain,
        store,
        dir,
        _rx: rx,
    }
}

fn session(n: u128) -> SessionId {
    SessionId::from_u128(n)
}

fn mail(n: u128, kind: EnvelopeKind, to: Address) -> Envelope {
    let id = EnvelopeId::from_u128(n);
    let now = crate::daemon::clock::wall();
    let body = match kind {
        EnvelopeKind::Task => json!({"task_id": id, "task": "do it", "options": {}}),
        _ => json!({"content": "hello"}),
    };
    Envelope {
        id,
        kind,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        to,
        priority: Priority::Normal,
        body,
        wake: false,
        created_at: now,
        expires_at: now.plus(3_600_000),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

fn to_session(n: u128) -> Address {
    Address {
        project: None,
        session_id: Some(session(n)),
    }
}

fn to_shop() -> Address {
    Address {
        project: Some(ProjectName::new("shop").unwrap()),
        session_id: None,
    }
}

impl Bed {
    async fn hook(&mut self, n: u128, event: serde_json::Value) -> Option<serde_json::Value> {
        let mut input = event;
        input["session_id"] = json!(session(n));
        input["cwd"] = json!(self.dir.path().join("shop").canonicalize().unwrap());
        let call = HookCall {
            input,
            // The test's own process stands for the session's.
            pid: Some(std::process::id()),
            entrypoint: Some("cli".into()),
            attended: Some(true),
            messaging_socket: None,
            run: None,
            at: None,
        };
        let (reply, answer) = oneshot::channel();
        self.brain.hook(call, None, reply).await;
        match answer.await.unwrap() {
            Reply::Answer(answer) => answer.output,
            Reply::Start(_) => None,
        }
    }

    async fn prompt(&mut self, n: u128) -> Option<serde_json::Value> {
        let event = json!({"hook_event_name": "UserPromptSubmit", "prompt": "x"});
        self.hook(n, event).await
    }

    async fn post(&mut self, batch: Vec<Envelope>) {
        self.store.post_local(batch).await.unwrap();
        self.brain.refresh().await.unwrap();
    }

    async fn statuses(&self, n: u128) -> Vec<String> {
        let reports = self.store.local_reports(EnvelopeId::from_u128(n)).await;
        let of = reports.unwrap().into_iter();
        of.filter(|r| r.kind == ReportKind::Status)
            .map(|r| r.body["status"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

#[tokio::test]
async fn mail_that_a_program_took_does_not_keep_the_rest_from_the_session() {
    let mut b = bed("").await;
    b.prompt(1).await;
    let two = [2, 3].map(|n| mail(n, EnvelopeKind::Message, to_session(1)));
    b.post(two.to_vec()).await;
    // Behind the dispatcher's back, as the local API does.
    let row = ClaimRow {
        id: ClaimId::from_u128(9),
        door: Door::LocalApi,
        session: None,
        envelopes: vec![EnvelopeId::from_u128(2)],
        transcript: None,
        offset: 0,
        opened_at: WallMs(1),
        lease_until: WallMs(i64::MAX),
        state: "handed_over".into(),
        closed: false,
        detail: serde_json::Value::Null,
    };
    b.store.open_claim(row, vec![]).await.unwrap();
    let text = b.prompt(1).await.unwrap().to_string();
    assert_eq!(text.matches("hello").count(), 1, "{text}");
}

#[tokio::test]
async fn a_task_that_is_held_no_more_is_not_shown_as_blocked() {
    let mut b = bed("").await;
    b.prompt(1).await;
    b.brain.paused = true;
    b.post(vec![mail(2, EnvelopeKind::Task, to_session(1))])
        .await;
    b.brain.paused = false;
    b.brain.plan_all().await;
    assert_eq!(b.statuses(2).await, ["blocked", "delivered"]);
}

#[tokio::test]
async fn a_projects_own_file_turns_features_off_for_its_mail_alone() {
    let mut b =
        bed(r#"{"features": {"message_notification": false, "memory_injection": false}}"#).await;
    b.prompt(1).await;
    b.post(vec![
        mail(2, EnvelopeKind::Message, to_session(1)),
        mail(3, EnvelopeKind::Message, Address::default()),
    ])
    .await;
    let held = |b: &Bed, n| b.brain.mail[&EnvelopeId::from_u128(n)].hold.clone();
    let off = Some("message_notification_off".to_owned());
    assert_eq!(held(&b, 2), off);
    assert_eq!(held(&b, 3), off, "its session is the project's");
    assert_eq!(b.prompt(1).await, None);
    let started = json!({"hook_event_name": "SessionStart", "source": "startup"});
    assert_eq!(b.hook(1, started).await, None);
    // The person takes it back: no restart is needed.
    std::fs::write(b.dir.path().join("shop/.claude/remote-collab.json"), "").unwrap();
    b.brain.read_projects();
    b.brain.plan_all().await;
    assert_eq!(held(&b, 2), None);
}

#[tokio::test]
async fn a_refused_change_is_followed_by_a_reading_of_the_queue_and_not_by_one_within_the_other() {
    let mut b = bed("").await;
    b.prompt(1).await;
    b.post(vec![mail(2, EnvelopeKind::Message, to_session(1))])
        .await;
    let id = EnvelopeId::from_u128(2);
    b.store.apply(vec![Change::Finish(id)]).await.unwrap();
    b.brain.paused = true;
    b.brain.plan_all().await;
    assert!(b.brain.mail.contains_key(&id), "not read within the plan");
    b.brain.settle().await;
    assert!(!b.brain.mail.contains_key(&id));
}

#[tokio::test]
async fn a_message_without_a_transcript_is_let_go_when_its_session_is_over() {
    let mut b = bed("").await;
    b.prompt(1).await;
    b.post(vec![mail(2, EnvelopeKind::Message, to_session(1))])
        .await;
    assert!(b.prompt(1).await.is_some());
    let claim = *b.brain.claims.keys().next().unwrap();
    let due = crate::delivery::claims::Sign::LeaseDue(crate::delivery::claims::Quiet::Busy);
    b.brain.sign(claim, due).await;
    let over = json!({"hook_event_name": "SessionEnd", "reason": "other"});
    b.hook(1, over).await;
    b.brain.registry.get_mut(session(1)).unwrap().since = WallMs(0);
    b.brain.follow().await;
    assert!(b.brain.claims.is_empty() && b.brain.mail.is_empty());
    assert!(b.store.open_claims().await.unwrap().is_empty());
    let told = b
        .store
        .local_reports(EnvelopeId::from_u128(2))
        .await
        .unwrap();
    let last = told.last().unwrap();
    assert_eq!(last.body["stage"], "handed_over", "neither seen nor done");
}

#[tokio::test]
async fn a_session_that_died_while_no_daemon_ran_is_closed() {
    let b = bed("").await;
    let cwd = b.dir.path().join("shop").canonicalize().unwrap();
    let line = |event: &str| {
        let input = json!({"hook_event_name": event, "session_id": session(1), "cwd": cwd});
        // No process has this id.
        json!({"input": input, "pid": u32::MAX - 7, "at": crate::daemon::clock::wall()}).to_string()
    };
    let spool = b.brain.parts.places.spool();
    std::fs::create_dir_all(&spool).unwrap();
    let text = format!("{}\n{}\n", line("SessionStart"), line("Stop"));
    std::fs::write(spool.join(crate::hook::SPOOL_FILE), text).unwrap();
    std::fs::create_dir_all(b.dir.path().join("claude/sessions")).unwrap();
    let (brain, _rx) = load(b.brain.parts.clone()).await;
    let known = brain.registry.resolve(session(1)).unwrap();
    assert_eq!(known.activity, Activity::Closed);
}

#[tokio::test]
async fn the_state_of_a_session_that_could_not_be_stored_is_told_later() {
    let mut b = bed("").await;
    b.prompt(1).await;
    let right = std::mem::replace(&mut b.brain.parts.store, closed_store(&b.dir));
    b.brain.flush().await;
    b.brain.parts.store = right;
    b.brain.flush().await;
    let told = b.store.reports_after(0, 10).await.unwrap();
    assert_eq!(
        told.iter()
            .filter(|r| r.kind == ReportKind::Session)
            .count(),
        1
    );
}

#[tokio::test]
async fn what_has_happened_is_kept_until_the_store_takes_it() {
    let mut b = bed("").await;
    let id = EnvelopeId::from_u128(2);
    b.post(vec![mail(2, EnvelopeKind::Task, to_shop())]).await;
    let report = NewReport::new(
        id.0,
        WallMs(1),
        crate::domain::ReportBody::Status(crate::domain::TaskState::new(
            crate::domain::TaskStatus::Completed,
        )),
    );
    let end = vec![Change::Report(report), Change::Finish(id)];
    let right = std::mem::replace(&mut b.brain.parts.store, closed_store(&b.dir));
    assert!(!b.brain.apply_surely(end).await);
    b.brain.parts.store = right;
    let kept = async {
        while !b.brain.mail.is_empty() {
            tokio::time::sleep_until(b.brain.due()).await;
            b.brain.moment().await;
            b.brain.settle().await;
        }
    };
    let deadline = std::time::Duration::from_secs(20);
    tokio::time::timeout(deadline, kept).await.unwrap();
    assert_eq!(b.statuses(2).await.last().unwrap(), "completed");
    assert!(b.brain.mail.is_empty());
}

/// An envelope off the link.
async fn off_the_link(b: &Bed, seq: u64, envelope: Envelope) {
    let cursor = crate::domain::Cursor {
        epoch: crate::domain::Epoch::from_u128(1),
        seq: crate::domain::Seq(seq),
    };
    b.store.store_envelope(cursor, envelope).await.unwrap();
}

#[tokio::test]
async fn a_run_that_was_called_off_as_its_daemon_died_ends_cancelled_and_starts_no_more() {
    for pid in [None, Some(u32::MAX - 7)] {
        let b = bed("").await;
        let id = EnvelopeId::from_u128(2);
        off_the_link(&b, 1, mail(2, EnvelopeKind::Task, to_shop())).await;
        let run = crate::daemon::store::RunRow {
            envelope: id,
            task_id: id,
            attempt: 1,
            pid,
            proc_start: pid.map(u64::from),
            session_id: None,
            started_at: WallMs(1),
            state: "running".into(),
            finished: false,
            detail: json!({}),
        };
        b.store.start_run(run, vec![]).await.unwrap();
        let mut cancel = mail(9, EnvelopeKind::Cancel, to_shop());
        cancel.body = json!({"task_id": id});
        off_the_link(&b, 2, cancel).await;
        let (brain, _rx) = load(b.brain.parts.clone()).await;
        assert!(brain.mail.is_empty());
        let told = b.store.reports_after(0, 100).await.unwrap();
        let of = |id: EnvelopeId, kind| {
            let of = told.iter().filter(move |r| r.id == id.0 && r.kind == kind);
            of.map(|r| r.body.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(id, ReportKind::Status)[0]["status"], "cancelled");
        assert_eq!(
            of(EnvelopeId::from_u128(9), ReportKind::Receipt)[0]["stage"],
            "done"
        );
        assert!(b.store.unfinished_runs().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_task_called_off_in_a_live_session_ends_at_once_and_the_session_is_told() {
    let mut b = bed("").await;
    b.prompt(1).await;
    off_the_link(&b, 1, mail(2, EnvelopeKind::Task, to_session(1))).await;
    off_the_link(&b, 2, mail(3, EnvelopeKind::Message, to_session(1))).await;
    b.brain.refresh().await.unwrap();
    let text = b.prompt(1).await.unwrap().to_string();
    assert!(text.contains("do it") && text.contains("hello"), "{text}");
    let mut cancel = mail(9, EnvelopeKind::Cancel, to_shop());
    cancel.body = json!({"task_id": EnvelopeId::from_u128(2)});
    off_the_link(&b, 3, cancel).await;
    b.brain.refresh().await.unwrap();
    // What the daemon posts itself comes with the queue's next change.
    b.brain.refresh().await.unwrap();
    let told = b.store.reports_after(0, 100).await.unwrap();
    let ends: Vec<_> = told
        .iter()
        .filter(|r| r.id == EnvelopeId::from_u128(2).0)
        .filter(|r| r.body["stage"] == "cancelled" || r.body["status"] == "cancelled")
        .collect();
    assert_eq!(ends.len(), 2);
    assert_eq!(
        ends[0].body["evidence"]["handed_over"], true,
        "the receipt comes first"
    );
    // The message of the same claim goes its way; the session hears of the task at its next boundary.
    assert_eq!(b.brain.claims.len(), 1);
    let tool = json!({"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_input": {}, "tool_response": {}});
    let text = b.hook(1, tool).await.unwrap().to_string();
    assert!(
        text.contains("called off") && text.contains("do it"),
        "{text}"
    );
    let stop = json!({"hook_event_name": "Stop", "last_assistant_message": "I did it."});
    b.hook(1, stop).await;
    let results = b.store.reports_after(0, 100).await.unwrap();
    assert!(results.iter().all(|r| r.kind != ReportKind::Result));
}

#[tokio::test]
async fn mail_expires_by_the_hubs_clock_however_this_devices_is_set() {
    // To the daemon a clock that was set looks like a hub whose clock differs.
    let minutes = |n: i64| n * 60_000;
    let device = crate::daemon::clock::wall();
    for (hub_is_ahead, life, expired) in [
        (minutes(-10), minutes(1), false),
        (minutes(10), minutes(1), false),
        (minutes(-10), minutes(-1), true),
        (minutes(10), minutes(-1), true),
    ] {
        let mut b = bed("").await;
        b.prompt(1).await;
        b.store.hub_clock(device.plus(hub_is_ahead));
        let mut message = mail(2, EnvelopeKind::Message, to_session(1));
        message.expires_at = device.plus(hub_is_ahead + life);
        off_the_link(&b, 1, message).await;
        b.brain.refresh().await.unwrap();
        b.brain.plan_all().await;
        let told = b.store.reports_after(0, 100).await.unwrap();
        let over = told.iter().any(|r| r.body["stage"] == "expired");
        assert_eq!(over, expired, "{hub_is_ahead} {life}");
        // What was known of the hub's clock outlives the daemon.
        let offset = b.store.hub_offset_ms();
        assert!(offset.abs_diff(hub_is_ahead) < 5_000, "{offset}");
    }
}

/// A store that takes nothing.
fn closed_store(dir: &tempfile::TempDir) -> Store {
    let store = Store::open(&dir.path().join("other.db")).unwrap();
    store.without_writer()
}
