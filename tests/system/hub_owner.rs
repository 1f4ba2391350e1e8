//! What the hub's owner does, beside a running hub and without one: one process writes a store.

use remote_collab::domain::Trust;
use remote_collab::hub::AdminCall;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::hub_bed::{ALL_SCOPES, HubBed, account, token};
use crate::support::sites::{HubSite, Machine, Ran};
use crate::support::ws_client::WsClient;

async fn json_of(machine: &Machine, args: &[&str]) -> Value {
    let args = [args, &["--json"]].concat();
    serde_json::from_str(&machine.run(&args, "").await.ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_at_a_folder_that_is_none_makes_none() {
    let machine = Machine::new();
    for args in [
        &["hub", "token", "list"][..],
        &["hub", "token", "revoke", "ci"],
        &["hub", "devices", "list"],
        &["hub", "devices", "revoke", "d"],
        &["hub", "projects", "list"],
        &["hub", "projects", "approve", "shop"],
        &["hub", "projects", "unapprove", "shop"],
        &["hub", "account", "list"],
        &["hub", "account", "delete", "acme"],
        &["hub", "keys", "list"],
        &["hub", "backup", "x.backup"],
    ] {
        let ran = machine.run(args, "").await;
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.err.contains("--data-dir"), "{args:?}: {ran:?}");
        assert!(!machine.data().exists(), "{args:?} made a folder");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_beside_a_hub_and_without_one_see_and_change_the_same_store() {
    let mut hub = HubSite::start().await;
    let device = hub.enrol_bare("laptop").await;
    let beside = json_of(&hub.machine, &["hub", "token", "list"]).await;
    let devices = json_of(&hub.machine, &["hub", "devices", "list"]).await;
    let keys = json_of(&hub.machine, &["hub", "keys", "list"]).await;
    assert_eq!(devices["devices"][0]["id"], device.id.as_str());
    hub.terminate().await;
    assert_eq!(
        json_of(&hub.machine, &["hub", "token", "list"]).await,
        beside
    );
    assert_eq!(
        json_of(&hub.machine, &["hub", "devices", "list"]).await,
        devices
    );
    assert_eq!(json_of(&hub.machine, &["hub", "keys", "list"]).await, keys);
    // Both in turn: a token made without the hub is good beside it, and one called back without it stays so.
    let token = hub
        .make_token(&["--name", "offline", "--scope", "tasks:read"])
        .await;
    hub.machine
        .run(&["hub", "token", "revoke", "ci"], "")
        .await
        .ok();
    hub.machine
        .run(&["hub", "devices", "revoke", device.id.as_str()], "")
        .await
        .ok();
    hub.serve().await;
    hub.get("/tasks").await.refused(401, "token_revoked");
    hub.token = token;
    hub.get("/tasks").await.ok(200);
    let devices = json_of(&hub.machine, &["hub", "devices", "list"]).await;
    assert!(devices["devices"][0]["revoked_at"].is_i64());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_commands_at_once_all_take_effect_beside_a_hub_and_without_one() {
    let mut hub = HubSite::start().await;
    for round in ["beside", "alone"] {
        let names: Vec<String> = (0..6).map(|n| format!("{round}-{n}")).collect();
        let calls = names.iter().map(|name| {
            let machine = &hub.machine;
            async move {
                let args = [
                    "hub",
                    "token",
                    "create",
                    "--name",
                    name,
                    "--scope",
                    "tasks:read",
                ];
                machine.run(&args, "").await.ok()
            }
        });
        futures::future::join_all(calls).await;
        let list = json_of(&hub.machine, &["hub", "token", "list"]).await;
        let listed = list["tokens"].as_array().unwrap();
        for name in &names {
            assert!(listed.iter().any(|t| t["name"] == **name), "{name}: {list}");
        }
        if round == "beside" {
            hub.terminate().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_approved_and_unapproved_beside_a_hub_and_without_one_as_over_http() {
    let mut hub = HubSite::start().await;
    let device = hub.enrol_bare("laptop").await;
    let addr = hub.listen.parse().unwrap();
    drop(WsClient::synced(addr, &device, 1).await);
    let shown = hub.becomes("/projects", |v| v["projects"][0]["name"] == "shop");
    assert_eq!(shown.await["projects"][0]["approved"], true);
    let task = json!({"task": "x", "project": "shop"});
    for alone in [false, true] {
        if alone {
            hub.terminate().await;
        }
        let no = ["hub", "projects", "unapprove", "shop"];
        let v = json_of(&hub.machine, &no).await;
        assert_eq!(
            (&v["approved"], &v["device"], &v["name"]),
            (&json!(false), &json!(device.id.as_str()), &json!("shop"))
        );
        let list = json_of(&hub.machine, &["hub", "projects", "list"]).await;
        assert_eq!(list["projects"][0]["approved"], false);
        if alone {
            hub.serve().await;
        }
        hub.post("/tasks", &task)
            .await
            .refused(404, "unknown_target");
        if alone {
            hub.terminate().await;
        }
        // By its path, on a device named by its name.
        let yes = [
            "hub",
            "projects",
            "approve",
            "/home/dev/shop",
            "--device",
            "laptop",
        ];
        let said = hub.machine.run(&yes, "").await.ok();
        assert_eq!(said, format!("approved: `{}` serves `shop`\n", device.id));
        for (args, known) in [
            (&["shopp"][..], "shop"),
            (&["shop", "--device", "desk"], device.id.as_str()),
            (&["shop", "--account", "acme"], "default"),
        ] {
            let args = [&["hub", "projects", "approve"], args].concat();
            let ran = hub.machine.run(&args, "").await;
            assert_eq!(ran.code, Some(1), "{ran:?}");
            let problem = ran.err.replace("shopp", "");
            assert!(problem.contains(known), "{args:?}: {ran:?}");
            assert!(ran.err.contains("known are: "), "{args:?}: {ran:?}");
        }
        if alone {
            hub.serve().await;
        }
        hub.post("/tasks", &task).await.ok(202);
    }
    // What a person decided without the hub holds when the device announces its projects anew.
    hub.terminate().await;
    let no = ["hub", "projects", "unapprove", "shop"];
    hub.machine.run(&no, "").await.ok();
    hub.serve().await;
    drop(WsClient::synced(addr, &device, 1).await);
    hub.post("/tasks", &task)
        .await
        .refused(404, "unknown_target");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hub_over_the_same_folder_is_refused_by_name_and_the_first_goes_on() {
    let hub = HubSite::start().await;
    let serve = ["hub", "serve", "--listen", "127.0.0.1:0"];
    let ran: Ran = hub.machine.run(&serve, "").await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("another hub"), "{ran:?}");
    assert!(ran.err.contains("--data-dir"), "{ran:?}");
    hub.get("/tasks").await.ok(200);
    json_of(&hub.machine, &["hub", "token", "list"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_held_by_a_process_that_does_not_answer_is_told_in_time() {
    let mut hub = HubSite::start().await;
    hub.terminate().await;
    // A lock without a socket: a hub that hangs at its start.
    let lock = std::fs::File::open(hub.machine.data().join("hub/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let ran = hub.machine.run(&["hub", "token", "list"], "").await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("another hub"), "{ran:?}");
    drop(lock);
    json_of(&hub.machine, &["hub", "token", "list"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_keys_sign_new_tokens_and_still_verify_old_ones() {
    let mut hub = HubSite::start().await;
    let old = hub.token.clone();
    let before = json_of(&hub.machine, &["hub", "keys", "list"]).await;
    hub.machine.run(&["hub", "keys", "rotate"], "").await.ok();
    let after = json_of(&hub.machine, &["hub", "keys", "list"]).await;
    let kids = |v: &Value| -> Vec<(String, bool)> {
        let keys = v["keys"].as_array().unwrap().iter();
        keys.map(|k| (k["kid"].as_str().unwrap().to_owned(), k["signs"] == true))
            .collect()
    };
    let (before, after) = (kids(&before), kids(&after));
    assert_eq!((before.len(), after.len()), (1, 2));
    assert!(before[0].1 && after[0].1 && !after[1].1);
    assert_eq!(before[0].0, after[1].0);
    let jwks = hub.get("/.well-known/jwks.json").await.ok(200);
    let shown: Vec<&str> = jwks["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| k["kid"].as_str().unwrap())
        .collect();
    assert_eq!(shown, [after[0].0.as_str(), after[1].0.as_str()]);
    let new = hub
        .make_token(&["--name", "new", "--scope", "tasks:read"])
        .await;
    for round in 0..2 {
        for token in [&old, &new] {
            hub.token.clone_from(token);
            hub.get("/tasks").await.ok(200);
        }
        if round == 0 {
            hub.terminate().await;
            hub.serve().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_made_before_its_first_token_and_told_about() {
    let mut hub = HubSite::start().await;
    let create = [
        "hub",
        "token",
        "create",
        "--name",
        "x",
        "--scope",
        "tasks:read",
        "--account",
        "acme",
    ];
    let ran = hub.machine.run(&create, "").await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("hub account create"), "{ran:?}");
    let said = hub
        .machine
        .run(&["hub", "account", "create", "acme"], "")
        .await
        .ok();
    assert_eq!(said.trim(), "made the account `acme`");
    let twice = hub
        .machine
        .run(&["hub", "account", "create", "acme"], "")
        .await;
    assert_eq!(twice.code, Some(1), "{twice:?}");
    let bad = hub
        .machine
        .run(&["hub", "account", "create", "a/b"], "")
        .await;
    assert_eq!(bad.code, Some(2), "{bad:?}");
    hub.machine.run(&create, "").await.ok();
    for _ in 0..2 {
        let list = json_of(&hub.machine, &["hub", "account", "list"]).await;
        let accounts = list["accounts"].as_array().unwrap();
        let names: Vec<_> = accounts
            .iter()
            .map(|a| a["account"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["acme", "default"]);
        assert_eq!(accounts[0]["tokens"], 1);
        hub.terminate().await;
        hub.serve().await;
    }
    let stays = hub
        .machine
        .run(&["hub", "account", "delete", "default"], "")
        .await;
    assert_eq!(stays.code, Some(2), "{stays:?}");
    hub.machine
        .run(&["hub", "account", "delete", "acme"], "")
        .await
        .ok();
    let gone = hub
        .machine
        .run(&["hub", "account", "delete", "acme"], "")
        .await;
    assert_eq!(gone.code, Some(1), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_sees_anything_of_another_account() {
    let bed = HubBed::start().await;
    let device = bed.enrol("mine").await;
    bed.enrol_in("other", "theirs").await;
    let other = token(&bed.hub, "ci", "other", ALL_SCOPES, Trust::Run).await;
    let (_ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let session = Uuid::from_u128(0x5e55);
    let task = bed.post("/tasks", &json!({"task": "secret"})).await.ok(202);
    let message = bed
        .post("/messages", &json!({"content": "secret"}))
        .await
        .ok(202);
    let memory = json!({"summary": "secret", "context": []});
    bed.post(&format!("/memory/{session}"), &memory).await;
    for path in [
        task["url"].as_str().unwrap(),
        message["url"].as_str().unwrap(),
        &format!("/memory/{session}"),
        &format!("/memory/{session}/index"),
    ] {
        let got = bed.get_as(path, &other).await;
        assert_eq!(got.status, 404, "{path}: {:?}", got.body);
        assert!(!got.body.to_string().contains("secret"));
    }
    for (path, name, n) in [
        ("/tasks", "tasks", 0),
        ("/messages", "messages", 0),
        ("/sessions", "sessions", 0),
        ("/projects", "projects", 0),
        ("/devices", "devices", 1),
    ] {
        let list = bed.get_as(path, &other).await.ok(200);
        assert_eq!(list[name].as_array().unwrap().len(), n, "{path}: {list}");
        assert!(!list.to_string().contains(device.id.as_str()));
        assert!(
            !bed.get(path).await.ok(200)[name]
                .as_array()
                .unwrap()
                .is_empty()
        );
    }
    for body in [
        json!({"task": "x", "device": device.id.as_str()}),
        json!({"task": "x", "session_id": session}),
        json!({"task": "x", "project": "shop"}),
    ] {
        let got = bed.post_as("/tasks", &other, &body).await;
        got.refused(404, "unknown_target");
        assert!(!got.body["known"].to_string().contains(device.id.as_str()));
    }
    let path = format!("/devices/{}", device.id);
    let revoke = bed.request(Method::DELETE, &path).bearer_auth(&other);
    bed.send(revoke).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_account_is_gone_with_its_tokens_and_devices_also_when_its_name_comes_again() {
    let bed = HubBed::start().await;
    bed.enrol("stays").await;
    bed.post("/tasks", &json!({"task": "stays"})).await.ok(202);
    let device = bed.enrol_in("acme", "goes").await;
    let acme = token(&bed.hub, "ci", "acme", ALL_SCOPES, Trust::Run).await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let task = bed
        .post_as("/tasks", &acme, &json!({"task": "goes"}))
        .await
        .ok(202);
    let path = task["url"].as_str().unwrap();
    let call = AdminCall::DeleteAccount {
        account: account("acme"),
    };
    bed.hub.admin(&call).await.unwrap();
    assert_eq!(ws.end().await.1, 4403);
    bed.get_as("/tasks", &acme)
        .await
        .refused(401, "token_revoked");
    let make = AdminCall::CreateAccount {
        account: account("acme"),
    };
    bed.hub.admin(&make).await.unwrap();
    bed.get_as("/tasks", &acme)
        .await
        .refused(401, "token_revoked");
    let new = token(&bed.hub, "ci", "acme", ALL_SCOPES, Trust::Run).await;
    // A restart reads the same from the store.
    let bed = bed.restart().await;
    bed.get_as("/tasks", &acme)
        .await
        .refused(401, "token_revoked");
    bed.get_as(path, &new).await.refused(404, "unknown_task");
    for (path, name) in [
        ("/tasks", "tasks"),
        ("/devices", "devices"),
        ("/sessions", "sessions"),
        ("/projects", "projects"),
    ] {
        let list = bed.get_as(path, &new).await.ok(200);
        assert!(list[name].as_array().unwrap().is_empty(), "{list}");
    }
    assert_eq!(
        bed.get("/tasks").await.ok(200)["tasks"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        bed.get("/devices").await.ok(200)["devices"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let file = std::fs::read(bed.dir.path().join("hub/hub.db")).unwrap();
    assert!(!file.is_empty());
}
