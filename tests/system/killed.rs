//! SIGKILL at the moments that count: after an answer, after an ack, with reports on their way.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::hub_bed::read;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, stages};

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_task_is_there_after_the_hub_was_killed_at_the_first_answer() {
    const TASKS: usize = 20;
    let mut hub = HubSite::start().await;
    let device = DeviceSite::enrolled(&mut hub, "laptop").await;
    for round in 0..3 {
        let post = |hub: &HubSite, n: usize| {
            let request = hub.request(Method::POST, "/tasks");
            let body = json!({"task": format!("{round}-{n}"), "device": device.name});
            request
                .header("idempotency-key", format!("{round}-{n}"))
                .json(&body)
        };
        let mut answers = JoinSet::new();
        for n in 0..TASKS {
            let request = post(&hub, n);
            answers.spawn(async move {
                let response = request.send().await.ok()?;
                let accepted = response.status() == 202;
                let body: Value = response.json().await.ok()?;
                accepted.then_some((n, body))
            });
        }
        let mut accepted = Vec::new();
        while accepted.is_empty() {
            accepted.extend(answers.join_next().await.unwrap().unwrap());
        }
        hub.kill().await;
        while let Some(answer) = answers.join_next().await {
            accepted.extend(answer.unwrap());
        }
        hub.serve().await;
        for (n, answer) in &accepted {
            let task = hub.get(answer["url"].as_str().unwrap()).await.ok(200);
            assert_eq!(task["status"], "queued", "{n}: {task}");
            // The key outlived the hub, too.
            assert_eq!(read(post(&hub, *n)).await.ok(202)["id"], answer["id"]);
        }
        // Those without an answer are posted again: each is there once, whether it had been stored or not.
        for n in 0..TASKS {
            read(post(&hub, n)).await.ok(202);
        }
        let listed = hub.get("/tasks?limit=100").await.ok(200);
        assert_eq!(
            listed["tasks"].as_array().unwrap().len(),
            TASKS * (round + 1)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_device_is_in_the_queue_of_a_daemon_killed_at_once() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    let mut ids = Vec::new();
    for round in 0..3 {
        device.run().await;
        device.synced().await;
        for n in 0..10 {
            ids.push(hub.message(&format!("{round}/{n}"), &device.name).await);
        }
        let last = format!("/messages/{}", ids.last().unwrap());
        hub.becomes(&last, |m| stages(m).contains(&"on_device"))
            .await;
        device.kill().await;
        let rows = queue_db::messages(&device.queue_db());
        let there: Vec<_> = rows.iter().map(|r| r.id.as_str()).collect();
        assert_eq!(there, ids.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_made_while_the_hub_is_down_arrive_once_after_both_were_killed() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(hub.message(&format!("m{n}"), &device.name).await);
    }
    let held = |m: &Value| stages(m) == ["accepted", "on_device", "held"];
    for id in &ids {
        hub.becomes(&format!("/messages/{id}"), held).await;
    }
    hub.kill().await;

    // A program takes and confirms everything while nobody can be told.
    let ask = device.local(&hub.http, Method::GET, "/messages?limit=100");
    let taken = read(ask).await.ok(200);
    assert_eq!(taken["messages"].as_array().unwrap().len(), ids.len());
    let confirm = device.local(&hub.http, Method::POST, "/messages/confirm");
    read(confirm.json(&json!({"claim": taken["claim"]})))
        .await
        .ok(200);
    device.kill().await;
    device.run().await;
    let (code, status) = device.status().await;
    assert_eq!(code, Some(4));
    assert!(
        status["outbox"]["waiting"].as_u64().unwrap() >= 4 * 30,
        "{status}"
    );

    let whole = [
        "accepted",
        "on_device",
        "held",
        "claimed",
        "handed_over",
        "seen",
        "done",
    ];
    // The second time nothing is left to tell, and what was told stays.
    for _ in 0..2 {
        hub.serve().await;
        device
            .until("all told", |s| {
                s["link"]["state"] == "SYNCED" && s["outbox"]["waiting"] == 0
            })
            .await;
        for id in &ids {
            let item = hub.get(&format!("/messages/{id}")).await.ok(200);
            assert_eq!(stages(&item), whole, "{item}");
        }
        hub.kill().await;
    }
    let (_, status) = device.status().await;
    assert_eq!(status["outbox"]["rejected"], 0, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_stopped_in_its_tracks_catches_up() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    device.process().signal(Signal::STOP);
    let mut ids = Vec::new();
    for n in 0..300 {
        ids.push(hub.message(&format!("m{n}"), &device.name).await);
    }
    device.process().signal(Signal::CONT);
    let last = format!("/messages/{}", ids.last().unwrap());
    hub.becomes(&last, |m| stages(m).contains(&"on_device"))
        .await;
    let rows = queue_db::messages(&device.queue_db());
    assert_eq!(rows.iter().map(|r| r.id.clone()).collect::<Vec<_>>(), ids);
}
