//! `GET /connect`: a WebSocket that carries a device's link; [`super::link`] drives it.
//!
//! A connection is refused before the upgrade by an HTTP answer (`problem+json`, with the hub's time on clock skew),
//! after it by an `error` frame and a close code. Every write has a deadline.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use futures::SinkExt;
use tokio::time::timeout;

use super::guard::bearer;
use super::link::{Came, Carrier, Gone, Shell};
use super::problem::{ApiError, ApiResult};
use super::state::Hub;
use crate::core::server::Row;
use crate::domain::{Code, limits};
use crate::wire::{CloseCode, HubFrame, SUBPROTOCOL, encode, encode_deliver};

/// The library's read buffer: its default costs 131 KiB per idle connection.
const READ_BUFFER: usize = 4 << 10;
/// What the library takes of a message; above the machine's limit, so that the machine refuses with its own words.
const MAX_MESSAGE: usize = limits::MAX_FRAME_BYTES + (64 << 10);
/// Time for a write.
const WRITE: Duration = Duration::from_secs(10);
/// Time for the peer's close frame.
const CLOSE: Duration = Duration::from_secs(2);

/// The upgrade: version, credential, then the socket's own task.
pub(crate) async fn connect(State(hub): State<Arc<Hub>>, request: Request) -> ApiResult<Response> {
    if hub.draining.is_cancelled() {
        return Err(ApiError::new(Code::GoingAway, "the hub is stopping").retry_after(2));
    }
    let (mut parts, _) = request.into_parts();
    let token = bearer(&parts)?.to_owned();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|e| {
            ApiError::new(Code::ProtocolError, format!("no WebSocket upgrade: {e}"))
                .hint("only a daemon connects here")
        })?
        .protocols([SUBPROTOCOL]);
    if upgrade.selected_protocol().is_none() {
        return Err(ApiError::new(
            Code::VersionUnsupported,
            format!("this hub speaks `{SUBPROTOCOL}` only"),
        )
        .hint("bring the daemon and the hub to versions that share a sub-protocol"));
    }
    let device = hub.verify_device(&token)?;
    let sockets = hub.sockets.clone();
    Ok(upgrade
        .read_buffer_size(READ_BUFFER)
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_upgrade(move |ws| {
            // The HTTP server forgets upgraded connections: the hub tracks them itself.
            sockets.track_future(Shell::new(hub, device, Socket(ws)).run())
        }))
}

/// The socket of one connection.
struct Socket(WebSocket);

impl Socket {
    async fn write(&mut self, message: Message) -> Result<(), Gone> {
        within(self.0.feed(message)).await
    }
}

impl Carrier for Socket {
    async fn send(&mut self, frame: HubFrame) -> Result<(), Gone> {
        self.write(Message::Text(encode(&frame).into())).await
    }

    async fn deliver(&mut self, row: Row) -> Result<(), Gone> {
        let text = encode_deliver(row.seq, &row.json);
        self.write(Message::Text(text.into())).await
    }

    async fn ping(&mut self) -> Result<(), Gone> {
        self.write(Message::Ping(axum::body::Bytes::new())).await
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        within(self.0.flush()).await
    }

    /// Sends the close frame and waits a little for the peer's, so that it is read and not reset.
    async fn close(&mut self, code: CloseCode, reason: String) {
        let frame = CloseFrame {
            code: code.as_u16(),
            reason: reason.into(),
        };
        if within(self.0.send(Message::Close(Some(frame))))
            .await
            .is_ok()
        {
            let peer = async {
                while let Some(Ok(message)) = self.0.recv().await {
                    if matches!(message, Message::Close(_)) {
                        break;
                    }
                }
            };
            // A silent peer is let go.
            drop(timeout(CLOSE, peer).await);
        }
    }

    async fn next(&mut self) -> Came {
        match self.0.recv().await {
            Some(Ok(Message::Text(text))) => Came::Frame(text.as_str().to_owned()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Came::Heard,
            Some(Ok(Message::Binary(_))) => Came::Unreadable("no frame is binary".to_owned()),
            Some(Ok(Message::Close(_))) | None => Came::Over,
            // Told to the peer if it is still there; a transport that broke does not take the words.
            Some(Err(e)) => Came::Unreadable(e.to_string()),
        }
    }
}

async fn within<E>(write: impl Future<Output = Result<(), E>>) -> Result<(), Gone> {
    match timeout(WRITE, write).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Gone),
    }
}
