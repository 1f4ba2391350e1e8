//! Memory at a session's start: what of it, how often, and from where when the hub does not answer.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::bed::Bed;
use crate::support::interactive::Interactive;
use crate::support::{SOON, marker};

/// Gives the project a memory; returns the path to change it by.
async fn remember(bed: &Bed, summary: &str) -> String {
    let path = format!("/memory/{}", uuid::Uuid::new_v4());
    let memory = json!({"project": "shop", "summary": summary, "context": []});
    bed.call(Method::POST, &path, Some(&memory)).await;
    path
}

#[tokio::test]
async fn each_kind_of_start_is_told_what_it_lacks_and_nothing_twice() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let summary = marker("summary");
    remember(&bed, &summary).await;
    let print = async |args: &[&str]| {
        let said = bed.home.print_json(&folder, args, "hello").await;
        said["session_id"].as_str().expect("a session").to_owned()
    };
    let count = |id: &str| bed.api.count_in_context(id, &summary);

    let id = print(&[]).await;
    assert_eq!(count(&id), 1, "startup");
    for time in ["once", "twice"] {
        let resumed = print(&["--resume", &id]).await;
        assert_eq!((&resumed, count(&resumed)), (&id, 1), "resumed {time}");
    }
    // A fork has the whole conversation, with the memory in it, and gets it anew: its context may be another's.
    let fork = print(&["--resume", &id, "--fork-session"]).await;
    assert_ne!(fork, id);
    assert!(count(&fork) >= 1, "fork");

    let session = Interactive::start(&bed.home, &folder, &[]).await;
    session.ask(&bed.api, "one").await;
    let old = session.session_id();
    assert_eq!(count(&old), 1, "startup");
    session.type_prompt("/clear").await;
    let pid = session.pid();
    let new = bed
        .home
        .wait_for_live(|s| s.pid() == pid && s.session_id() != old, SOON)
        .await;
    session.ask(&bed.api, "two").await;
    assert_eq!(count(new.session_id()), 1, "clear");
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn unchanged_memory_is_told_in_identical_bytes() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let summary = marker("summary");
    remember(&bed, &summary).await;
    let mut told = Vec::new();
    for _ in 0..2 {
        let said = bed.home.print_json(&folder, &[], "hello").await;
        let id = said["session_id"].as_str().expect("a session");
        let request = bed.api.last_main(id).expect("a request");
        let texts = request.passages().into_iter().map(|p| p.text);
        told.push(texts.filter(|t| t.contains(&summary)).collect::<Vec<_>>());
    }
    assert_eq!(told[0].len(), 1);
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn a_hub_that_hangs_costs_a_session_nothing_but_fresh_memory() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let summary = marker("summary");
    remember(&bed, &summary).await;
    bed.home.print_json(&folder, &[], "hello").await;

    bed.signal_hub(Signal::STOP);
    let said = bed
        .home
        .print_json(&folder, &[], "while the hub hangs")
        .await;
    let id = said["session_id"].as_str().expect("a session");
    let request = bed.api.last_main(id).expect("a request");
    assert_eq!(request.count(&summary), 1);
    assert_eq!(request.count("last good copy"), 1, "it says how old it is");

    // Also by a daemon that never had an answer itself.
    bed.signal_hub(Signal::CONT);
    bed.kill_daemon().await;
    bed.start_daemon().await;
    bed.kill_hub().await;
    let said = bed.home.print_json(&folder, &[], "while it is gone").await;
    let id = said["session_id"].as_str().expect("a session");
    assert_eq!(bed.api.count_in_context(id, &summary), 1);
    bed.start_hub().await;
}

#[tokio::test]
async fn hooks_in_two_settings_files_tell_memory_and_mail_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    let dir = folder.to_str().expect("UTF-8");
    // Files that differ make entries that differ, which the CLI runs each.
    let hook = json!({"type": "command", "command": "true"});
    let others = json!({"hooks": {"SessionStart": [{"hooks": [hook]}], "UserPromptSubmit": [{"hooks": [hook]}]}});
    bed.home.settings(&others);
    for scope in ["local", "user", "project"] {
        let args = ["enable", "--scope", scope, dir];
        bed.run(&bed.daemon_dir(), &args, "").await;
    }
    let (summary, mail) = (marker("summary"), marker("mail"));
    remember(&bed, &summary).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    let body = json!({"project": "shop", "content": mail});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;
    session.ask(&bed.api, "what is new?").await;
    bed.receipt(&id, "done").await;
    for marker in [&summary, &mail] {
        assert_eq!(bed.api.count_in_context(&session.session_id(), marker), 1);
    }
    assert_eq!(session.exit().await, 0);
}
