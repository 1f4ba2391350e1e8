//! A device as bare as it can be: one WebSocket, frames as JSON, nothing automatic.

use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use remote_collab::domain::Seq;
use remote_collab::wire::SUBPROTOCOL;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::hub_bed::{DEADLINE, Device};

pub(crate) struct WsClient {
    ws: WebSocketStream<TcpStream>,
}

/// The HTTP answer to a refused upgrade.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

pub(crate) async fn upgrade(
    addr: SocketAddr,
    bearer: Option<&str>,
    protocol: Option<&str>,
) -> Result<WsClient, Refused> {
    let mut request = format!("ws://{addr}/connect")
        .into_client_request()
        .unwrap();
    if let Some(token) = bearer {
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
    }
    if let Some(p) = protocol {
        let value = p.parse().unwrap();
        request
            .headers_mut()
            .insert("sec-websocket-protocol", value);
    }
    let tcp = TcpStream::connect(addr).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    match timeout(DEADLINE, client_async(request, tcp)).await.unwrap() {
        Ok((ws, _)) => Ok(WsClient { ws }),
        Err(Error::Http(response)) => Err(Refused {
            status: response.status().as_u16(),
            body: response
                .body()
                .as_ref()
                .and_then(|b| serde_json::from_slice(b).ok())
                .unwrap_or(Value::Null),
        }),
        Err(e) => panic!("{e}"),
    }
}

impl WsClient {
    /// Connects and says hello; `instance` tells a restart from a clone.
    pub(crate) async fn open(addr: SocketAddr, device: &Device, instance: u128) -> Self {
        let mut ws = upgrade(addr, Some(&device.jwt()), Some(SUBPROTOCOL))
            .await
            .unwrap();
        ws.send(&hello(instance, &Value::Null)).await;
        ws
    }

    /// Connects and takes everything up to `synced`: the welcome, and the delivered rows.
    pub(crate) async fn synced(
        addr: SocketAddr,
        device: &Device,
        instance: u128,
    ) -> (Self, Value, Vec<Value>) {
        let mut ws = Self::open(addr, device, instance).await;
        let welcome = ws.expect("welcome").await;
        let rows = ws.until_synced().await;
        (ws, welcome, rows)
    }

    pub(crate) async fn until_synced(&mut self) -> Vec<Value> {
        let mut rows = Vec::new();
        loop {
            let frame = self.frame().await.unwrap();
            match frame["type"].as_str() {
                Some("deliver") => rows.push(frame),
                Some("synced") => return rows,
                _ => panic!("{frame}"),
            }
        }
    }

    pub(crate) async fn send(&mut self, frame: &Value) {
        self.send_text(frame.to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: String) {
        self.send_message(Message::Text(text.into())).await;
    }

    pub(crate) async fn send_message(&mut self, message: Message) {
        timeout(DEADLINE, self.ws.send(message))
            .await
            .unwrap()
            .unwrap();
    }

    /// The next frame; the close code at the end of the connection (0 without one).
    pub(crate) async fn frame(&mut self) -> Result<Value, u16> {
        loop {
            match timeout(DEADLINE, self.ws.next())
                .await
                .expect("a frame in time")
            {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => return Err(frame.map_or(0, |f| f.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(0),
            }
        }
    }

    /// The next frame, which has to be of this type.
    pub(crate) async fn expect(&mut self, kind: &str) -> Value {
        let frame = self.frame().await.unwrap();
        assert_eq!(frame["type"], kind, "{frame}");
        frame
    }

    /// Reads to the end: the code of the last `error` frame, and the close code.
    pub(crate) async fn end(&mut self) -> (String, u16) {
        let mut code = String::new();
        loop {
            match self.frame().await {
                Ok(f) if f["type"] == "error" => {
                    f["code"].as_str().unwrap().clone_into(&mut code);
                }
                Ok(_) => {}
                Err(close) => return (code, close),
            }
        }
    }

    pub(crate) async fn ack(&mut self, seq: u64) {
        self.send(&json!({"type": "ack", "seq": Seq(seq)})).await;
    }
}

pub(crate) fn hello(instance: u128, last: &Value) -> Value {
    let id = uuid::Uuid::from_u128(instance);
    json!({
        "type": "hello", "instance": id, "last": last,
        "outbox": {"instance": id, "next_n": 1}, "build": "test", "os": "linux", "capacity": 2,
        "projects": [{"name": "shop", "path": "/home/dev/shop"}],
        "sessions": [{
            "session_id": uuid::Uuid::from_u128(0x5e55), "lineage": [uuid::Uuid::from_u128(0x01d)],
            "project": "shop", "activity": "idle", "active_at": 1,
        }],
    })
}
