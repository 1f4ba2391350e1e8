//! A hub that is killed: what it answered 202 for is there, and a repetition finds it.

use std::io::BufRead;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use remote_collab::domain::Trust;
use remote_collab::hub;
use serde_json::{Value, json};

use crate::support::hub_bed::{ALL_SCOPES, HubBed, config, read, token};

/// Says to the child, which is this test program again, that it is a hub over this folder.
const CHILD: &str = "REMOTE_COLLAB_TEST_HUB_DIR";

/// In the child: a hub until it is killed. In an ordinary run there is nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_hub_in_a_process_of_its_own() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let mut config = config(Path::new(&dir));
    if std::env::var_os(CALLBACKS[0].0).is_some() {
        config.webhooks.allow_private = true;
        config.webhooks.first_wait = std::time::Duration::from_secs(1);
    }
    let hub = hub::start(config).await.unwrap();
    let token = token(&hub, "ci", "default", ALL_SCOPES, Trust::Run).await;
    println!("\n{}", json!({"url": hub.url(), "token": token}));
    std::future::pending::<()>().await;
}

pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Lets the child call back to this machine, and again a second after a failure.
pub(crate) const CALLBACKS: &[(&str, &str)] = &[("REMOTE_COLLAB_TEST_HUB_CALLBACKS", "1")];

pub(crate) fn spawn(dir: &Path) -> (Killed, Value) {
    spawn_with(dir, &[])
}

pub(crate) fn spawn_with(dir: &Path, env: &[(&str, &str)]) -> (Killed, Value) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hub_kill::a_hub_in_a_process_of_its_own",
            "--nocapture",
        ])
        .env(CHILD, dir)
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let child = Killed(child);
    let ready = out
        .lines()
        .map_while(Result::ok)
        .find_map(|l| serde_json::from_str::<Value>(&l).ok())
        .expect("the child says where it listens");
    (child, ready)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_202_is_there_after_a_sigkill_and_a_repetition_finds_it() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let HubBed { dir, hub, http, .. } = bed;
    hub.shutdown().await;
    let post = |ready: &Value, n: usize| {
        http.post(format!("{}/tasks", ready["url"].as_str().unwrap()))
            .bearer_auth(ready["token"].as_str().unwrap())
            .header("idempotency-key", format!("k{n}"))
            .json(&json!({"task": format!("{n}")}))
    };
    let mut ids = Vec::new();
    for round in 0..4 {
        let (child, ready) = spawn(dir.path());
        // All that was accepted before this life is answered as then.
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(&read(post(&ready, n)).await.ok(202)["id"], id);
        }
        for n in ids.len()..=round * 3 {
            ids.push(read(post(&ready, n)).await.ok(202)["id"].clone());
        }
        drop(child);
    }
    let bed = HubBed::start_in(dir, |_| {}).await;
    let list = bed.get("/tasks").await.ok(200);
    let mut found: Vec<_> = list["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["id"].clone())
        .collect();
    found.reverse();
    assert_eq!(found, ids);
}
