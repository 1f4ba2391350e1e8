//! No secret in any log, error or command line, with everything logged that can be (case Q3).

use reqwest::Method;
use serde_json::json;

use crate::support::hub_bed::read;
use crate::support::sites::{DeviceSite, HubSite, Machine, assert_no_secrets};
use crate::support::ws_client::upgrade;
use remote_collab::wire::SUBPROTOCOL;

const TEXT: &str = "the text of a message, which is nobody's business";

fn traced() -> Machine {
    let mut machine = Machine::new();
    machine.log = "trace";
    machine
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_keys_and_texts_are_in_no_log_and_no_command_line_even_at_trace() {
    let mut hub = HubSite::start_on(traced()).await;
    let mut device = DeviceSite::enrolled_on(traced(), &mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let mut secrets = hub.secrets.clone();
    secrets.push(device.local_token().to_owned());
    secrets.push(TEXT.to_owned());

    // Each token is used well, used wrong, and put where it does not belong.
    hub.message(TEXT, &device.name).await;
    let token = hub.token.clone();
    let addr = hub.listen.parse().unwrap();
    assert!(
        upgrade(addr, Some(&token), Some(SUBPROTOCOL))
            .await
            .is_err()
    );
    read(
        hub.http
            .get(format!("{}/tasks", hub.url()))
            .bearer_auth(device.local_token()),
    )
    .await
    .refused(401, "token_invalid");
    let used = hub.secrets.iter().find(|s| **s != token).unwrap();
    let again = hub
        .http
        .post(format!("{}/enroll", hub.url()))
        .bearer_auth(used);
    read(again.json(&json!({}))).await;
    let args = ["login", &hub.url(), "--token-stdin"];
    let refused = device.machine.run(&args, &format!("{used}x")).await;
    assert_eq!(refused.code, Some(5), "{refused:?}");
    let local = device.local(&hub.http, Method::POST, "/messages/push");
    let pushed = local.json(&json!({"messages": [{"content": TEXT}]}));
    read(pushed).await.ok(202);
    let taken = read(device.local(&hub.http, Method::GET, "/messages"))
        .await
        .ok(200);
    assert_eq!(taken["messages"].as_array().unwrap().len(), 2);
    hub.kill().await;
    hub.serve().await;
    device.synced().await;
    device.kill().await;
    device.run().await;
    device.synced().await;

    for (machine, file) in [
        (&device.machine, "daemon/device.key"),
        (&device.machine, "daemon/local.token"),
    ] {
        let text = std::fs::read_to_string(machine.data().join(file)).unwrap();
        let longest = text.lines().max_by_key(|l| l.len()).unwrap();
        secrets.push(longest.trim().to_owned());
    }
    for process in [hub.process(), device.process()] {
        let cmdline = process.cmdline();
        assert!(
            secrets.iter().all(|s| !cmdline.contains(s.as_str())),
            "{cmdline}"
        );
    }
    assert!(device.terminate().await.success());
    assert!(hub.terminate().await.success());
    let logs = hub.machine.written();
    assert!(
        logs.iter().any(|(_, text)| text.contains("DEBUG")),
        "the logs are thin"
    );
    assert_no_secrets(&[&hub.machine, &device.machine], &secrets);
}

#[tokio::test(flavor = "multi_thread")]
async fn up_tells_its_tokens_in_the_ready_line_alone() {
    let machine = traced();
    let args = [
        "up",
        "--hub-listen",
        "127.0.0.1:0",
        "--local-listen",
        "127.0.0.1:0",
    ];
    let up = machine.spawn(&args).await;
    let secret = |key: &str| up.ready[key].as_str().unwrap().to_owned();
    let secrets = [secret("token"), secret("local_token")];
    let cmdline = up.cmdline();
    assert!(
        secrets.iter().all(|s| !cmdline.contains(s.as_str())),
        "{cmdline}"
    );
    assert!(up.terminate().await.success());
    assert_no_secrets(&[&machine], &secrets);
}
