//! Opens the transport: the [`Way`] to the hub, then the upgrade; the one file of the daemon that names the WebSocket library.
//!
//! The upgrade is written and read here, because what matters is the answer that is not 101: a `problem+json` with one
//! of our codes is the hub speaking and may be final, anything else is some edge in between and is worth another try.

use std::io;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode as WsCloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::auth::Token;
use crate::config::HubUrl;
use crate::core::client::DialFailure;
use crate::domain::{Code, Problem, limits};
use crate::wire::{CloseCode, SUBPROTOCOL};

use super::clock;
use super::head::{Head, read_head};
use super::way::{Stream, Way};

/// How long a frame may take to leave.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a close may take, both ways.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest problem that is read, bytes.
const MAX_PROBLEM: usize = 64 << 10;

type Socket = WebSocketStream<Box<dyn Stream>>;

/// Opens transports to a hub.
#[derive(Debug, Clone)]
pub struct Dialer {
    way: Way,
}

/// What came off a transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A text frame.
    Text(String),
    /// A ping, or a pong that is none of ours.
    Heard,
    /// The pong of the ping with this number.
    Pong(u64),
    /// Something is wrong with the way there though it carries, or not any more.
    Trouble(Option<String>),
    /// The end; nothing follows.
    Closed {
        /// The peer's close code, if one came.
        code: Option<u16>,
        /// The peer's words or the transport's error.
        detail: String,
    },
}

/// The reading half of a transport; reading may be cancelled at any await.
pub struct Reader(SplitStream<Socket>);

/// The writing half of a transport; a write that was begun must be finished.
pub struct Writer(SplitSink<Socket, Message>);

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Dialer {
    /// A dialer that goes this way.
    #[must_use]
    pub const fn new(way: Way) -> Self {
        Self { way }
    }

    /// Opens a transport; the caller bounds the time by dropping the future.
    ///
    /// # Errors
    /// Why there is none, as the link's policy needs to know it.
    pub async fn dial(&self, hub: &HubUrl, token: &Token) -> Result<(Reader, Writer), DialFailure> {
        let stream = self.way.open(hub).await?;
        let socket = upgrade(stream, hub, token).await?;
        let (sink, stream) = socket.split();
        Ok((Reader(stream), Writer(sink)))
    }
}

async fn upgrade(
    mut stream: Box<dyn Stream>,
    hub: &HubUrl,
    token: &Token,
) -> Result<Socket, DialFailure> {
    let lost = |e: io::Error| DialFailure::Network {
        detail: format!("{} closed the connection: {e}", hub.authority()),
    };
    let key = generate_key();
    let request = format!(
        "GET {}/connect HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\
         Authorization: Bearer {}\r\nUser-Agent: remote-collab/{}\r\nAccept: application/problem+json\r\n\r\n",
        hub.base_path(),
        hub.authority(),
        token.expose(),
        env!("CARGO_PKG_VERSION"),
    );
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;

    let (head, rest) = read_head(&mut stream, Vec::with_capacity(1024))
        .await
        .map_err(|e| DialFailure::Network {
            detail: format!("{}: {e}", hub.authority()),
        })?;
    if head.status != 101 {
        return Err(refusal(stream, &head, rest).await);
    }
    if head.accept.as_deref() != Some(&derive_accept_key(key.as_bytes())) {
        return Err(DialFailure::Network {
            detail: format!("{} answered another upgrade", hub.authority()),
        });
    }
    if head.protocol.as_deref() != Some(SUBPROTOCOL) {
        return Err(DialFailure::Refused {
            code: Code::VersionUnsupported.as_str().to_owned(),
            message: format!("the hub does not speak {SUBPROTOCOL}"),
            hub_offset_ms: None,
            retry_after_s: None,
        });
    }
    // The machine refuses what is over the limit by its own close code; the library only stops the absurd.
    let config = WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .max_frame_size(Some(2 * limits::MAX_FRAME_BYTES))
        .max_message_size(Some(2 * limits::MAX_FRAME_BYTES));
    Ok(WebSocketStream::from_partially_read(stream, rest, Role::Client, Some(config)).await)
}

/// Whether the hub itself refused, or an edge in between.
async fn refusal(mut stream: Box<dyn Stream>, head: &Head, mut body: Vec<u8>) -> DialFailure {
    let edge = DialFailure::Edge {
        status: head.status,
        retry_after_s: head.retry_after_s,
    };
    if !head.content_type.starts_with("application/problem+json") {
        return edge;
    }
    let want = head.content_length.unwrap_or(MAX_PROBLEM).min(MAX_PROBLEM);
    while body.len() < want {
        // A body that is cut short is read as far as it came.
        match timeout(CLOSE_TIMEOUT, stream.read_buf(&mut body)).await {
            Ok(Ok(1..)) => {}
            _ => break,
        }
    }
    body.truncate(want);
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) if problem.known_code().is_some() => DialFailure::Refused {
            hub_offset_ms: problem.now.map(|now| now.saturating_sub(clock::wall().0)),
            retry_after_s: problem.retry_after_s.or(head.retry_after_s),
            message: problem.title,
            code: problem.code,
        },
        _ => edge,
    }
}

impl Reader {
    /// The next event; after [`Event::Closed`] nothing follows.
    pub async fn next(&mut self) -> Event {
        loop {
            return match self.0.next().await {
                Some(Ok(Message::Text(text))) => Event::Text(text.as_str().to_owned()),
                Some(Ok(Message::Ping(_))) => Event::Heard,
                Some(Ok(Message::Pong(body))) => <[u8; 8]>::try_from(body.as_ref())
                    .map_or(Event::Heard, |number| {
                        Event::Pong(u64::from_be_bytes(number))
                    }),
                Some(Ok(Message::Binary(_))) => Event::Text("a binary frame".to_owned()),
                Some(Ok(Message::Close(frame))) => match frame {
                    Some(f) => Event::Closed {
                        code: Some(f.code.into()),
                        detail: f.reason.as_str().to_owned(),
                    },
                    None => closed("closed without a code"),
                },
                Some(Ok(Message::Frame(_))) => continue,
                Some(Err(WsError::ConnectionClosed | WsError::AlreadyClosed)) | None => {
                    closed("the connection ended")
                }
                Some(Err(e)) => closed(&e.to_string()),
            };
        }
    }

    /// Reads on until the peer closed, so that what was written before is not lost to a reset; bounded.
    pub async fn drain(mut self) {
        let end = async { while !matches!(self.next().await, Event::Closed { .. }) {} };
        // Whoever does not close in time is left.
        drop(timeout(CLOSE_TIMEOUT, end).await);
    }
}

fn closed(detail: &str) -> Event {
    Event::Closed {
        code: None,
        detail: detail.to_owned(),
    }
}

impl Writer {
    /// Sends a text frame.
    ///
    /// # Errors
    /// When it did not leave in time; the transport is of no use then.
    pub async fn text(&mut self, text: String) -> io::Result<()> {
        self.send(Message::text(text), WRITE_TIMEOUT).await
    }

    /// Sends a ping that carries this number.
    ///
    /// # Errors
    /// When it did not leave in time; the transport is of no use then.
    pub async fn ping(&mut self, number: u64) -> io::Result<()> {
        let body = number.to_be_bytes().to_vec();
        self.send(Message::Ping(body.into()), WRITE_TIMEOUT).await
    }

    /// Sends a close frame.
    ///
    /// # Errors
    /// When it did not leave in time.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        let frame = CloseFrame {
            code: WsCloseCode::from(code.as_u16()),
            reason: reason.to_owned().into(),
        };
        self.send(Message::Close(Some(frame)), CLOSE_TIMEOUT).await
    }

    async fn send(&mut self, message: Message, within: Duration) -> io::Result<()> {
        match timeout(within, self.0.send(message)).await {
            Ok(sent) => sent.map_err(io::Error::other),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
