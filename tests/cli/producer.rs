//! `send`, `task` and `tasks`: the commands that call a hub.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use crate::shown::{assert_shown, log, session};
use crate::support::sites::{DeviceSite, HubSite, Machine};

/// The token in a file that only its owner reads.
fn keep(machine: &Machine, token: &str) -> String {
    let file = machine.root().join("token");
    fs::write(&file, token).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_can_be_listed_and_looked_at() {
    let mut hub = HubSite::start().await;
    let device = DeviceSite::enrolled(&mut hub, "laptop").await;
    let machine = Machine::new();
    let token = keep(&machine, &hub.token);
    let url = hub.url();
    let call = async |args: &[&str], stdin: &str| {
        let args = [args, &["--hub", &url, "--token-file", &token]].concat();
        let ran = machine.run(&args, stdin).await;
        let said = log(&args, &ran);
        (ran, said)
    };
    let mut text = String::new();
    let one: &[&str] = &[
        "task",
        "List the files.",
        "--device",
        &device.name,
        "--max-turns",
        "3",
        "--json",
    ];
    let (ran, _) = call(one, "").await;
    let accepted: serde_json::Value = serde_json::from_str(&ran.ok()).unwrap();
    let id = accepted["id"].as_str().unwrap().to_owned();
    for (args, stdin) in [
        (&["send", "The build is green."] as &[&str], ""),
        (
            &["send", "-", "--priority", "urgent", "--no-wake", "--json"],
            "from standard input",
        ),
        (
            &["task", "-", "--expires", "2h", "--metadata", "{\"run\":7}"],
            "Fix the test.",
        ),
        (&["tasks"], ""),
        (&["tasks", "--status", "running,failed"], ""),
        (&["tasks", "--limit", "1"], ""),
        (&["tasks", "--limit", "1", "--json"], ""),
        (&["tasks", "show", &id], ""),
        (&["tasks", "cancel", &id], ""),
        (&["tasks", "cancel", &id, "--json"], ""),
        (&["tasks", "wait", &id], ""),
        (&["tasks", "result", &id], ""),
        (&["tasks", "retry", &id], ""),
        (&["tasks", "show", &id], ""),
    ] {
        text += &call(args, stdin).await.1;
    }
    let text = text.replace(&device.name, "laptop");
    assert_shown("producer", &[&hub.machine, &machine], &text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_what_is_wrong_and_what_to_do() {
    let mut hub = HubSite::start().await;
    let machine = Machine::new();
    let reader = hub
        .make_token(&["--name", "reader", "--scope", "tasks:read"])
        .await;
    let good = keep(&machine, &hub.token);
    let weak = machine.root().join("weak");
    fs::write(&weak, &reader).unwrap();
    fs::set_permissions(&weak, Permissions::from_mode(0o600)).unwrap();
    let open = machine.root().join("open");
    fs::write(&open, &hub.token).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o644)).unwrap();
    let (weak, open) = (weak.display().to_string(), open.display().to_string());
    let url = hub.url();
    let missing = "01234567-89ab-7def-8123-456789abcdef";
    let commands: &[&[&str]] = &[
        &["send", "x"],
        &["send", "x", "--hub", &url],
        &["send", "x", "--hub", &url, "--token-file", "/nowhere/token"],
        &["send", "x", "--hub", &url, "--token-file", &open],
        &["send", "x", "--hub", &url, "--token-file", &weak],
        &["send", "x", "--hub", &url, "--token-file", &good],
        &["send", "", "--hub", &url, "--token-file", &good],
        &[
            "send",
            "x",
            "--project",
            "nowhere",
            "--hub",
            &url,
            "--token-file",
            &good,
        ],
        &[
            "tasks",
            "show",
            missing,
            "--hub",
            &url,
            "--token-file",
            &good,
        ],
        &[
            "tasks",
            "--status",
            "nonsense",
            "--hub",
            &url,
            "--token-file",
            &good,
        ],
        &[
            "send",
            "x",
            "--hub",
            "http://hub.example.org",
            "--token-file",
            &good,
        ],
    ];
    let text = session(&machine, commands).await;
    assert_shown("producer-refused", &[&hub.machine, &machine], &text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_away_is_named_and_asked_again_before_giving_up() {
    let mut hub = HubSite::start().await;
    let machine = Machine::new();
    let token = keep(&machine, &hub.token);
    let url = hub.url();
    assert!(hub.terminate().await.success());
    let args: &[&str] = &[
        "send",
        "x",
        "--device",
        "d",
        "--hub",
        &url,
        "--token-file",
        &token,
    ];
    let text = session(&machine, &[args]).await;
    assert!(text.contains("[exit 4]"), "{text}");
    assert_shown("producer-away", &[&machine], &text);
}
