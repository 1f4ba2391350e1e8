//! The commands that talk to the daemon of this machine.

use crate::shown::{assert_shown, log, session};
use crate::support::sites::{DeviceSite, HubSite, Machine};

#[tokio::test]
async fn without_a_daemon_each_command_says_so_and_exits_with_3() {
    let machine = Machine::new();
    let commands: Vec<&[&str]> = vec![
        &["status"],
        &["status", "--json"],
        &["list-messages"],
        &["connect"],
        &["disconnect"],
        &["pause"],
        &["resume"],
    ];
    let text = session(&machine, &commands).await;
    assert_eq!(text.matches("[exit 3]").count(), commands.len(), "{text}");
    assert_shown("control-no-daemon", &[&machine], &text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_closed_and_opened_and_a_queue_held_and_let_go() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    device.synced().await;
    let mut text = session(&device.machine, &[&["pause"], &["disconnect"]]).await;
    device
        .until("DISCONNECTED", |s| s["link"]["state"] == "DISCONNECTED")
        .await;
    let commands: &[&[&str]] = &[&["status"], &["connect"]];
    text += &session(&device.machine, commands).await;
    device.synced().await;
    text += &session(&device.machine, &[&["resume"]]).await;
    let id = hub.message("The build is green.", &device.name).await;
    device
        .until("held and told", |s| {
            s["queue"]["held"]["no_session"] == 1 && s["outbox"]["waiting"] == 0
        })
        .await;
    let commands: &[&[&str]] = &[&["status"], &["status", "--json"]];
    text += &session(&device.machine, commands).await;
    for args in [
        &["list-messages"] as &[&str],
        &["list-messages", "--json"],
        &[
            "list-messages",
            "--session",
            "0f0f0f0f-0000-4000-8000-000000000001",
        ],
    ] {
        let ran = device.machine.run(args, "").await;
        text += &log(args, &ran);
    }
    assert!(text.contains(&id), "{text}");
    assert_shown("control", &[&hub.machine, &device.machine], &text);
}
