//! The hub's front door: TLS of its own, and peers that stall, flood, or break off.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use remote_collab::hub::{HubConfig, Limits, TlsFiles};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::hub_bed::{DEADLINE, HubBed};
use crate::support::private_ca::PrivateCa;
use crate::support::ws_client::WsClient;

const SHORT: Duration = Duration::from_millis(300);
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n";

async fn bed(change: impl FnOnce(&mut HubConfig)) -> HubBed {
    HubBed::start_in(tempfile::tempdir().unwrap(), change).await
}

async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.unwrap()
}

/// Asks once and reads the answer's status; the connection is kept.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> u16 {
    stream.write_all(HEALTH).await.unwrap();
    status(stream).await
}

/// Reads one answer, head and body.
async fn status(stream: &mut (impl AsyncRead + Unpin)) -> u16 {
    let (head, _) = answer(stream).await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> (String, Vec<u8>) {
    let read = async {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let (_, length) = head.split_once("content-length: ").unwrap();
                let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
                if body.len() >= length {
                    return (head, body.as_bytes().to_vec());
                }
            }
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "{text:?}");
        }
    };
    timeout(DEADLINE, read).await.expect("an answer in time")
}

/// Waits for the hub to close; what it sent before is thrown away.
async fn closed(stream: &mut (impl AsyncRead + Unpin)) {
    let end = async {
        let mut sink = [0; 1024];
        while !matches!(stream.read(&mut sink).await, Ok(0) | Err(_)) {}
    };
    timeout(DEADLINE, end).await.expect("a close in time");
}

async fn tls(addr: SocketAddr, config: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("hub.test").unwrap();
    let connector = TlsConnector::from(Arc::clone(config));
    let shaken = connector.connect(name, connect(addr).await);
    timeout(DEADLINE, shaken).await.unwrap().unwrap()
}

struct TlsBed {
    bed: HubBed,
    ca: PrivateCa,
    _dir: tempfile::TempDir,
}

async fn tls_bed(change: impl FnOnce(&mut HubConfig)) -> TlsBed {
    let dir = tempfile::tempdir().unwrap();
    let ca = PrivateCa::new(dir.path());
    let files = ca.issue("hub", &["hub.test"]);
    let bed = bed(|config| {
        config.tls = Some(files);
        change(config);
    });
    TlsBed {
        bed: bed.await,
        ca,
        _dir: dir,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_never_end_are_cut_while_others_are_served() {
    let bed = bed(|c| c.pacing.head = SHORT).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = connect(bed.hub.addr).await;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            .await
            .unwrap();
        slow.push(tokio::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            let drip = async {
                let mut tick = interval(Duration::from_millis(20));
                loop {
                    tick.tick().await;
                    // The close is seen on the reading side.
                    write.write_all(b"a").await.ok();
                }
            };
            tokio::select! {
                () = closed(&mut read) => {}
                () = drip => {}
            }
        }));
    }
    assert_eq!(ask(&mut connect(bed.hub.addr).await).await, 200);
    for slow in slow {
        slow.await.unwrap();
    }
    assert!(
        bed.hub.connections().cut >= 50,
        "{:?}",
        bed.hub.connections()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_says_nothing_is_cut() {
    let bed = bed(|c| c.pacing.head = SHORT).await;
    closed(&mut connect(bed.hub.addr).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_serves_again_and_ends_when_it_idles() {
    let bed = bed(|c| {
        c.pacing.idle = SHORT;
        c.pacing.head = DEADLINE * 10;
    })
    .await;
    let mut stream = connect(bed.hub.addr).await;
    // The head's own limit does not hold between two requests, nor the idle one within a head.
    stream.write_all(&HEALTH[..10]).await.unwrap();
    stream.write_all(&HEALTH[10..]).await.unwrap();
    assert_eq!(status(&mut stream).await, 200);
    assert_eq!(ask(&mut stream).await, 200);
    closed(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_takes_no_answer_is_cut() {
    let bed = bed(|c| c.pacing.write = SHORT).await;
    let mut stream = connect(bed.hub.addr).await;
    let many = HEALTH.repeat(1_000);
    // Neither reads: the requests fill the peer's buffers, the answers ours, until the hub gives up.
    let flood = async { while stream.write_all(&many).await.is_ok() {} };
    timeout(DEADLINE, flood).await.expect("the hub cut it");
    assert_eq!(bed.hub.connections().cut, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_from_one_address_is_refused_with_a_reason_and_counted() {
    let bed = bed(|c| c.connections.per_address = Some(5)).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut stream = connect(bed.hub.addr).await;
        assert_eq!(ask(&mut stream).await, 200);
        held.push(stream);
    }
    let mut refused = connect(bed.hub.addr).await;
    refused.write_all(HEALTH).await.unwrap();
    let (head, body) = answer(&mut refused).await;
    assert!(head.starts_with("http/1.1 429 "), "{head}");
    assert!(head.contains("retry-after: "), "{head}");
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["code"], "rate_limited");
    closed(&mut refused).await;

    let mut flood = Vec::new();
    for _ in 0..200 {
        flood.push(connect(bed.hub.addr).await);
    }
    // Whoever is in stays in.
    assert_eq!(ask(&mut held[0]).await, 200);
    for mut stream in flood {
        stream.shutdown().await.ok();
        closed(&mut stream).await;
    }
    let counts = bed.hub.connections();
    assert_eq!((counts.open, counts.refused_of_address), (5, 201));

    let mut left = held.pop().unwrap();
    left.shutdown().await.unwrap();
    closed(&mut left).await;
    // The place is free once the hub's side is gone, too.
    let freed = async {
        while bed.hub.connections().open > 4 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, freed).await.unwrap();
    assert_eq!(ask(&mut connect(bed.hub.addr).await).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_keeps_its_place_until_it_ends() {
    let mut bed = bed(|c| {
        c.connections = Limits {
            per_address: None,
            total: 2,
        };
    })
    .await;
    let device = bed.enrol("d").await;
    // The client of the enrolment has a connection of its own.
    bed.http = reqwest::Client::new();
    let (ws, ..) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let open = |n: u32| {
        let hub = &bed.hub;
        async move {
            while hub.connections().open != n {
                tokio::task::yield_now().await;
            }
        }
    };
    timeout(DEADLINE, open(1)).await.unwrap();
    let mut second = connect(bed.hub.addr).await;
    assert_eq!(ask(&mut second).await, 200);
    let mut third = connect(bed.hub.addr).await;
    assert_eq!(ask(&mut third).await, 429);
    drop(ws);
    timeout(DEADLINE, open(1)).await.unwrap();
    assert_eq!(ask(&mut connect(bed.hub.addr).await).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_nobody_who_says_nothing() {
    let bed = bed(|c| c.pacing.drain = SHORT).await;
    let mut idle = connect(bed.hub.addr).await;
    assert_eq!(ask(&mut idle).await, 200);
    let mut half = connect(bed.hub.addr).await;
    half.write_all(b"GET /healthz HT").await.unwrap();
    timeout(DEADLINE, bed.hub.shutdown())
        .await
        .expect("a stop in time");
    closed(&mut idle).await;
    closed(&mut half).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_end_and_block_nobody() {
    let TlsBed { bed, ca, _dir } = tls_bed(|c| c.pacing.handshake = SHORT * 10).await;
    let mut half = Vec::new();
    for n in 0..40 {
        let mut stream = connect(bed.hub.addr).await;
        if n % 2 == 0 {
            // The beginning of a ClientHello of 512 bytes.
            stream
                .write_all(b"\x16\x03\x01\x02\x00\x01\x00")
                .await
                .unwrap();
        }
        half.push(stream);
    }
    assert_eq!(ask(&mut tls(bed.hub.addr, &ca.client()).await).await, 200);
    for mut stream in half {
        closed(&mut stream).await;
    }
    assert_eq!(bed.hub.connections().failed_handshakes, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_stall_do_not_hold_up_the_others() {
    let TlsBed { bed, ca, _dir } = tls_bed(|c| {
        c.pacing.handshakes = 20;
        c.pacing.handshake = DEADLINE * 2;
    })
    .await;
    let mut half = Vec::new();
    for _ in 0..40 {
        half.push(connect(bed.hub.addr).await);
    }
    assert_eq!(ask(&mut tls(bed.hub.addr, &ca.client()).await).await, 200);
    assert_eq!(bed.hub.connections().failed_handshakes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_beyond_64_kib_is_refused_and_not_kept() {
    let bed = bed(|_| {}).await;
    let mut stream = connect(bed.hub.addr).await;
    let head = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(66 << 10));
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(status(&mut stream).await, 431);
    let mut other = connect(bed.hub.addr).await;
    assert_eq!(ask(&mut other).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_words_to_a_tls_hub_end_the_connection() {
    let TlsBed { bed, ca, _dir } = tls_bed(|_| {}).await;
    let mut plain = connect(bed.hub.addr).await;
    plain.write_all(HEALTH).await.unwrap();
    closed(&mut plain).await;
    assert!(bed.hub.url().starts_with("https://127.0.0.1:"));
    assert_eq!(ask(&mut tls(bed.hub.addr, &ca.client()).await).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let TlsBed { bed, ca, _dir } = tls_bed(|_| {}).await;
    let serial = |stream: &TlsStream<TcpStream>| -> CertificateDer<'static> {
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let mut before = tls(bed.hub.addr, &ca.client()).await;
    assert_eq!(ask(&mut before).await, 200);
    let TlsFiles { cert, .. } = ca.issue("hub", &["hub.test"]);
    let after = tls(bed.hub.addr, &ca.client()).await;
    assert_ne!(serial(&before), serial(&after));
    // A broken renewal changes nothing, and what is open stays open.
    std::fs::write(cert, "-----BEGIN CERTIFICATE-----").unwrap();
    let still = tls(bed.hub.addr, &ca.client()).await;
    assert_eq!(serial(&after), serial(&still));
    assert_eq!(ask(&mut before).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_as_http_1_1() {
    let TlsBed { bed, ca, _dir } = tls_bed(|_| {}).await;
    let mut config = ClientConfig::clone(&ca.client());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = tls(bed.hub.addr, &Arc::new(config)).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}
