//! `task --wait`: a producer's command line through hub, daemon and the real CLI, and back.

use crate::bed::Bed;
use crate::support::{SOON, marker};
use serde_json::json;

#[tokio::test]
async fn a_task_that_is_waited_for_prints_its_result_and_exits_by_its_status() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;

    let good = "list the files [[say:There are none.]]";
    let ended = bed
        .producer(&["task", good, "--project", "shop", "--wait"])
        .await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.trim(), "There are none.");
    assert!(ended.stderr.contains("completed"), "{}", ended.stderr);

    let bad = [
        "task",
        "try [[error:400]]",
        "--project",
        "shop",
        "--wait",
        "--json",
    ];
    let ended = bed.producer(&bad).await;
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let task: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(task["status"], "failed", "{task}");
}

#[tokio::test]
async fn waiting_for_a_task_goes_on_after_the_hub_was_killed() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let marker = marker("slow");

    let task = format!("{marker} [[delay:3]] [[say:Done at last.]]");
    let args = ["task", &task, "--project", "shop", "--wait"];
    let waiting = bed.producer(&args);
    let killing = async {
        // The model was asked: the run is under way, and the command listens.
        bed.api.wait_for_marker(&marker, SOON).await;
        bed.kill_hub().await;
        bed.start_hub().await;
    };
    let (ended, ()) = tokio::join!(waiting, killing);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.trim(), "Done at last.");
}
