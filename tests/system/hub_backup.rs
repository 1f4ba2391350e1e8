//! Backups and restores of a real hub with a real daemon: what is kept, what is gone, what begins anew.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::hub_bed::read;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, Machine};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

async fn messages(hub: &HubSite, device: &DeviceSite, name: &str, n: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..n {
        ids.push(hub.message(&format!("{name} {n}"), &device.name).await);
    }
    let last = format!("/messages/{}", ids.last().unwrap());
    hub.becomes(&last, |m| m["status"] != "accepted").await;
    ids
}

/// Takes `n` messages off the device and confirms them.
async fn confirm(hub: &HubSite, device: &DeviceSite, n: usize) -> Vec<String> {
    let ask = device.local(&hub.http, Method::GET, &format!("/messages?limit={n}"));
    let taken = read(ask).await.ok(200);
    let confirm = device.local(&hub.http, Method::POST, "/messages/confirm");
    let body = json!({"claim": taken["claim"]});
    read(confirm.json(&body)).await.ok(200);
    let taken = taken["messages"].as_array().unwrap().iter();
    taken
        .map(|m| m["id"].as_str().unwrap().to_owned())
        .collect()
}

fn queued(device: &DeviceSite) -> Vec<String> {
    let rows = queue_db::messages(&device.queue_db());
    rows.iter().map(|r| r.id.clone()).collect()
}

async fn told_all(device: &DeviceSite) -> Value {
    device
        .until("all told", |s| {
            s["link"]["state"] == "SYNCED" && s["outbox"]["waiting"] == 0
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_nothing_is_lost_that_the_device_has_and_nothing_comes_twice() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let before = messages(&hub, &device, "before", 5).await;
    let file = hub.machine.root().join("hub.backup");
    let path = file.to_str().unwrap();
    let said = hub
        .machine
        .run(&["hub", "backup", path, "--json"], "")
        .await
        .ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["devices"], &said["items"]),
        (&json!(1), &json!(5)),
        "{said}"
    );
    assert_eq!(mode(&file), 0o600);
    // It is not overwritten unasked.
    let bytes = std::fs::read(&file).unwrap();
    let again = hub.machine.run(&["hub", "backup", path], "").await;
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.err.contains("--force"), "{again:?}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);

    // What comes after the backup: three more messages, and the end of the first five.
    let after = messages(&hub, &device, "after", 3).await;
    assert_eq!(confirm(&hub, &device, 5).await, before);
    for id in &before {
        hub.becomes(&format!("/messages/{id}"), |m| m["status"] == "done")
            .await;
    }
    let running = hub.machine.run(&["hub", "restore", path], "").await;
    assert_eq!(running.code, Some(1), "{running:?}");
    assert!(running.err.contains("stop the hub first"), "{running:?}");
    hub.terminate().await;
    let said = hub
        .machine
        .run(&["hub", "restore", path, "--json"], "")
        .await
        .ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    let replaced = Path::new(said["replaced"].as_str().unwrap());
    assert!(replaced.join("hub.db").is_file() && replaced.join("keys/000001.pem").is_file());
    hub.serve().await;
    device.synced().await;

    // The device tells again what became of those that the hub knows, and keeps those that it does not know.
    for id in &before {
        hub.becomes(&format!("/messages/{id}"), |m| m["status"] == "done")
            .await;
    }
    for id in &after {
        hub.get(&format!("/messages/{id}"))
            .await
            .refused(404, "unknown_message");
    }
    assert_eq!(queued(&device), [before.clone(), after.clone()].concat());
    let new = messages(&hub, &device, "new", 2).await;
    assert_eq!(
        queued(&device),
        [before, after.clone(), new.clone()].concat()
    );
    assert_eq!(
        confirm(&hub, &device, 10).await,
        [after, new.clone()].concat()
    );
    for id in &new {
        hub.becomes(&format!("/messages/{id}"), |m| m["status"] == "done")
            .await;
    }
    told_all(&device).await;
    // The folder is one that a restart finds in order, without another new life.
    let epoch = device.synced().await["link"].clone();
    hub.terminate().await;
    hub.serve().await;
    device.synced().await;
    assert!(
        !hub.machine.data().join("hub/restoring").exists(),
        "{epoch}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_copied_back_by_hand_begins_a_new_life() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let db = hub.machine.data().join("hub/hub.db");
    let saved = hub.machine.root().join("saved.db");
    let mut there = messages(&hub, &device, "early", 2).await;
    hub.terminate().await;
    std::fs::copy(&db, &saved).unwrap();
    for caught_up in [false, true] {
        hub.serve().await;
        device.synced().await;
        there.extend(messages(&hub, &device, "later", 5).await);
        if caught_up {
            device.terminate().await;
        }
        hub.terminate().await;
        std::fs::copy(&saved, &db).unwrap();
        hub.serve().await;
        if caught_up {
            // The old numbers are passed again before the device comes back: it must not skip these.
            for n in 0..20 {
                there.push(hub.message(&format!("new {n}"), &device.name).await);
            }
            device.run().await;
        } else {
            device.synced().await;
            there.push(hub.message("new", &device.name).await);
        }
        let last = format!("/messages/{}", there.last().unwrap());
        hub.becomes(&last, |m| m["status"] != "accepted").await;
        assert_eq!(queued(&device), there);
        hub.terminate().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_busy_hub_holds_all_that_was_accepted_before_it_and_makes_the_same_hub_elsewhere()
 {
    let mut hub = HubSite::start().await;
    let device = DeviceSite::enrolled(&mut hub, "laptop").await;
    let keyed = |hub: &HubSite, n: usize| {
        let request = hub.request(Method::POST, "/tasks");
        let body = json!({"task": format!("t{n}"), "device": device.name});
        request
            .header("idempotency-key", format!("k{n}"))
            .json(&body)
    };
    let mut accepted = Vec::new();
    for n in 0..30 {
        let v = read(keyed(&hub, n)).await.ok(202);
        accepted.push(v["id"].as_str().unwrap().to_owned());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (stop, http) = (Arc::clone(&stop), hub.http.clone());
        let (url, token) = (format!("{}/tasks", hub.url()), hub.token.clone());
        let body = json!({"task": "more", "device": device.name});
        async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                read(http.post(&url).bearer_auth(&token).json(&body))
                    .await
                    .ok(202);
                n += 1;
            }
            n
        }
    });
    let file = hub.machine.root().join("hub.backup");
    let path = file.to_str().unwrap();
    for _ in 0..3 {
        hub.machine
            .run(&["hub", "backup", path, "--force"], "")
            .await
            .ok();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 0);
    let jwks = hub.get("/.well-known/jwks.json").await.ok(200);
    let token = hub.token.clone();
    hub.terminate().await;

    let other = Machine::new();
    let said = other.run(&["hub", "restore", path], "").await.ok();
    assert!(said.contains("restored what stood here"), "{said}");
    let mut other = HubSite::start_on(other).await;
    other.token = token;
    assert_eq!(other.get("/.well-known/jwks.json").await.ok(200), jwks);
    for (n, id) in accepted.iter().enumerate() {
        let task = other.get(&format!("/tasks/{id}")).await.ok(200);
        assert_eq!(task["status"], "queued");
        assert_eq!(read(keyed(&other, n)).await.ok(202)["id"], id.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_whole_backup_is_refused_before_anything_is_touched() {
    let mut hub = HubSite::start().await;
    let dir = hub.machine.root().to_owned();
    let file = dir.join("hub.backup");
    let path = file.to_str().unwrap().to_owned();
    hub.machine.run(&["hub", "backup", &path], "").await.ok();
    let into_none = hub.machine.run(&["hub", "backup", "/nowhere/x"], "").await;
    assert_eq!(into_none.code, Some(2), "{into_none:?}");
    let onto_a_folder = hub
        .machine
        .run(&["hub", "backup", "/tmp", "--force"], "")
        .await;
    assert_eq!(onto_a_folder.code, Some(2), "{onto_a_folder:?}");
    hub.terminate().await;
    let db = hub.machine.data().join("hub/hub.db");
    let good = std::fs::read(&file).unwrap();
    let write = |bytes: &[u8], mode: u32| {
        std::fs::write(&file, bytes).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    };
    let mut torn = good.clone();
    let third = torn.len() / 3;
    for b in &mut torn[third..third + 4096] {
        *b ^= 0x5a;
    }
    let store = std::fs::read(&db).unwrap();
    let mut later = good.clone();
    // `user_version` in the file's header.
    later[60..64].copy_from_slice(&9999_u32.to_be_bytes());
    for (bytes, mode, says) in [
        (&good[..good.len() / 2], 0o600, "damaged"),
        (&torn[..], 0o600, "damaged"),
        (&b""[..], 0o600, "no backup"),
        (&b"not a database at all, but long enough to be taken for one by a careless reader of its size"[..], 0o600, "not a database"),
        (&store[..], 0o600, "no backup"),
        (&later[..], 0o600, "later version"),
        (&good[..], 0o644, "chmod 600"),
    ] {
        write(bytes, mode);
        let ran = hub.machine.run(&["hub", "restore", &path], "").await;
        assert_eq!(ran.code, Some(1), "{says}: {ran:?}");
        assert!(ran.err.contains(says), "{says}: {ran:?}");
        assert_eq!(std::fs::read(&db).unwrap(), store, "{says}");
        assert!(!hub.machine.data().join("hub/restoring").exists());
    }
    std::fs::remove_file(&file).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(pipe.unwrap().success());
    for odd in [&*path, dir.to_str().unwrap()] {
        let ran = hub.machine.run(&["hub", "restore", odd], "").await;
        assert!(ran.err.contains("no regular file"), "{odd}: {ran:?}");
    }
    let none = hub.machine.run(&["hub", "restore", "/nowhere/x"], "").await;
    assert_eq!(none.code, Some(1), "{none:?}");
    // A backup is no store: a hub does not begin a second life on it.
    std::fs::write(&db, &good).unwrap();
    let serve = ["hub", "serve", "--listen", "127.0.0.1:0"];
    let ran = hub.machine.run(&serve, "").await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("hub restore"), "{ran:?}");
}
