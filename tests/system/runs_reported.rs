//! What came of a run reaches the hub: whole, in order, once, whoever dies or is away meanwhile.

use axum::http::StatusCode;
use remote_collab::daemon::store::{FILE, NewReport, Store};
use remote_collab::domain::{Code, Problem, Progress, ReportBody, WallMs};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::timeout;

use crate::fake_hub::{DEADLINE, Refusal};
use crate::run_bed::{RunBed, big, id, starts, task};

#[tokio::test]
async fn a_result_beyond_a_frame_arrives_whole_though_the_daemon_is_killed_at_every_piece() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "BIG")).await;
    let mut kills = 0;
    loop {
        let mut uploads = bed.hub.uploads().subscribe();
        let more = timeout(DEADLINE, uploads.wait_for(|u| u.pieces > kills)).await;
        let complete = more
            .expect("no further piece")
            .unwrap()
            .texts
            .values()
            .any(|(_, all)| *all);
        bed.end(Signal::KILL).await;
        kills += 1;
        link = bed.start().await;
        if complete {
            break;
        }
    }
    assert!(kills >= 4, "{kills} pieces");
    let state = link.status(1, "completed").await;
    assert_eq!(state["status"], "completed", "{}", bed.words());
    let [result] = link.results(1).try_into().unwrap();
    let text = big();
    assert_eq!(result["truncated"], true);
    assert_eq!(result["whole"]["bytes"], text.len());
    assert!(text.starts_with(result["text"].as_str().unwrap()));
    let told = link.told(1);
    let place = |word: &str| told.iter().position(|t| t == word);
    assert!(place("result") < place("completed"), "{told:?}");
    let uploads = bed.hub.uploads().borrow();
    let (bytes, all) = &uploads.texts[&id(1).to_string()];
    assert!(*all && *bytes == text.as_bytes());
    assert_eq!(starts(&bed.log(), 1), 1, "one execution");
}

#[tokio::test]
async fn a_result_that_the_hub_does_not_take_is_reported_with_its_beginning() {
    let mut bed = RunBed::new().await;
    let refusal = Problem::new(Code::UnknownTask, "no such task on this device");
    bed.hub.uploads().send_modify(|u| u.refusal = Some(refusal));
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "BIG")).await;
    link.status(1, "completed").await;
    let result = &link.results(1)[0];
    assert_eq!(result["truncated"], true);
    assert!(big().starts_with(result["text"].as_str().unwrap()));
}

#[tokio::test]
async fn a_result_made_while_the_hub_is_away_is_sent_with_the_same_numbers_until_it_is_confirmed() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "WAIT")).await;
    bed.until_logged("job-1 start").await;
    link.stage(1, "handed_over").await;
    link.cut();
    bed.go(1);
    bed.until_logged("job-1 end").await;
    // It comes back to a hub that takes everything and confirms nothing.
    let mut link = bed.link().await;
    link.confirm = false;
    link.stage(1, "done").await;
    let first = link.cut();
    bed.end(Signal::KILL).await;
    bed.hub.refuse(vec![
        Refusal::Edge(StatusCode::SERVICE_UNAVAILABLE),
        Refusal::Edge(StatusCode::BAD_GATEWAY),
    ]);
    let mut link = bed.start().await;
    link.stage(1, "done").await;
    let again: Vec<_> = link.reports.iter().take(first.len()).collect();
    assert_eq!(again, first.iter().collect::<Vec<_>>());
    assert_eq!(link.results(1).len(), 1);
    assert_eq!(link.results(1)[0]["text"], "done");
    bed.end(Signal::TERM).await;
    let link = bed.start().await;
    assert_eq!(link.told(1), [""; 0], "confirmed, and not sent again");
    assert_eq!(starts(&bed.log(), 1), 1);
}

#[tokio::test]
async fn three_runs_of_a_daemon_that_is_told_to_end_are_reported_interrupted_and_their_slots_are_free()
 {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    for n in 1..=3 {
        bed.deliver(&mut link, task(n, usize::try_from(n).unwrap(), "WAIT"))
            .await;
    }
    for n in 1..=3 {
        bed.until_logged(&format!("job-{n} start")).await;
        link.stage(n, "handed_over").await;
    }
    // The hub is away while the daemon ends: what it has to say is stored.
    link.cut();
    bed.hub
        .refuse(vec![Refusal::Edge(StatusCode::BAD_GATEWAY); 2]);
    bed.end(Signal::TERM).await;
    let stopped = bed.log().iter().filter(|l| l.ends_with("stopped")).count();
    assert_eq!(stopped, 3, "{:?}", bed.log());
    bed.hub.refuse(vec![]);
    let mut link = bed.start().await;
    assert_eq!(link.hello.capacity, 3);
    for n in 1..=3 {
        let state = link.status(n, "interrupted").await;
        assert_eq!(state["reason"], "daemon_stopped");
        assert_eq!(link.results(n)[0]["text"], "partial");
    }
    bed.deliver(&mut link, task(7, 1, "")).await;
    link.status(7, "completed").await;
    let log = bed.log();
    assert!((1..=3).all(|n| starts(&log, n) == 1), "{log:?}");
}

#[tokio::test]
async fn two_hundred_steps_made_while_offline_arrive_in_their_order() {
    let mut bed = RunBed::new().await;
    let places = bed.path("data/daemon");
    let store = Store::open(&places.join(FILE)).unwrap();
    for n in 0..200 {
        let text = format!("step {n}");
        let step = ReportBody::Progress(Progress { text });
        let report = NewReport::new(id(1).0, WallMs(n), step);
        store.append(vec![report]).await.unwrap();
    }
    store.close().await;
    let mut link = bed.start().await;
    for n in 0..200 {
        let report = link.report().await;
        assert_eq!(report.body, json!({"text": format!("step {n}")}));
    }
}
