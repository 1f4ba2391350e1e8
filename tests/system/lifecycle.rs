//! Who may run beside whom, and how hub, daemon and `up` begin and end, as processes.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::support::hub_bed::read;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, Machine, PATIENCE, http_client, stages};
use crate::support::watch::Watch;

/// The longest time between two looks at the hub while its store is watched.
const LOOK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hub_or_daemon_on_the_same_folder_is_refused_by_name_and_harms_nothing() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    let before = device.synced().await;

    let second = hub
        .machine
        .run(&["hub", "serve", "--listen", "127.0.0.1:0"], "")
        .await;
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.err.contains("another hub"), "{second:?}");
    assert_eq!(second.out, "");
    let args = ["daemon", "run", "--local-listen", "127.0.0.1:0"];
    let second = device.machine.run(&args, "").await;
    assert_eq!(second.code, Some(1), "{second:?}");
    let pid = device.process().pid.to_string();
    assert!(
        second.err.contains("already running") && second.err.contains(&pid),
        "{second:?}"
    );
    assert_eq!(second.out, "");

    let after = device.synced().await;
    assert_eq!(after["link"]["generation"], before["link"]["generation"]);
    assert_eq!(after["pid"], before["pid"]);
    hub.message("still one", &device.name).await;
    device
        .until("the message", |_| queue_db::count(&device.queue_db()) == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_on_a_taken_port_says_so() {
    let hub = HubSite::start().await;
    let other = Machine::new();
    let refused = other
        .run(&["hub", "serve", "--listen", &hub.listen], "")
        .await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused
            .err
            .contains(&format!("cannot listen on {}", hub.listen)),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_data_folder_is_told_that_the_key_is_held_elsewhere_and_gets_no_mail() {
    let mut hub = HubSite::start().await;
    let mut original = DeviceSite::enrolled(&mut hub, "laptop").await;
    original.run().await;
    original.synced().await;
    hub.message("before the copy", &original.name).await;
    original
        .until("the message", |_| {
            queue_db::count(&original.queue_db()) == 1
        })
        .await;
    assert!(original.terminate().await.success());
    let mut copy = original.copy();
    original.run().await;
    let lives = original.synced().await;

    copy.run().await;
    let refused = copy
        .until("a refusal", |s| !s["link"]["code"].is_null())
        .await;
    assert_eq!(refused["link"]["code"], "key_held_elsewhere", "{refused}");
    assert_eq!(refused["link"]["state"], "DISCONNECTED");
    assert!(
        refused["link"]["hint"]
            .as_str()
            .unwrap()
            .contains("stop the other daemon")
            && refused["link"]["hint"]
                .as_str()
                .unwrap()
                .contains("login --take-over"),
        "{refused}"
    );
    assert_eq!(refused["link"]["retry_at"], Value::Null, "no blind retry");
    assert_eq!(copy.status().await.0, Some(4));
    for n in 0..20 {
        hub.message(&format!("m{n}"), &original.name).await;
    }
    original
        .until("the mail", |_| queue_db::count(&original.queue_db()) == 21)
        .await;
    assert_eq!(queue_db::count(&copy.queue_db()), 1);
    assert_eq!(
        original.synced().await["link"]["generation"],
        lives["link"]["generation"]
    );

    // Once the other one is gone, the copy is let in where the user says so, and nothing it has comes again.
    assert!(original.terminate().await.success());
    copy.machine.run(&["connect"], "").await.ok();
    copy.synced().await;
    copy.until("the mail", |_| queue_db::count(&copy.queue_db()) == 21)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_is_back_in_sync_at_once() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    let mut generation = 0;
    for round in 0..3 {
        device.run().await;
        let started = Instant::now();
        let status = device.synced().await;
        // Far below what a dead connection takes to be noticed, with room for a busy machine.
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{:?}",
            started.elapsed()
        );
        let now = status["link"]["generation"].as_u64().unwrap();
        assert!(now > generation, "{now} after {generation}");
        generation = now;
        if round == 1 {
            // Its connection stays open at the hub while it is replaced: stopped, it cannot even be reset.
            device.process().signal(Signal::STOP);
        }
        device.kill().await;
    }
}

/// The sockets that processes of this machine listen on.
fn sockets(machine: &Machine) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let mut found = Vec::new();
    let mut dirs = vec![machine.root().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_socket() {
                found.push(entry.path());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_and_daemon_end_cleanly_with_work_under_way_and_start_again() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    for round in 1..=2 {
        device.run().await;
        device.synced().await;
        // Kept connections and a message that has just been pushed.
        read(device.local(&hub.http, Method::GET, "/status"))
            .await
            .ok(200);
        let id = hub.message(&format!("{round}"), &device.name).await;
        assert_eq!(
            (sockets(&hub.machine).len(), sockets(&device.machine).len()),
            (1, 1)
        );
        assert!(device.terminate().await.success());
        assert_eq!(sockets(&device.machine), Vec::<PathBuf>::new());
        assert_eq!(device.status().await.0, Some(3));
        assert!(hub.terminate().await.success());
        assert_eq!(sockets(&hub.machine), Vec::<PathBuf>::new());

        hub.serve().await;
        device.run().await;
        hub.becomes(&format!("/messages/{id}"), |m| {
            stages(m).contains(&"on_device")
        })
        .await;
        // This time the hub goes first, and the daemon lives on.
        assert!(hub.terminate().await.success());
        device
            .until("the end of the link", |s| s["link"]["state"] != "SYNCED")
            .await;
        assert!(device.terminate().await.success());
        hub.serve().await;
    }
    assert_eq!(queue_db::count(&device.queue_db()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn up_ends_cleanly_and_starts_again_with_its_token_and_its_mail() {
    let machine = Machine::new();
    let http = http_client();
    let args = [
        "up",
        "--hub-listen",
        "127.0.0.1:0",
        "--local-listen",
        "127.0.0.1:0",
    ];
    let mut known: Option<(Value, String)> = None;
    for _ in 0..2 {
        let up = machine.spawn(&args).await;
        let token = up.ready["token"].clone();
        let ask = |method, path: &str| {
            let url = format!("{}{path}", up.ready["hub"].as_str().unwrap());
            http.request(method, url)
                .bearer_auth(token.as_str().unwrap())
        };
        let id = match &known {
            None => {
                let post = ask(Method::POST, "/messages").json(&json!({"content": "hello"}));
                let answer = read(post).await.ok(202);
                answer["id"].as_str().unwrap().to_owned()
            }
            Some((before, id)) => {
                assert_eq!(&token, before, "the token is kept");
                id.clone()
            }
        };
        let watch = Watch::new();
        watch.arm(&machine.data().join("hub"));
        let arrived = async {
            loop {
                let item = read(ask(Method::GET, &format!("/messages/{id}")))
                    .await
                    .ok(200);
                if stages(&item).contains(&"on_device") {
                    return;
                }
                // The ack is a row of the hub's store; one that came before the watch is seen at the next look.
                drop(timeout(LOOK, watch.changed()).await);
            }
        };
        timeout(PATIENCE, arrived).await.unwrap();
        known = Some((token, id));
        assert!(up.terminate().await.success());
        assert_eq!(sockets(&machine), Vec::<PathBuf>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_up_on_the_same_folder_is_told_of_the_folder_not_of_a_port() {
    let machine = Machine::new();
    let args = [
        "up",
        "--hub-listen",
        "127.0.0.1:0",
        "--local-listen",
        "127.0.0.1:0",
    ];
    let up = machine.spawn(&args).await;
    let second = machine.run(&args, "").await;
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.err.contains("another hub"), "{second:?}");
    assert!(!second.err.contains("--hub-listen"), "{second:?}");
    assert!(up.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_enabled_without_touching_its_settings_and_keeps_the_name_it_got() {
    let machine = Machine::new();
    let folder = machine.root().join("shop");
    std::fs::create_dir(&folder).unwrap();
    let dir = folder.to_str().unwrap();

    let out = machine.run(&["enable", "--no-hooks", dir], "").await.ok();
    assert!(out.contains("enabled `shop`"), "{out}");
    assert!(!folder.join(".claude").exists());
    let again = machine
        .run(&["enable", "--no-hooks", "--name", "other", dir], "")
        .await
        .ok();
    assert!(again.contains("enabled `shop`"), "{again}");
    assert!(
        again.contains("warning") && again.contains("`other`"),
        "{again}"
    );
    let both = ["enable", "--no-hooks", "--scope", "user", dir];
    assert_eq!(machine.run(&both, "").await.code, Some(2));
    let out = machine.run(&["disable", dir], "").await.ok();
    assert!(out.contains("disabled `shop`"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_a_command_says_so_once_and_ends_with_three() {
    let machine = Machine::new();
    let ran = machine.run(&["status"], "").await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(ran.out, "");
    assert_eq!(ran.err.matches("is not running").count(), 1, "{ran:?}");
    assert_eq!(
        ran.err.matches("remote-collab daemon run").count(),
        1,
        "{ran:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_names_itself_in_its_own_file() {
    let machine = Machine::new();
    let folder = machine.root().join("checkout-2");
    std::fs::create_dir_all(folder.join(".claude")).unwrap();
    let file = folder.join(".claude/remote-collab.json");
    std::fs::write(file, r#"{"name": "shop"}"#).unwrap();
    let dir = folder.to_str().unwrap();
    let out = machine.run(&["enable", dir], "").await.ok();
    assert!(out.contains("enabled `shop`"), "{out}");
}
