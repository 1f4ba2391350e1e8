//! The hub's HTTP API as a producer calls it: with a token of its own, and with streams of events.

use std::time::Duration;

use serde_json::Value;

use super::{
    Client, HttpError, Method, RequestBuilder, Response, accepted, bytes, client, header, read,
    said, send,
};
use crate::auth::Token;
use crate::config::HubUrl;
use crate::daemon::server_events::{EventReader, ServerEvent};
use crate::daemon::way::Way;
use crate::domain::limits;

/// How long a large text may take.
const DOWNLOAD: Duration = Duration::from_secs(120);
/// How long a stream of events may last before it is opened anew.
const STREAM: Duration = Duration::from_secs(24 * 3600);
/// The longest silence of a stream: the hub's heartbeat comes every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// How a producer's call begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads.
    Get,
    /// Posts a body.
    Post,
}

/// The hub's HTTP API for a producer: calls with its token.
pub struct ProducerHttp {
    client: Client,
    way: Way,
    hub: HubUrl,
    token: Token,
}

impl std::fmt::Debug for ProducerHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerHttp")
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}

impl ProducerHttp {
    /// The API of `hub`, reached this way, with this token.
    ///
    /// # Errors
    /// When the client cannot be set up.
    pub fn new(way: &Way, hub: HubUrl, token: Token) -> Result<Self, HttpError> {
        Ok(Self {
            client: client(way)?,
            way: way.clone(),
            hub,
            token,
        })
    }

    /// The hub that is called.
    #[must_use]
    pub const fn hub(&self) -> &HubUrl {
        &self.hub
    }

    /// One call: the JSON of the answer.
    ///
    /// # Errors
    /// When there is no answer, or it is no success.
    pub async fn call(
        &self,
        verb: Verb,
        path: &[&str],
        query: &[(&str, String)],
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, HttpError> {
        let method = match verb {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
        };
        let request = self.request(method, path, query);
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        read(accepted(send(&self.way, &self.client, request).await?).await?).await
    }

    /// A text that the hub keeps whole, of at most the largest result's size.
    ///
    /// # Errors
    /// When there is no answer, it is no success, or no text.
    pub async fn text(&self, path: &[&str]) -> Result<String, HttpError> {
        let request = self.request(Method::GET, path, &[]).timeout(DOWNLOAD);
        let response = accepted(send(&self.way, &self.client, request).await?).await?;
        let bytes = bytes(response, limits::MAX_RESULT_BYTES).await?;
        String::from_utf8(bytes).map_err(|e| HttpError::BadAnswer(e.to_string()))
    }

    /// Opens a stream of server-sent events, behind the event of this id where one is named.
    ///
    /// # Errors
    /// When there is no answer, or it is no success.
    pub async fn events(&self, path: &[&str], after: Option<&str>) -> Result<Events, HttpError> {
        let request = self
            .request(Method::GET, path, &[])
            .header(header::ACCEPT, "text/event-stream")
            // The stream lasts; its silence is bounded at each read.
            .timeout(STREAM);
        let request = match after {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        let response = accepted(send(&self.way, &self.client, request).await?).await?;
        Ok(Events {
            response,
            read: EventReader::default(),
        })
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.hub.api(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.client
            .request(method, url)
            .bearer_auth(self.token.expose())
    }
}

/// An open stream of server-sent events.
#[derive(Debug)]
pub struct Events {
    response: Response,
    read: EventReader,
}

impl Events {
    /// The next event; `None` at the stream's end. May be cancelled.
    ///
    /// # Errors
    /// When the stream broke, was silent for longer than its heartbeats allow, or is no stream of events.
    pub async fn next(&mut self) -> Result<Option<ServerEvent>, HttpError> {
        loop {
            if let Some(event) = self.read.take() {
                return Ok(Some(event));
            }
            let chunk = tokio::time::timeout(SILENCE, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| HttpError::Network("the stream is silent".to_owned()))?;
            match chunk.map_err(|e| HttpError::Network(said(&e)))? {
                Some(bytes) => self
                    .read
                    .push(&bytes)
                    .map_err(|e| HttpError::BadAnswer(e.to_owned()))?,
                None => return Ok(None),
            }
        }
    }
}
