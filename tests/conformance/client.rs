//! `client.py`, written from `proto/` alone, against the real hub.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::support::sites::{HubSite, PATIENCE, stages};
use crate::{here, python};

/// Lines that an independent client may have.
const MAX_LINES: usize = 150;
/// Time between two tries at a hub that is away.
const LOOK: Duration = Duration::from_millis(20);

#[test]
fn the_client_is_short() {
    let text = std::fs::read_to_string(here().join("client.py")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= MAX_LINES, "{lines} lines");
    let widest = text.lines().map(|l| l.chars().count()).max();
    assert!(widest <= Some(130), "{widest:?} columns");
}

struct Client {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Ids and contents, in the order of their coming.
    got: Vec<(String, String)>,
}

impl Client {
    fn start(hub: &HubSite, folder: &std::path::Path, join: &str) -> Self {
        let mut child = Command::new(python("python"))
            .arg(here().join("client.py"))
            .args([&hub.url(), folder.to_str().unwrap(), join])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            _child: child,
            lines,
            got: Vec::new(),
        }
    }

    async fn next(&mut self) -> Value {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.expect("the client says something").unwrap();
        let event: Value = serde_json::from_str(&line.expect("the client runs")).unwrap();
        if event["event"] == "got" {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            self.got.push((text("id"), text("content")));
        }
        event
    }

    async fn until(&mut self, event: &str) -> Value {
        loop {
            let next = self.next().await;
            if next["event"] == event {
                return next;
            }
        }
    }

    async fn until_got(&mut self, count: usize) {
        while self.got.len() < count {
            self.next().await;
        }
    }
}

/// Posts messages one after another, each until it is accepted, however often the hub is away; gives ids and contents.
async fn post(
    http: reqwest::Client,
    url: String,
    token: String,
    what: &str,
) -> Vec<(String, String)> {
    let mut posted = Vec::new();
    for n in 0..20 {
        let content = format!("{what} {n}");
        let until = Instant::now() + PATIENCE;
        let id = loop {
            let request = http.post(format!("{url}/messages")).bearer_auth(&token);
            let request = request.header("idempotency-key", &content);
            match request.json(&json!({"content": content})).send().await {
                Ok(answer) if answer.status() == 202 => {
                    if let Ok(answer) = answer.json::<Value>().await {
                        break answer["id"].as_str().unwrap().to_owned();
                    }
                }
                Ok(answer) => panic!("{}", answer.text().await.unwrap_or_default()),
                Err(_) => sleep(LOOK).await,
            }
            assert!(Instant::now() < until, "{content} was not accepted");
        };
        posted.push((id, content));
    }
    posted
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_written_from_proto_alone_gets_every_message_once_and_in_order_over_a_killed_hub()
{
    let mut hub = HubSite::start().await;
    let join = hub.join_token().await;
    let folder = tempfile::tempdir().unwrap();
    let mut client = Client::start(&hub, folder.path(), &join);
    client.until("enrolled").await;
    client.until("synced").await;
    let (http, url, token) = (hub.http.clone(), hub.url(), hub.token.clone());
    let post = |what| post(http.clone(), url.clone(), token.clone(), what);

    let mut posted = post("before").await;
    client.until_got(5).await;
    hub.kill().await;
    let during = tokio::spawn(post("during"));
    client.until("away").await;
    hub.serve().await;
    posted.extend(during.await.unwrap());
    let welcome = client.until("welcome").await;
    assert_eq!(
        welcome["resume"], "continue",
        "it came back with its cursor"
    );
    client.until("synced").await;
    posted.extend(post("after").await);
    client.until_got(posted.len()).await;

    for (id, _) in &posted {
        let item = hub
            .becomes(&format!("/messages/{id}"), |m| m["status"] == "done")
            .await;
        assert_eq!(stages(&item), ["accepted", "on_device", "seen", "done"]);
    }
    // The client tells of a message when it has stored it: a second time would have been told, too.
    assert_eq!(client.got, posted);
}
