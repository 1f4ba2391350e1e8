//! `status` tells the truth about a real daemon, and its loopback API lets in nobody else.

use reqwest::Method;
use reqwest::header::{HOST, ORIGIN};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::support::hub_bed::read;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, Machine};

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_not_running_not_connected_and_synced() {
    let never = Machine::new();
    let ran = never.run(&["status"], "").await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("daemon run"), "{ran:?}");

    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    assert_eq!(device.status().await.0, Some(3));
    device.run().await;
    let synced = device.synced().await;
    assert_eq!(device.status().await.0, Some(0));
    assert_eq!(synced["link"]["hub"], hub.url());
    assert_eq!(synced["link"]["device"], device.name);
    assert_eq!(synced["pid"], device.process().pid);

    // The numbers follow what happens.
    hub.message("held", &device.name).await;
    device
        .until("the held message", |s| {
            s["queue"]["held"]["no_session"] == 1
        })
        .await;

    hub.kill().await;
    let lost = device
        .until("a lost link", |s| s["link"]["state"] != "SYNCED")
        .await;
    assert!(
        matches!(lost["link"]["state"].as_str(), Some("RECONNECTING")),
        "{lost}"
    );
    assert!(!lost["link"]["cause"].is_null(), "{lost}");
    assert_eq!(device.status().await.0, Some(4));
    hub.serve().await;
    device.synced().await;
    assert_eq!(device.status().await.0, Some(0));

    device.kill().await;
    assert_eq!(
        device.status().await.0,
        Some(3),
        "files that a killed daemon left are no daemon"
    );
    device.run().await;
    device.synced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_never_enrolled_runs_and_says_login() {
    let machine = Machine::new();
    let daemon = machine
        .spawn(&["daemon", "run", "--local-listen", "127.0.0.1:0"])
        .await;
    let ran = machine.run(&["status"], "").await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.out.contains("login"), "{ran:?}");
    assert!(daemon.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn loopback_refuses_strangers_and_stays_well() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let url = device.process().ready["local"].as_str().unwrap();
    let http = &hub.http;
    for path in ["/status", "/messages?peek=1", "/memory"] {
        let bare = http.get(format!("{url}{path}"));
        read(bare).await.refused(401, "token_missing");
        for wrong in ["x", hub.token.as_str(), &device.local_token()[1..]] {
            let request = http.get(format!("{url}{path}")).bearer_auth(wrong);
            read(request).await.refused(401, "token_invalid");
        }
        let good = || device.local(http, Method::GET, path);
        for (name, value) in [
            (HOST, "rebound.example:9988"),
            (HOST, "127.0.0.1.rebound.example"),
            (ORIGIN, "https://page.example"),
            (ORIGIN, "null"),
        ] {
            read(good().header(name, value))
                .await
                .refused(403, "origin_refused");
        }
    }
    // The token in the query is no token, and a browser's form is no request.
    let query = http.get(format!("{url}/status?token={}", device.local_token()));
    read(query).await.refused(401, "token_missing");
    let form = device
        .local(http, Method::POST, "/messages/push")
        .header("content-type", "text/plain");
    read(form.body("{}"))
        .await
        .refused(415, "unsupported_media_type");
    let rebinding = device
        .local(http, Method::OPTIONS, "/status")
        .header(ORIGIN, "https://page.example");
    let answer = read(rebinding).await;
    assert!(
        !answer.headers.contains_key("access-control-allow-origin"),
        "{answer:?}"
    );
    assert_eq!(
        read(device.local(http, Method::GET, "/status"))
            .await
            .ok(200)["link"]["state"],
        "SYNCED"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_port_is_taken_runs_on_and_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run_at(&address).await;
    assert_eq!(device.process().ready["local"], Value::Null);
    let status = device.synced().await;
    assert_eq!(status["listeners"]["local"], Value::Null);
    let error = status["listeners"]["local_error"].as_str().unwrap();
    assert!(
        error.contains(&address) && error.contains("in use"),
        "{error}"
    );
    let shown = device.machine.run(&["status"], "").await.ok();
    assert!(shown.contains(error), "{shown}");
    hub.message("by the socket", &device.name).await;
    device
        .until("the message", |_| queue_db::count(&device.queue_db()) == 1)
        .await;
    assert!(device.terminate().await.success());
}
