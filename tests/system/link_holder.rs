//! One device, one place: copies of a data folder, `login --take-over`, and a store that was put back.

use serde_json::{Value, json};

use crate::support::hub_bed::HubBed;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, stages};
use crate::support::ws_client::{WsClient, hello};

/// Waits until the daemon has given up for good, with this code.
async fn shut_out(device: &DeviceSite, code: &str) -> Value {
    let status = device
        .until("a refusal", |s| s["link"]["code"] == code)
        .await;
    assert_eq!(status["link"]["state"], "DISCONNECTED", "{status}");
    assert_eq!(status["link"]["retry_at"], Value::Null, "no blind retry");
    let hint = status["link"]["hint"].as_str().unwrap();
    assert!(hint.contains("login --take-over"), "{hint}");
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_moves_to_another_machine_when_a_person_says_so_and_never_delivers_in_two_places()
{
    let mut hub = HubSite::start().await;
    let mut one = DeviceSite::enrolled(&mut hub, "laptop").await;
    one.run().await;
    one.synced().await;
    assert!(one.terminate().await.success());
    let mut two = one.copy();
    one.run().await;
    one.synced().await;
    two.run().await;
    shut_out(&two, "key_held_elsewhere").await;

    let said = two.machine.run(&["login", "--take-over"], "").await.ok();
    assert!(said.contains("connected from here now"), "{said}");
    two.synced().await;
    shut_out(&one, "key_held_elsewhere").await;
    let id = hub.message("to the second", &two.name).await;
    hub.becomes(&format!("/messages/{id}"), |m| {
        stages(m).contains(&"on_device")
    })
    .await;
    assert_eq!(queue_db::count(&two.queue_db()), 1);
    assert_eq!(queue_db::count(&one.queue_db()), 0);

    // The hub knows it after a restart, too, and also while the new place is away.
    assert!(two.terminate().await.success());
    assert!(hub.terminate().await.success());
    hub.serve().await;
    let id = hub.message("while nobody is there", &two.name).await;
    one.machine.run(&["connect"], "").await;
    shut_out(&one, "key_held_elsewhere").await;
    assert_eq!(queue_db::count(&one.queue_db()), 0);
    two.run().await;
    two.synced().await;
    hub.becomes(&format!("/messages/{id}"), |m| {
        stages(m).contains(&"on_device")
    })
    .await;

    // It moves back in the same way, here with a daemon that is not running when it is said.
    assert!(one.terminate().await.success());
    let said = one.machine.run(&["login", "--take-over"], "").await.ok();
    assert!(said.contains("next `remote-collab daemon run`"), "{said}");
    one.run().await;
    one.synced().await;
    shut_out(&two, "key_held_elsewhere").await;
    hub.message("to the first", &one.name).await;
    // All three: the envelopes that the other place has are not finished, and this queue never had them.
    one.until("the mail", |_| queue_db::count(&one.queue_db()) == 3)
        .await;
    assert_eq!(queue_db::count(&two.queue_db()), 2);
    // Said once, it holds once: a restart of the daemon takes nothing over.
    assert!(one.terminate().await.success());
    two.machine.run(&["login", "--take-over"], "").await.ok();
    two.synced().await;
    one.run().await;
    shut_out(&one, "key_held_elsewhere").await;
    two.synced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_without_an_enrolment_says_login() {
    let mut hub = HubSite::start().await;
    let stranger = crate::support::sites::Machine::new();
    let ran = stranger.run(&["login", "--take-over"], "").await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("not enrolled"), "{ran:?}");
    let ran = stranger.run(&["login"], "").await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(hub.terminate().await.success());
}

#[tokio::test]
async fn late_acks_and_reports_of_an_instance_that_was_shut_out_change_nothing() {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let (mut old, ..) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let body = json!({"content": "hi", "device": device.id});
    let posted = bed.post("/messages", &body).await.ok(202);
    let seq = old.expect("deliver").await["seq"].as_u64().unwrap();

    let jwt = device.jwt();
    let protocol = Some(remote_collab::wire::SUBPROTOCOL);
    let mut new = crate::support::ws_client::upgrade(bed.hub.addr, Some(&jwt), protocol)
        .await
        .unwrap();
    let mut greeting = hello(2, &Value::Null);
    greeting["take_over"] = json!(true);
    new.send(&greeting).await;
    new.expect("welcome").await;
    assert_eq!(new.until_synced().await.len(), 1);
    // What the old one sends before it has read its close comes too late.
    old.ack(seq).await;
    assert_eq!(old.end().await, ("key_held_elsewhere".to_owned(), 4409));
    let path = posted["url"].as_str().map_or_else(
        || format!("/messages/{}", posted["id"].as_str().unwrap()),
        str::to_owned,
    );
    let message = bed.get(&path).await.ok(200);
    assert!(!stages(&message).contains(&"on_device"), "{message}");
    // Nor does it come back, with or without the new one there.
    for there in [true, false] {
        let mut again = WsClient::open(bed.hub.addr, &device, 1).await;
        assert_eq!(
            again.end().await,
            ("key_held_elsewhere".to_owned(), 4409),
            "{there}"
        );
        if there {
            new.send(&json!({"type": "bye", "reason": "test"})).await;
            new.end().await;
        }
    }
}

#[tokio::test]
async fn a_store_that_was_put_back_begins_a_new_life_and_loses_nothing_that_was_posted_since() {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let post = async |bed: &HubBed, text: &str| {
        let body = json!({"content": text, "device": device.id});
        bed.post("/messages", &body).await.ok(202);
    };
    let texts = |rows: &[Value]| -> Vec<String> {
        let text = |row: &Value| {
            row["envelope"]["body"]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        rows.iter().map(text).collect()
    };
    post(&bed, "one").await;
    let (mut ws, welcome, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert_eq!(texts(&rows), ["one"]);
    ws.ack(rows[0]["seq"].as_u64().unwrap()).await;
    drop(ws);
    let database = bed.dir.path().join("hub/hub.db");
    let bed = bed.restart().await;
    // A restart is no new life.
    let (ws, again, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    assert_eq!(again["epoch"], welcome["epoch"]);
    drop(ws);

    let HubBed { dir, hub, .. } = bed;
    hub.shutdown().await;
    let files = || ["hub.db", "hub.db-wal"].map(|name| database.with_file_name(name));
    let copies = files().map(|path| std::fs::read(path).ok());
    let bed = HubBed::start_in(dir, |_| {}).await;
    post(&bed, "two").await;
    let (mut ws, _, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let ahead = rows.last().unwrap()["seq"].as_u64().unwrap();
    ws.ack(ahead).await;
    drop(ws);

    // The copy comes back in place, and grows to where the device stood: its cursor alone would tell nothing.
    let HubBed { dir, hub, .. } = bed;
    hub.shutdown().await;
    drop(std::fs::remove_file(database.with_file_name("hub.db-shm")));
    for (path, copy) in files().iter().zip(copies) {
        match copy {
            Some(bytes) => std::fs::write(path, bytes).unwrap(),
            None => drop(std::fs::remove_file(path)),
        }
    }
    let bed = HubBed::start_in(dir, |_| {}).await;
    post(&bed, "three").await;
    let last = json!({"epoch": welcome["epoch"], "seq": ahead});
    let jwt = device.jwt();
    let protocol = Some(remote_collab::wire::SUBPROTOCOL);
    let mut ws = crate::support::ws_client::upgrade(bed.hub.addr, Some(&jwt), protocol)
        .await
        .unwrap();
    ws.send(&hello(1, &last)).await;
    let welcome_back = ws.expect("welcome").await;
    assert_eq!(welcome_back["resume"], "reset");
    assert_ne!(welcome_back["epoch"], welcome["epoch"]);
    assert_eq!(texts(&ws.until_synced().await), ["one", "three"]);
}

#[tokio::test]
async fn a_device_without_a_cursor_is_given_all_that_is_not_terminal_also_what_it_acked_before() {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let mut ids = Vec::new();
    for text in ["ended", "acked", "new"] {
        let body = json!({"content": text, "device": device.id});
        let posted = bed.post("/messages", &body).await.ok(202);
        ids.push(posted["id"].as_str().unwrap().to_owned());
    }
    let (mut ws, _, rows) = WsClient::synced(bed.hub.addr, &device, 1).await;
    ws.ack(rows[1]["seq"].as_u64().unwrap()).await;
    let done = json!({"stage": "seen", "at": 1});
    let end = json!({"stage": "done", "at": 2});
    for (n, body) in [(1, done), (2, end)] {
        ws.send(&json!({"type": "report", "n": n, "id": ids[0], "kind": "receipt", "at": 1, "body": body}))
            .await;
    }
    while ws.expect("report_ack").await["n"] != 2 {}
    drop(ws);
    let mut ws = WsClient::open(bed.hub.addr, &device, 1).await;
    assert_eq!(ws.expect("welcome").await["resume"], "reset");
    let again: Vec<_> = ws
        .until_synced()
        .await
        .iter()
        .map(|row| row["envelope"]["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(again, ids[1..]);
}

#[tokio::test]
async fn a_connect_jwt_that_was_used_before_a_restart_of_the_hub_is_refused_after_it() {
    let bed = HubBed::start().await;
    let device = bed.enrol("laptop").await;
    let jwt = device.jwt();
    let protocol = Some(remote_collab::wire::SUBPROTOCOL);
    let upgrade = crate::support::ws_client::upgrade;
    let first = upgrade(bed.hub.addr, Some(&jwt), protocol).await;
    assert!(first.is_ok(), "the first use");
    drop(first);
    let bed = bed.restart().await;
    let refused = upgrade(bed.hub.addr, Some(&jwt), protocol).await;
    let Err(refused) = refused else {
        panic!("taken twice")
    };
    assert_eq!(
        (refused.status, &refused.body["code"]),
        (401, &json!("token_used"))
    );
    // A fresh one is taken at once.
    WsClient::synced(bed.hub.addr, &device, 1).await;
}
