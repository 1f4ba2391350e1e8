//! The daemon's parts against the real hub.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use remote_collab::auth::Token;
use remote_collab::config::DaemonConfig;
use remote_collab::core::client::ClientConfig;
use remote_collab::daemon::credentials::Credentials;
use remote_collab::daemon::dial::Dialer;
use remote_collab::daemon::http::{Fetched, HubHttp};
use remote_collab::daemon::link::{Directory, LinkParts, LinkStatus, SnapshotSource, link};
use remote_collab::daemon::store::{FILE, NewReport, QueueFilter, Store};
use remote_collab::daemon::way::Way;
use remote_collab::domain::{AccountId, Code, Receipt, SessionId, Stage, Trust, WallMs};
use remote_collab::hub::{AdminCall, HubConfig, HubHandle};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::fake_hub::DEADLINE;

struct Empty;

impl SnapshotSource for Empty {
    fn directory(&self) -> BoxFuture<'static, Directory> {
        std::future::ready(Directory::default()).boxed()
    }
}

async fn token(hub: &HubHandle, scopes: &[&str], join: bool) -> String {
    let account = AccountId::new("default").unwrap();
    let call = if join {
        AdminCall::CreateJoin {
            name: "test".into(),
            account,
        }
    } else {
        AdminCall::CreateToken {
            name: "test".into(),
            account,
            scopes: scopes.iter().map(|s| (*s).to_owned()).collect(),
            trust: Trust::Run,
            ttl_s: 3_600,
        }
    };
    let made = hub.admin(&call).await.unwrap();
    made["token"].as_str().unwrap().to_owned()
}

/// One call with a producer's token; gives status and body.
async fn call(at: SocketAddr, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut tcp = TcpStream::connect(at).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(DEADLINE, exchange).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

struct Enrolled {
    hub: HubHandle,
    hub_dir: TempDir,
    dir: TempDir,
    http: HubHttp,
}

async fn enrolled() -> Enrolled {
    let hub_dir = tempfile::tempdir().unwrap();
    let hub = remote_collab::hub::start(HubConfig::local(hub_dir.path()))
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let way = Way::new(&DaemonConfig::default()).unwrap();
    let http = HubHttp::new(&way, dir.path().to_owned(), None).unwrap();
    let join = Token::parse(&token(&hub, &[], true).await).unwrap();
    let key = Credentials::key(dir.path()).unwrap();
    let url = hub.url().parse().unwrap();
    let enrolment = http
        .enrol(&url, &join, key.public(), "laptop")
        .await
        .unwrap();
    assert_eq!(enrolment.hub_id, hub.hub_id);
    Credentials::save(dir.path(), &enrolment).unwrap();
    Enrolled {
        hub,
        hub_dir,
        dir,
        http,
    }
}

#[tokio::test]
async fn a_join_token_makes_one_device_and_a_refusal_keeps_its_code() {
    let e = enrolled().await;
    let join = Token::parse(&token(&e.hub, &[], true).await).unwrap();
    let other = tempfile::tempdir().unwrap();
    let url = e.hub.url().parse().unwrap();
    for (dir, works) in [(&other, true), (&tempfile::tempdir().unwrap(), false)] {
        let key = Credentials::key(dir.path()).unwrap();
        let enrolment = e.http.enrol(&url, &join, key.public(), "second").await;
        match enrolment {
            Ok(_) => assert!(works),
            Err(error) => assert_eq!((works, error.code()), (false, Code::TokenUsed)),
        }
    }
    e.hub.shutdown().await;
}

#[tokio::test]
async fn memory_goes_to_the_hub_and_comes_back_once_per_change() {
    let e = enrolled().await;
    let session = SessionId::from_u128(1);
    let get = async |etag: Option<&str>| e.http.get_memory(session, None, etag).await.unwrap();
    assert_eq!(get(None).await, Fetched::Missing);
    assert_eq!(
        e.http.get_index(session, None, None).await.unwrap(),
        Fetched::Missing
    );
    let memory = json!({ "summary": "we fixed the build", "context": ["use make"] });
    e.http.post_memory(session, &memory).await.unwrap();
    let Fetched::Found { etag, body } = get(None).await else {
        panic!("no memory");
    };
    assert_eq!(body["summary"], "we fixed the build");
    assert_eq!(get(etag.as_deref()).await, Fetched::NotModified);
    e.hub.shutdown().await;
}

#[tokio::test]
async fn a_posted_message_is_durable_on_the_device_and_its_receipts_come_back_over_a_hub_restart() {
    let e = enrolled().await;
    let at = e.hub.addr;
    let producer = token(&e.hub, &["messages:write", "messages:read"], false).await;
    let store = Store::open(&e.dir.path().join(FILE)).unwrap();
    let (_capacity, free) = watch::channel(2);
    let stop = CancellationToken::new();
    let way = Way::new(&DaemonConfig::default()).unwrap();
    let parts = LinkParts {
        store: store.clone(),
        dialer: Dialer::new(way.clone()),
        http: HubHttp::new(&way, e.dir.path().to_owned(), None).unwrap(),
        poll_interval: Duration::from_secs(1),
        credentials: e.dir.path().to_owned(),
        hub: None,
        source: Arc::new(Empty),
        capacity: free,
        config: ClientConfig::default(),
        beat: remote_collab::daemon::watchdog::Beat::default(),
    };
    let (handle, running) = link(parts, stop.clone());
    let running = tokio::spawn(running);
    handle.connect().await;
    let mut status = handle.status();
    timeout(DEADLINE, status.wait_for(LinkStatus::is_synced))
        .await
        .unwrap()
        .unwrap();

    let mut durable = store.durable();
    let body = json!({ "content": "hello" });
    let (code, posted) = call(at, &producer, "POST", "/messages", &body).await;
    assert_eq!(code, 202, "{posted}");
    let arrived = durable.wait_for(|c| c.is_some_and(|c| c.seq.0 >= 1));
    timeout(DEADLINE, arrived).await.unwrap().unwrap();
    let rows = store.queued(QueueFilter::default(), 10).await.unwrap();
    assert_eq!(json!(rows[0].envelope.id), posted["id"]);

    e.hub.shutdown().await;
    timeout(DEADLINE, status.wait_for(|s| !s.is_synced()))
        .await
        .unwrap()
        .unwrap();
    let id = rows[0].envelope.id;
    let receipt = Receipt {
        stage: Stage::Done,
        at: WallMs(1),
        evidence: None,
    };
    store
        .finish(id, vec![NewReport::receipt(id, receipt)])
        .await
        .unwrap();
    let mut confirmed = store.confirmed();
    let config = HubConfig {
        listen: at,
        ..HubConfig::local(e.hub_dir.path())
    };
    let hub = remote_collab::hub::start(config).await.unwrap();
    // The retry that is due soonest may be some seconds away; a person would not wait either.
    handle.connect().await;
    timeout(DEADLINE, confirmed.wait_for(|n| *n >= 1))
        .await
        .unwrap()
        .unwrap();
    let path = format!("/messages/{id}");
    let (code, message) = call(at, &producer, "GET", &path, &Value::Null).await;
    assert_eq!(code, 200, "{message}");
    let stages: Vec<_> = message["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["stage"])
        .collect();
    assert!(stages.contains(&&json!("done")), "{message}");
    assert_eq!(store.counts().await.unwrap().outbox, 0);
    stop.cancel();
    timeout(DEADLINE, running).await.unwrap().unwrap();
    hub.shutdown().await;
}
