//! The way to a hub that is reached only through a proxy, with a certificate of a private CA: case D7.
//!
//! The hub's name, `hub.test`, exists nowhere: only the proxy's end of the chain knows the hub. Behind the real proxy,
//! tinyproxy, stands one of the test's own that stands in for the network beyond it and its names.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use futures::FutureExt;
use remote_collab::auth::{DeviceKey, Token};
use remote_collab::config::{CaSources, HubUrl, Proxies};
use remote_collab::core::client::DialFailure;
use remote_collab::daemon::dial::Dialer;
use remote_collab::daemon::http::HubHttp;
use remote_collab::daemon::way::{Resolve, Way};
use remote_collab::domain::Trust;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::fake_hub::{FakeHub, Refusal};
use crate::support::connect_proxy::{Answer, ConnectProxy, Tinyproxy};
use crate::support::hub_bed::{ALL_SCOPES, DEADLINE, HubBed, read, token};
use crate::support::private_ca::PrivateCa;
use crate::support::sites::{LOOK, Machine, Process};
use crate::support::sse::becomes;

const USER: &str = "robot";
const PASSWORD: &str = "p%2Dss-1f6e0c";
/// What stands in no log, error or status.
const SECRETS: [&str; 3] = ["p%2Dss-1f6e0c", "p-ss-1f6e0c", "cm9ib3Q6cC1zcy0xZjZlMGM="];

/// A hub with TLS by a private CA that nobody resolves.
struct Bed {
    hub: HubBed,
    ca: PrivateCa,
    dir: tempfile::TempDir,
}

impl Bed {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = PrivateCa::new(dir.path());
        let files = ca.issue("hub", &["hub.test"]);
        let home = tempfile::tempdir().unwrap();
        let hub = HubBed::start_in(home, |c| c.tls = Some(files)).await;
        Self { hub, ca, dir }
    }

    fn url(&self) -> HubUrl {
        format!("https://hub.test:{}", self.hub.hub.addr.port())
            .parse()
            .unwrap()
    }

    fn ca(&self) -> CaSources {
        CaSources {
            file: Some(self.ca.file()),
            ..CaSources::default()
        }
    }

    fn way(&self, proxy: &str) -> Way {
        Way::with(&self.ca(), proxies(proxy)).unwrap()
    }

    /// Why the dial through this proxy fails.
    async fn refused(&self, way: Way) -> DialFailure {
        let dialed = Dialer::new(way);
        let token = Token::parse(JWT).unwrap();
        match timeout(DEADLINE, dialed.dial(&self.url(), &token))
            .await
            .unwrap()
        {
            Ok(_) => panic!("a connection"),
            Err(failure) => failure,
        }
    }

    /// Why an HTTP call through this proxy fails.
    async fn refused_http(&self, way: &Way) -> String {
        let http = HubHttp::new(way, self.dir.path().to_owned(), None).unwrap();
        let key = DeviceKey::generate().unwrap();
        let (url, join) = (self.url(), Token::parse(JWT).unwrap());
        let call = http.enrol(&url, &join, key.public(), "d");
        let error = timeout(DEADLINE, call).await.unwrap().unwrap_err();
        error.to_string()
    }
}

/// Of the shape of a token, and nobody's.
const JWT: &str = "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJ4In0.c2ln";

fn proxies(url: &str) -> Proxies {
    Proxies::read(Some(url.parse().unwrap()), &|_| None)
}

fn no_secrets(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{text}");
    }
}

/// A device whose only way out is the environment's proxy.
struct Laptop {
    machine: Machine,
}

impl Laptop {
    fn new(env: &[(&str, String)]) -> Self {
        let mut machine = Machine::new();
        machine.env = env
            .iter()
            .map(|(n, v)| ((*n).to_owned(), v.clone()))
            .collect();
        Self { machine }
    }

    async fn login(&self, bed: &Bed) -> crate::support::sites::Ran {
        let join = bed.hub.join_token("default").await;
        let url = bed.url().to_string();
        self.machine
            .run(&["login", &url, "--token-stdin", "--name", "laptop"], &join)
            .await
    }

    async fn daemon(&self) -> Process {
        let args = ["daemon", "run", "--local-listen", "127.0.0.1:0"];
        self.machine.spawn(&args).await
    }

    async fn link_is(&self, process: &Process, state: &str) -> Value {
        let local = process.ready["local"].as_str().unwrap().to_owned();
        let token = process.ready["local_token"].as_str().unwrap().to_owned();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let seen = async {
            loop {
                let asked = client.get(format!("{local}/status")).bearer_auth(&token);
                let status = read(asked).await.body;
                if status["link"]["state"] == state {
                    return status;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(DEADLINE, seen).await.expect("the state in time")
    }
}

/// D7 (b) and (c): `login` and the daemon go through a real proxy with a password, to a hub by a private CA.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_whose_only_way_out_is_a_proxy_logs_in_and_gets_its_mail() {
    let bed = Bed::start().await;
    let beyond = ConnectProxy::start(Answer::Tunnel(bed.hub.hub.addr)).await;
    let lines = format!(
        "BasicAuth {USER} p-ss-1f6e0c\nUpstream http {} \"hub.test\"",
        beyond.address
    );
    let tinyproxy = Tinyproxy::start(bed.dir.path(), &lines).await;
    let proxy = format!("http://{USER}:{PASSWORD}@127.0.0.1:{}", tinyproxy.port);
    let ca = bed.ca.file().display().to_string();

    let laptop = Laptop::new(&[("HTTPS_PROXY", proxy), ("SSL_CERT_FILE", ca)]);
    laptop.login(&bed).await.ok();
    let daemon = laptop.daemon().await;
    let status = laptop.link_is(&daemon, "SYNCED").await;
    no_secrets(&status.to_string());
    let token = token(&bed.hub.hub, "ci", "default", ALL_SCOPES, Trust::Run).await;
    let producer = reqwest::Client::builder()
        .no_proxy()
        .resolve("hub.test", bed.hub.hub.addr)
        .tls_backend_preconfigured(rustls::ClientConfig::clone(&bed.ca.client()))
        .build()
        .unwrap();
    let posted = producer
        .post(format!("{}/messages", bed.url()))
        .bearer_auth(&token)
        .json(&json!({"device": "laptop", "content": "hi"}));
    let id = read(posted).await.ok(202)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let on_device = |m: &Value| m.to_string().contains("on_device");
    let path = format!("/messages/{id}");
    becomes(&producer, &bed.url().to_string(), &token, &path, on_device).await;
    daemon.terminate().await;

    let heads = beyond.heads();
    assert!(heads.len() >= 2, "{heads:?}");
    for head in heads {
        assert!(head.starts_with("CONNECT hub.test:"), "{head}");
    }
    for (_, text) in laptop.machine.written() {
        no_secrets(&text);
    }
}

/// D7 (a): what answers the upgrade with 403 or 426 and none of our codes is an edge, and the dial says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_blocks_the_upgrade_is_told_from_the_hub() {
    let hub = FakeHub::start().await;
    let url = format!("http://{}", hub.address).parse().unwrap();
    let dialer = Dialer::new(Way::with(&CaSources::default(), Proxies::default()).unwrap());
    for status in [403, 426] {
        hub.refuse(vec![Refusal::Edge(StatusCode::from_u16(status).unwrap())]);
        let failure = dialer.dial(&url, &Token::parse(JWT).unwrap()).await.err();
        let expected = DialFailure::Edge {
            status,
            retry_after_s: None,
        };
        assert_eq!(failure, Some(expected));
    }
}

/// D7 (c): the key `ca_file` and `SSL_CERT_DIR` do the same, and without them the hub is not trusted, for both halves.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_ca_counts_for_http_and_websocket_alike() {
    let bed = Bed::start().await;
    let proxy = ConnectProxy::start(Answer::Tunnel(bed.hub.hub.addr)).await;
    let url = format!("http://{}", proxy.address);
    let folder = bed.dir.path().join("certs");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(bed.ca.file(), folder.join("private.pem")).unwrap();
    let by_dir = CaSources {
        env_dirs: vec![folder],
        ..CaSources::default()
    };
    for ca in [bed.ca(), by_dir] {
        let way = Way::with(&ca, proxies(&url)).unwrap();
        // Both reach the hub, which knows the token's sender not.
        let failure = bed.refused(way.clone()).await;
        assert!(
            matches!(failure, DialFailure::Refused { .. }),
            "{failure:?}"
        );
        let error = bed.refused_http(&way).await;
        assert!(error.starts_with("the hub refused"), "{error}");
    }
    let stranger = Way::with(&CaSources::default(), proxies(&url)).unwrap();
    let failure = bed.refused(stranger.clone()).await;
    assert!(
        format!("{failure:?}").contains("UnknownIssuer"),
        "{failure:?}"
    );
    let error = bed.refused_http(&stranger).await;
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_real_proxy_is_told_as_the_proxys_with_its_cause() {
    let bed = Bed::start().await;
    let proxy = Tinyproxy::start(
        bed.dir.path(),
        &format!("BasicAuth {USER} other\nConnectPort 1"),
    )
    .await;
    let name = format!("http://127.0.0.1:{}", proxy.port);
    let with_password = format!("http://{USER}:{PASSWORD}@127.0.0.1:{}", proxy.port);
    let allowed = format!("http://{USER}:other@127.0.0.1:{}", proxy.port);
    for (url, status, words) in [
        (&name, 407, "wants a user and password"),
        (&with_password, 401, ""),
        (&allowed, 403, "rules"),
    ] {
        let way = bed.way(url);
        let failure = bed.refused(way.clone()).await;
        let DialFailure::Proxy {
            status: got,
            detail,
            ..
        } = failure
        else {
            panic!("{failure:?}");
        };
        // Tinyproxy answers a wrong password with 401, a missing one with 407.
        assert_eq!(got, status, "{detail}");
        assert!(detail.contains(&name) && detail.contains(words), "{detail}");
        assert!(detail.contains("hub.test"), "{detail}");
        no_secrets(&detail);
        let error = bed.refused_http(&way).await;
        assert!(error.contains(&detail), "{error}");
    }
    let laptop = Laptop::new(&[("https_proxy", with_password)]);
    let ran = laptop.login(&bed).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains(&name), "{ran:?}");
    no_secrets(&ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_proxy_are_told_in_time_and_with_its_name() {
    let bed = Bed::start().await;
    let proxy = ConnectProxy::start(Answer::Close).await;
    let name = format!("http://{}", proxy.address);
    let url = format!("http://{USER}:{PASSWORD}@{}", proxy.address);
    let huge: &'static [u8] = Box::leak(
        [b"HTTP/1.1 200 OK\r\nX: ", "a".repeat(64 << 10).as_bytes()]
            .concat()
            .into(),
    );
    for (answer, words) in [
        (Answer::Close, "closed the connection"),
        (
            Answer::Bytes(b"\x16\x03garbage\r\n\r\n", true),
            "does not speak HTTP",
        ),
        (
            Answer::Bytes(b"HTTP/1.1 200 OK\r\n\r\nearly", true),
            "spoke itself",
        ),
        (Answer::Bytes(huge, true), "too large"),
        (
            Answer::Bytes(b"HTTP/1.1 200 O", false),
            "closed the connection",
        ),
        // Half open: the last bytes of its head never come.
        (Answer::Bytes(b"HTTP/1.1 200 OK\r\nX: ", true), "in time"),
        (Answer::Silence, "in time"),
    ] {
        proxy.answer(answer.clone());
        let failure = bed.refused(bed.way(&url)).await;
        let DialFailure::Network { detail } = failure else {
            panic!("{answer:?} {failure:?}");
        };
        assert!(detail.contains(&name) && detail.contains(words), "{detail}");
        no_secrets(&detail);
    }
    for (bytes, status, after) in [
        (
            &b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad"[..],
            502,
            None,
        ),
        (
            &b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\n"[..],
            503,
            Some(7),
        ),
        (&b"HTTP/1.1 100 Continue\r\n\r\n"[..], 0, None),
    ] {
        proxy.answer(Answer::Bytes(bytes, status == 0));
        match bed.refused(bed.way(&url)).await {
            DialFailure::Proxy {
                status: got,
                retry_after_s,
                ..
            } => {
                assert_eq!((got, retry_after_s), (status, after));
            }
            DialFailure::Network { detail } if status == 0 => assert!(detail.contains("in time")),
            other => panic!("{other:?}"),
        }
    }
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let failure = bed.refused(bed.way(&nobody)).await;
    assert!(format!("{failure:?}").contains(&nobody), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_speaks_tls_itself_is_gone_through() {
    let bed = Bed::start().await;
    let tls = PrivateCa::server(&bed.ca.issue("proxy", &["127.0.0.1"]));
    let proxy = ConnectProxy::start_tls(Answer::Tunnel(bed.hub.hub.addr), tls).await;
    let way = bed.way(&format!("https://{USER}:{PASSWORD}@{}", proxy.address));
    let failure = bed.refused(way.clone()).await;
    assert!(
        matches!(failure, DialFailure::Refused { .. }),
        "{failure:?}"
    );
    let error = bed.refused_http(&way).await;
    assert!(error.starts_with("the hub refused"), "{error}");
    let heads = proxy.heads();
    assert_eq!(heads.len(), 2, "{heads:?}");
    for head in heads {
        let head = head.to_ascii_lowercase();
        assert!(
            head.contains(&format!(
                "proxy-authorization: basic {}",
                SECRETS[2].to_ascii_lowercase()
            )),
            "{head}"
        );
        assert!(!head.contains("\r\nauthorization:"), "{head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_no_proxy_and_this_machine_are_reached_directly() {
    let bed = Bed::start().await;
    let proxy = ConnectProxy::start(Answer::Close).await;
    let env = |list: &'static str, proxy: String| {
        move |name: &str| match name {
            "HTTPS_PROXY" => Some(proxy.clone().into()),
            "NO_PROXY" => Some(list.into()),
            _ => None,
        }
    };
    let url = proxy.address.to_string();
    let direct = Proxies::read(None, &env("other.example,.test", url.clone()));
    let resolve = fixed(bed.hub.hub.addr);
    let way = Way::with(&bed.ca(), direct).unwrap().resolving(resolve);
    let failure = bed.refused(way.clone()).await;
    assert!(
        matches!(failure, DialFailure::Refused { .. }),
        "{failure:?}"
    );
    let error = bed.refused_http(&way).await;
    assert!(error.starts_with("the hub refused"), "{error}");
    assert!(proxy.heads().is_empty());

    let plain = HubBed::start().await;
    let all = Proxies::read(None, &env("", url));
    let way = Way::with(&CaSources::default(), all).unwrap();
    let dialer = Dialer::new(way);
    let here = plain.hub.url().parse().unwrap();
    let dialed = dialer.dial(&here, &Token::parse(JWT).unwrap()).await;
    assert!(matches!(dialed, Err(DialFailure::Refused { .. })));
    assert!(proxy.heads().is_empty());
}

fn fixed(address: SocketAddr) -> Resolve {
    Arc::new(move |_, _| async move { Ok(vec![address]) }.boxed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_moves_is_followed_at_the_next_attempt_and_every_address_is_tried() {
    let bed = Bed::start().await;
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = refusing.local_addr().unwrap();
    drop(refusing);
    let addresses = Arc::new(Mutex::new(vec![dead]));
    let asked = Arc::new(Mutex::new(0));
    let resolve: Resolve = {
        let (addresses, asked) = (Arc::clone(&addresses), Arc::clone(&asked));
        Arc::new(move |name, _| {
            assert_eq!(name, "hub.test");
            *asked.lock().unwrap() += 1;
            let found = addresses.lock().unwrap().clone();
            async move { Ok(found) }.boxed()
        })
    };
    let way = bed.way("none").resolving(resolve);
    let failure = bed.refused(way.clone()).await;
    assert!(
        matches!(failure, DialFailure::Network { .. }),
        "{failure:?}"
    );
    *addresses.lock().unwrap() = vec![dead, bed.hub.hub.addr];
    let failure = bed.refused(way.clone()).await;
    assert!(
        matches!(failure, DialFailure::Refused { .. }),
        "{failure:?}"
    );
    assert_eq!(*asked.lock().unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_literal_is_dialled() {
    let dir = tempfile::tempdir().unwrap();
    let ca = PrivateCa::new(dir.path());
    let files = ca.issue("hub", &["::1"]);
    let home = tempfile::tempdir().unwrap();
    let bed = HubBed::start_in(home, |c| {
        c.tls = Some(files);
        c.listen = "[::1]:0".parse().unwrap();
    })
    .await;
    let trusted = CaSources {
        file: Some(ca.file()),
        ..CaSources::default()
    };
    let way = Way::with(&trusted, Proxies::default()).unwrap();
    let hub: HubUrl = bed.hub.url().parse().unwrap();
    let dialed = Dialer::new(way)
        .dial(&hub, &Token::parse(JWT).unwrap())
        .await;
    assert!(
        matches!(dialed, Err(DialFailure::Refused { .. })),
        "{:?}",
        dialed.err()
    );
}
