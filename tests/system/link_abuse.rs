//! A device with a good credential and bad manners: what `hub_socket` does not try, beside a real daemon that must not notice.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::hub_bed::Device;
use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, PATIENCE};
use crate::support::ws_client::{WsClient, hello, upgrade};
use remote_collab::wire::SUBPROTOCOL;
use tokio_tungstenite::tungstenite::Message;

/// A connection after the upgrade, byte by byte.
async fn raw(hub: &HubSite, device: &Device) -> TcpStream {
    let mut tcp = TcpStream::connect(&hub.listen).await.unwrap();
    let request = format!(
        "GET /connect HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\
         sec-websocket-protocol: {SUBPROTOCOL}\r\n\r\n",
        hub.listen,
        device.jwt()
    );
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(PATIENCE, tcp.read_u8()).await.unwrap().unwrap());
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    tcp
}

/// Reads to the end of a raw connection: the close code, 0 without one.
async fn close_code(mut tcp: TcpStream) -> u16 {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    drop(
        timeout(PATIENCE, tcp.read_to_end(&mut bytes))
            .await
            .unwrap(),
    );
    // Frames of a server are not masked; all of ours here are short.
    let mut rest = bytes.as_slice();
    while let [first, length, tail @ ..] = rest {
        let (payload, after) = tail
            .split_at_checked(usize::from(*length))
            .unwrap_or((tail, &[]));
        if first & 0x0f == 8 {
            return payload
                .first_chunk::<2>()
                .map_or(0, |c| u16::from_be_bytes(*c));
        }
        rest = after;
    }
    0
}

/// A masked frame of a client; the mask is zero.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    assert!(length < 126);
    [&[first, 0x80 | length, 0, 0, 0, 0], payload].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_bad_manners_is_closed_with_a_code_and_the_real_daemon_does_not_notice() {
    let mut hub = HubSite::start().await;
    let mut real = DeviceSite::enrolled(&mut hub, "laptop").await;
    real.run().await;
    let before = real.synced().await;
    hub.message("before", &real.name).await;
    let rude = hub.enrol_bare("rude").await;
    let addr = hub.listen.parse().unwrap();

    // Before hello.
    let deep = "[".repeat(200_000);
    let firsts = [
        (
            Message::Binary(vec![0, 159, 146, 150].into()),
            "protocol_error",
            4400,
        ),
        (Message::Text(deep.into()), "malformed_json", 4400),
        (
            Message::Text(r#"{"type":"hello"}"#.into()),
            "malformed_json",
            4400,
        ),
        (
            Message::Text(r#"{"type":"report","n":1}"#.into()),
            "protocol_error",
            4400,
        ),
        (
            Message::Text(r#"{"type":"capacity","free":1}"#.into()),
            "protocol_error",
            4400,
        ),
        (
            Message::Text(r#"{"type":"auth","token":"x"}"#.into()),
            "protocol_error",
            4400,
        ),
    ];
    for (message, code, close) in firsts {
        let shown = format!("{message:?}").chars().take(80).collect::<String>();
        let mut ws = upgrade(addr, Some(&rude.jwt()), Some(SUBPROTOCOL))
            .await
            .unwrap();
        ws.send_message(message).await;
        assert_eq!(ws.end().await, (code.to_owned(), close), "{shown}");
    }
    // Two hellos in one breath.
    let mut ws = WsClient::open(addr, &rude, 1).await;
    ws.send(&hello(1, &Value::Null)).await;
    assert_eq!(ws.end().await, ("protocol_error".to_owned(), 4400));

    // Once in sync: reports whose numbers cannot be, frames of a hub, frames in pieces.
    let report = |n: Value| json!({"type": "report", "n": n, "id": uuid::Uuid::from_u128(9), "kind": "note", "at": 1, "body": {}});
    let later = [
        (report(json!(0)), "protocol_error"),
        (report(json!(u64::MAX)), "protocol_error"),
        (report(json!(-1)), "malformed_json"),
        (json!({"type": "ack", "seq": -1}), "malformed_json"),
        (json!({"type": "capacity", "free": -1}), "malformed_json"),
    ];
    for (frame, code) in later {
        let (mut ws, ..) = WsClient::synced(addr, &rude, 1).await;
        ws.send(&frame).await;
        assert_eq!(ws.end().await, (code.to_owned(), 4400), "{frame}");
    }
    let (mut ws, ..) = WsClient::synced(addr, &rude, 1).await;
    for kind in [
        "welcome",
        "deliver",
        "synced",
        "report_ack",
        "reauth",
        "error",
    ] {
        ws.send(&json!({"type": kind, "seq": 1, "n": 1})).await;
    }
    ws.send_message(Message::Binary(vec![7; 100_000].into()))
        .await;
    assert_eq!(ws.end().await, ("protocol_error".to_owned(), 4400));

    // What is no WebSocket any more.
    let garbage: [(&str, Vec<u8>); 5] = [
        ("not UTF-8", frame(0x81, &[0xff, 0xfe, 0xfd])),
        ("a reserved opcode", frame(0x83, b"x")),
        ("a continuation of nothing", frame(0x80, b"x")),
        ("a frame without a mask", vec![0x81, 0x01, b'x']),
        ("noise", (0..=255).cycle().take(4096).collect()),
    ];
    for (what, bytes) in garbage {
        let mut tcp = raw(&hub, &rude).await;
        tcp.write_all(&bytes).await.unwrap();
        assert_eq!(close_code(tcp).await, 4400, "{what}");
    }
    // Cut in the middle of a frame, and no HTTP at all.
    let mut tcp = raw(&hub, &rude).await;
    tcp.write_all(&[0x81, 0xff, 0, 0]).await.unwrap();
    drop(tcp);
    let mut tcp = TcpStream::connect(&hub.listen).await.unwrap();
    tcp.write_all(b"\x16\x03\x01 this is no request\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(
        timeout(PATIENCE, tcp.read_to_end(&mut answer))
            .await
            .unwrap(),
    );
    assert!(
        answer.starts_with(b"HTTP/1.1 400"),
        "{}",
        String::from_utf8_lossy(&answer)
    );

    hub.message("after", &real.name).await;
    let after = real
        .until("the message", |_| queue_db::count(&real.queue_db()) == 2)
        .await;
    assert_eq!(after["link"]["state"], "SYNCED");
    assert_eq!(
        after["link"]["generation"], before["link"]["generation"],
        "the same connection all the while"
    );
    assert_eq!(after["link"]["malformed"], 0);
    let rows = queue_db::messages(&real.queue_db());
    assert_eq!(
        rows.iter().map(|r| r.content.as_str()).collect::<Vec<_>>(),
        ["before", "after"]
    );
    // The rude one is let in again as soon as it behaves.
    let (_ws, _, rows) = WsClient::synced(addr, &rude, 1).await;
    assert!(rows.is_empty());
}
