//! What goes wrong between the daemon and a run: a CLI that takes its task and ignores it, lines beyond all bounds, a
//! clock that was set.

use remote_collab::daemon::store::FILE;
use remote_collab::domain::{Envelope, EnvelopeKind, WallMs};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fake_hub::DEADLINE;
use crate::run_bed::{RunBed, id, starts, task};
use crate::support::watch::Watch;

fn with(mut envelope: Envelope, key: &str, value: Value) -> Envelope {
    envelope.body[key] = value;
    envelope
}

#[tokio::test]
async fn a_cli_that_takes_a_task_and_ignores_it_is_never_taken_for_success() {
    let mut bed = RunBed::new().await;
    let says = |line: Value| format!("#!/bin/sh\ncat > /dev/null; echo '{line}'\n");
    let text = "y".repeat(200_000);
    let cases = [
        // Read, and not a word.
        ("#!/bin/sh\ncat > /dev/null\n".to_owned(), "no_result"),
        // Nothing read, of a text that no pipe holds.
        ("#!/bin/sh\nexit 0\n".to_owned(), "no_result"),
        // A session and steps, and no end.
        (
            says(
                json!({"type": "assistant", "message": {"content": [{"type": "text", "text": "ok"}]}}),
            ),
            "no_result",
        ),
        // The word `success`, and nothing done.
        (
            says(
                json!({"type": "result", "subtype": "success", "is_error": false, "num_turns": 0, "result": ""}),
            ),
            "prompt_blocked",
        ),
        // Neither read nor ended.
        ("#!/bin/sh\nexec sleep 600\n".to_owned(), "timeout"),
    ];
    let mut link = bed.start().await;
    for (n, (program, reason)) in (1..).zip(cases) {
        bed.program(&program);
        let options = json!({"timeout_s": if reason == "timeout" { 1 } else { 600 }});
        let task = with(task(n, 1, &text), "options", options);
        bed.deliver(&mut link, task).await;
        let state = link.status(n, "failed").await;
        assert_eq!(state["reason"], reason, "{program}");
        assert_eq!(link.results(n).len(), 1, "{program}");
        let told = link.told(n);
        assert!(!told.contains(&"completed".to_owned()), "{told:?}");
    }
}

#[tokio::test]
async fn lines_of_twenty_megabytes_harm_no_run_and_the_result_says_what_is_left_out() {
    let mut bed = RunBed::new().await;
    bed.program(
        r#"#!/bin/sh
cat > /dev/null
fill() { head -c 20971520 /dev/zero | tr '\0' "$1"; }
printf '{"type":"assistant","message":{"content":[{"type":"text","text":"'; fill a; echo '"}]}}'
fill b; echo
printf '{"type":"result","subtype":"success","is_error":false,"terminal_reason":"completed","num_turns":1,"result":"'
fill c; echo '"}'
"#,
    );
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "")).await;
    link.status(1, "completed").await;
    let [result] = link.results(1).try_into().unwrap();
    assert_eq!(result["truncated"], true);
    let uploads = bed.hub.uploads().borrow();
    let (bytes, all) = &uploads.texts[&id(1).to_string()];
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(*all && text.len() <= 16 << 20 && text.len() > 15 << 20);
    let (kept, note) = text.rsplit_once('\n').unwrap();
    assert!(kept.bytes().all(|b| b == b'c'));
    let says = note.contains("cut") && note.contains("transcript");
    assert!(says, "{note}");
}

#[tokio::test]
async fn tasks_of_a_hub_whose_clock_is_far_behind_outlive_the_daemon_and_all_run() {
    let mut bed = RunBed::new().await;
    // To this hub it is 1970: by the device's own clock every one of its tasks is long over.
    let mut link = bed.start().await;
    let until = |mut e: Envelope, ms: i64| {
        e.created_at = WallMs(0);
        e.expires_at = WallMs(ms);
        e
    };
    bed.deliver(&mut link, until(task(1, 1, "WAIT"), 600_000))
        .await;
    bed.until_logged("job-1 start").await;
    for n in 2..=6 {
        // They wait for the folder in which the first one runs.
        bed.deliver(&mut link, until(task(n, 1, ""), 600_000)).await;
        link.stage(n, "held").await;
    }
    link.cut();
    bed.end(Signal::KILL).await;

    let mut link = bed.start().await;
    link.status(1, "interrupted").await;
    for n in 2..=6 {
        link.status(n, "completed").await;
    }
    let began: Vec<_> = bed
        .log()
        .into_iter()
        .filter(|l| l.ends_with("start"))
        .collect();
    let in_order: Vec<_> = (1..=6).map(|n| format!("job-{n} start")).collect();
    assert_eq!(began, in_order);
    assert!((1..=6).all(|n| starts(&bed.log(), n) == 1));
    // What is over by the hub's clock is over.
    bed.deliver(&mut link, until(task(7, 1, ""), -1)).await;
    link.stage(7, "expired").await;
    assert_eq!(starts(&bed.log(), 7), 0);
}

#[tokio::test]
async fn what_this_version_does_not_know_is_told_unsupported_once_and_what_follows_runs() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    let unknown = Envelope {
        kind: EnvelopeKind::Other("hologram".into()),
        ..task(1, 1, "")
    };
    bed.deliver(&mut link, unknown.clone()).await;
    link.stage(1, "unsupported").await;
    link.cut();
    bed.end(Signal::KILL).await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, unknown).await;
    bed.deliver(&mut link, task(2, 1, "")).await;
    link.status(2, "completed").await;
    assert_eq!(starts(&bed.log(), 1), 0);
    assert!(!link.told(1).contains(&"running".to_owned()));
}

#[tokio::test]
async fn what_was_read_and_not_stored_when_the_daemon_was_killed_comes_again_and_runs_once() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    let queue = bed.path("data/daemon").join(FILE);
    let lock = rusqlite::Connection::open(queue).unwrap();
    lock.busy_timeout(DEADLINE).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    for n in 1..=3 {
        bed.deliver(&mut link, task(n, 1, "")).await;
    }
    // It has them, and says so only to its log.
    let watch = Watch::new();
    watch.arm(bed.dir.path());
    let log = || std::fs::read_to_string(bed.path("daemon.log")).unwrap();
    let refused = timeout(DEADLINE, async {
        while !log().contains("nothing is acked until") {
            watch.changed().await;
        }
    });
    assert!(refused.await.is_ok(), "{}", bed.words());
    bed.end(Signal::KILL).await;
    drop(lock);

    let mut link = bed.start().await;
    let stands = link.hello.last.map_or(0, |c| c.seq.0);
    assert_eq!(stands, 0, "nothing was stored, nothing is claimed");
    for n in 1..=3 {
        bed.deliver(&mut link, task(n, 1, "")).await;
    }
    for n in 1..=3 {
        link.status(n, "completed").await;
    }
    assert!(
        (1..=3).all(|n| starts(&bed.log(), n) == 1),
        "{:?}",
        bed.log()
    );
}
