//! A reader of server-sent events, written from the WHATWG text.

use reqwest::Response;
use serde_json::Value;
use tokio::time::timeout;

use super::hub_bed::{DEADLINE, read};

/// An event as a reader sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) kind: String,
    pub(crate) data: Value,
    /// The last event id after it.
    pub(crate) id: String,
}

#[derive(Debug)]
pub(crate) struct Sse {
    response: Response,
    buffer: Vec<u8>,
    /// The last event id.
    pub(crate) id: String,
    /// Blocks without data: signs of life.
    pub(crate) beats: usize,
}

impl Sse {
    pub(crate) async fn open(request: reqwest::RequestBuilder) -> Self {
        let response = timeout(DEADLINE, request.send()).await.unwrap().unwrap();
        assert_eq!(response.status(), 200, "{:?}", response.text().await);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            buffer: Vec::new(),
            id: String::new(),
            beats: 0,
        }
    }

    /// Reads one block; whether there was one.
    async fn block(&mut self) -> Option<Option<Told>> {
        let end = loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                break at;
            }
            let chunk = timeout(DEADLINE, self.response.chunk());
            match chunk.await.expect("something in time") {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) | Err(_) => return None,
            }
        };
        let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
        let (mut kind, mut data) = ("message".to_owned(), Vec::new());
        for line in std::str::from_utf8(&block).unwrap().lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut kind),
                "data" => data.push(value.to_owned()),
                "id" => value.clone_into(&mut self.id),
                _ => {}
            }
        }
        if data.is_empty() {
            self.beats += 1;
            return Some(None);
        }
        let data = serde_json::from_str(&data.join("\n")).unwrap();
        let id = self.id.clone();
        Some(Some(Told { kind, data, id }))
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some(told) = self.block().await? {
                return Some(told);
            }
        }
    }

    /// The next event, which has to be of this type.
    pub(crate) async fn expect(&mut self, kind: &str) -> Told {
        let told = self.next().await.expect("an event, not the end");
        assert_eq!(told.kind, kind, "{told:?}");
        told
    }

    /// Reads to the end.
    pub(crate) async fn rest(&mut self) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(told) = self.next().await {
            all.push(told);
        }
        all
    }

    /// Waits for a sign of life.
    pub(crate) async fn beat(&mut self) {
        assert_eq!(self.block().await, Some(None));
    }
}

/// Looks at a task or a message again at every event of the account until it is as wanted: nothing that happens to one
/// happens without an event.
pub(crate) async fn becomes(
    client: &reqwest::Client,
    hub: &str,
    token: &str,
    path: &str,
    want: impl Fn(&Value) -> bool,
) -> Value {
    // Opened before the first look, so that no change falls between.
    let mut events = Sse::open(client.get(format!("{hub}/events")).bearer_auth(token)).await;
    loop {
        let asked = client.get(format!("{hub}{path}")).bearer_auth(token);
        let v = read(asked).await.ok(200);
        if want(&v) {
            return v;
        }
        assert!(events.next().await.is_some(), "it does not happen: {v}");
    }
}
