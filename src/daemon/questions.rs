//! What the watchdog asks the daemon's listeners: the way of any caller, through the whole accept loop.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// Whether the socket's listener answers; never ends while it does not take the connection.
pub(super) async fn socket_answers(path: PathBuf) -> bool {
    match UnixStream::connect(path).await {
        Ok(stream) => answers(stream, "localhost").await,
        Err(_) => false,
    }
}

/// Whether the loopback listener answers; never ends while it does not take the connection.
pub(super) async fn loopback_answers(address: SocketAddr) -> bool {
    match TcpStream::connect(address).await {
        Ok(stream) => answers(stream, &address.to_string()).await,
        Err(_) => false,
    }
}

async fn answers(mut stream: impl AsyncRead + AsyncWrite + Unpin, host: &str) -> bool {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut first = [0; 16];
    matches!(stream.read(&mut first).await, Ok(1..))
}
