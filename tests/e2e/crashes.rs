//! SIGKILL in the middle: nothing lost, nothing twice, and hooks that never hurt.

use rustix::process::Signal;
use serde_json::json;

use crate::bed::{Bed, stages};
use crate::support::interactive::Interactive;
use crate::support::{SOON, marker};

#[tokio::test]
async fn a_result_survives_a_hub_that_is_killed_while_the_run_goes_on() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let marker = marker("task");
    let gate = bed.api.gate(&marker);
    let body = json!({"project": "shop", "task": format!("{marker} [[say:kept]]")});
    let id = bed.post("/tasks", &body).await;
    gate.wait_until_held(SOON).await;

    bed.kill_hub().await;
    gate.release();
    bed.start_hub().await;

    let task = bed.task(&id, "completed").await;
    assert_eq!(task["result"]["text"], "kept");
    assert_eq!(stages(&task).iter().filter(|s| *s == "done").count(), 1);
    let session = task["result"]["session_id"].as_str().expect("a session");
    assert_eq!(bed.api.count_in_context(session, &marker), 1);
}

#[tokio::test]
async fn a_run_whose_daemon_is_killed_ends_interrupted_and_is_not_repeated() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let marker = marker("task");
    let gate = bed.api.gate(&marker);
    let body = json!({"project": "shop", "task": format!("{marker} [[say:never]]")});
    let id = bed.post("/tasks", &body).await;
    gate.wait_until_held(SOON).await;
    let orphan = bed
        .home
        .live_sessions()
        .first()
        .expect("the run is registered")
        .pid();
    let orphan = crate::support::process::Process::open(orphan).expect("the run lives");

    bed.kill_daemon().await;
    bed.start_daemon().await;

    let task = bed.task(&id, "interrupted").await;
    assert_eq!(task["reason"], "daemon_died");
    assert!(orphan.ended(SOON).await, "the orphan was stopped");
    gate.release();
    let asked = bed
        .api
        .main_requests()
        .iter()
        .filter(|r| r.contains(&marker))
        .count();
    assert_eq!(asked, 1, "one execution");
}

#[tokio::test]
async fn a_message_handed_over_before_the_daemon_is_killed_is_seen_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let (turn, marker) = (marker("turn"), marker("message"));
    let id = bed
        .post("/messages", &json!({"project": "shop", "content": marker}))
        .await;
    bed.receipt(&id, "on_device").await;
    let gate = bed.api.gate(&turn);
    session.type_prompt(&turn).await;
    // The model has it: the hook's output was taken.
    bed.api.wait_for_marker(&marker, SOON).await;

    bed.kill_daemon().await;
    gate.release();
    session.wait_for_turns(1).await;
    bed.start_daemon().await;

    let message = bed.receipt(&id, "done").await;
    assert_eq!(stages(&message).iter().filter(|s| *s == "seen").count(), 1);
    session.ask(&bed.api, "next").await;
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 1);
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn messages_posted_while_the_daemon_is_dead_all_arrive_in_order_and_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    bed.kill_daemon().await;
    let markers: Vec<_> = (0..5).map(|i| marker(&format!("m{i}"))).collect();
    let mut ids = Vec::new();
    for marker in &markers {
        ids.push(
            bed.post("/messages", &json!({"project": "shop", "content": marker}))
                .await,
        );
    }
    bed.kill_hub().await;
    bed.start_hub().await;
    bed.start_daemon().await;
    for id in &ids {
        bed.receipt(id, "on_device").await;
    }
    session.ask(&bed.api, "what is new?").await;
    for id in &ids {
        bed.receipt(id, "done").await;
    }
    let request = bed
        .api
        .last_main(&session.session_id())
        .expect("the prompt was sent");
    let given = request.given_text();
    let places: Vec<_> = markers.iter().map(|m| given.find(m.as_str())).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?}"
    );
    for marker in &markers {
        assert_eq!(request.count(marker), 1);
    }
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn a_daemon_that_hangs_or_is_gone_shows_nothing_and_holds_up_nothing() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;

    bed.signal_daemon(Signal::STOP);
    session
        .ask(&bed.api, "while it hangs [[say:answered one]]")
        .await;
    session.wait_for_text("answered one", SOON).await;
    bed.signal_daemon(Signal::CONT);
    bed.kill_daemon().await;
    session
        .ask(&bed.api, "while it is gone [[say:answered two]]")
        .await;
    session.wait_for_text("answered two", SOON).await;

    let screen = session.terminal().capture().await;
    for word in ["hook failed", "hook error", "timed out", "remote-collab"] {
        assert!(!screen.contains(word), "{word}: {screen}");
    }
    // It hears at its start what happened meanwhile.
    bed.start_daemon().await;
    let id = session.session_id();
    bed.until(
        "the hub knows the session",
        reqwest::Method::GET,
        "/sessions",
        |v| v.to_string().contains(&id),
    )
    .await;
    assert_eq!(session.exit().await, 0);
}
