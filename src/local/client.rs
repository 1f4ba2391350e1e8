//! A blocking HTTP/1.1 client for one exchange with the daemon, with one deadline over all of it.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dial::{Stream, dial, wait_readable};
use crate::domain::{Code, Problem};

/// Header lines an answer may have.
const MAX_HEADERS: usize = 32;
/// Bytes of an answer's head.
const MAX_HEAD: usize = 16 << 10;

/// Why an exchange with the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("the daemon is not running ({socket}: {source})")]
    NotRunning {
        /// Where it was looked for.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket belongs to somebody else.
    #[error("the socket {socket} belongs to another user; refusing to talk to it")]
    WrongOwner {
        /// The socket.
        socket: PathBuf,
    },
    /// No answer in time.
    #[error("the daemon did not answer in time; `remote-collab status` and its log say more")]
    Timeout,
    /// The connection broke.
    #[error("the connection to the daemon broke: {0}")]
    Io(io::Error),
    /// The answer is not HTTP, or not JSON where JSON was promised.
    #[error("the daemon's answer cannot be read: {0}")]
    BadAnswer(String),
    /// The answer is larger than the caller allows.
    #[error("the daemon's answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// The daemon refused, and says why.
    #[error("{0}")]
    Refused(Box<Problem>),
}

impl ClientError {
    /// The stable code of this failure.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotRunning { .. } | Self::Timeout => Code::NotRunning,
            Self::WrongOwner { .. } => Code::OriginRefused,
            Self::Io(_) | Self::BadAnswer(_) => Code::ProtocolError,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::Refused(problem) => problem.known_code().unwrap_or(Code::Internal),
        }
    }

    fn io(e: io::Error) -> Self {
        match e.kind() {
            // A socket's timeout shows as `WouldBlock` on Unix and as `TimedOut` elsewhere.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Io(e),
        }
    }
}

/// An answer of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The body, decoded.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as JSON of a successful answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a status of 400 and above, [`ClientError::BadAnswer`] for another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        if self.status >= 400 {
            return Err(self.problem());
        }
        serde_json::from_slice(&self.body).map_err(|e| ClientError::BadAnswer(e.to_string()))
    }

    fn problem(&self) -> ClientError {
        ClientError::Refused(Box::new(serde_json::from_slice(&self.body).unwrap_or_else(
            |_| {
                let mut problem =
                    Problem::new(Code::Internal, format!("HTTP status {}", self.status));
                problem.status = self.status;
                problem
            },
        )))
    }
}

/// A client of one daemon; each call is its own connection.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    max_body: usize,
}

impl Client {
    /// A client of the daemon behind this socket, with answers of at most 4 MiB.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            max_body: 4 << 20,
        }
    }

    /// The client with another limit for an answer's body, bytes.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// The socket this client talks to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET path`, as JSON, within `timeout`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<T, ClientError> {
        self.exchange("GET", path, b"", timeout)?.json()
    }

    /// `POST path` with a JSON body, answered with JSON, within `timeout`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        timeout: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| ClientError::BadAnswer(e.to_string()))?;
        self.exchange("POST", path, &body, timeout)?.json()
    }

    /// One request and its answer, whatever its status, within `timeout` in total. `path` is sent as it is: it must be percent-encoded.
    ///
    /// # Errors
    /// See [`ClientError`]; never [`ClientError::Refused`].
    pub fn exchange(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Response, ClientError> {
        let deadline = Instant::now() + timeout;
        let mut stream = dial(&self.socket, deadline).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::WrongOwner {
                socket: self.socket.clone(),
            },
            io::ErrorKind::TimedOut => ClientError::Timeout,
            _ => ClientError::NotRunning {
                socket: self.socket.clone(),
                source,
            },
        })?;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        write_all(&mut stream, &request, deadline)?;
        read_response(&mut stream, self.max_body, deadline)
    }
}

/// The time left, as a socket timeout (which must not be zero).
fn left(deadline: Instant) -> Result<Duration, ClientError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ClientError::Timeout)
    } else {
        Ok(left)
    }
}

fn write_all(stream: &mut Stream, mut bytes: &[u8], deadline: Instant) -> Result<(), ClientError> {
    while !bytes.is_empty() {
        stream
            .set_write_timeout(Some(left(deadline)?))
            .map_err(ClientError::io)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ClientError::Io(io::ErrorKind::WriteZero.into())),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(ClientError::io(e)),
        }
    }
    Ok(())
}

/// Reads some bytes; 0 at the end.
fn read_some(
    stream: &mut Stream,
    into: &mut Vec<u8>,
    deadline: Instant,
) -> Result<usize, ClientError> {
    let mut chunk = [0_u8; 8 << 10];
    loop {
        let waited = wait_readable(stream, left(deadline)?).and_then(|()| stream.read(&mut chunk));
        match waited {
            Ok(n) => {
                into.extend_from_slice(chunk.get(..n).unwrap_or_default());
                return Ok(n);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(ClientError::io(e)),
        }
    }
}

/// How the body of an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// The status, how the body ends, and where it begins; `None` while the head is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(u16, Framing, usize)>, ClientError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let at = match head.parse(bytes) {
        Ok(httparse::Status::Complete(at)) => at,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(ClientError::BadAnswer(e.to_string())),
    };
    let status = head.code.unwrap_or_default();
    let mut framing = Framing::UntilClose;
    for header in head.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(header.value)
                .ok()
                .and_then(|v| v.trim().parse().ok())
                .ok_or_else(|| ClientError::BadAnswer("bad content-length".to_owned()))?;
            framing = Framing::Length(length);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
            break;
        }
    }
    if matches!(status, 204 | 304) {
        framing = Framing::Length(0);
    }
    Ok(Some((status, framing, at)))
}

fn read_response(
    stream: &mut Stream,
    limit: usize,
    deadline: Instant,
) -> Result<Response, ClientError> {
    let cut_off = || ClientError::Io(io::ErrorKind::UnexpectedEof.into());
    let mut bytes = Vec::with_capacity(1 << 10);
    let (status, framing, at) = loop {
        if let Some(head) = parse_head(&bytes)? {
            break head;
        }
        if bytes.len() > MAX_HEAD {
            return Err(ClientError::TooLarge { limit: MAX_HEAD });
        }
        if read_some(stream, &mut bytes, deadline)? == 0 {
            return Err(cut_off());
        }
    };
    bytes.drain(..at);
    let body = match framing {
        Framing::Length(length) => {
            if length > limit {
                return Err(ClientError::TooLarge { limit });
            }
            while bytes.len() < length {
                if read_some(stream, &mut bytes, deadline)? == 0 {
                    return Err(cut_off());
                }
            }
            bytes.truncate(length);
            bytes
        }
        Framing::UntilClose => loop {
            if bytes.len() > limit {
                return Err(ClientError::TooLarge { limit });
            }
            if read_some(stream, &mut bytes, deadline)? == 0 {
                break bytes;
            }
        },
        Framing::Chunked => {
            let mut decoder = Chunks::default();
            loop {
                if decoder.take(&mut bytes, limit)? {
                    break decoder.body;
                }
                if read_some(stream, &mut bytes, deadline)? == 0 {
                    return Err(cut_off());
                }
            }
        }
    };
    Ok(Response { status, body })
}

/// Joins the chunks of a chunked body.
#[derive(Debug, Default)]
struct Chunks {
    body: Vec<u8>,
}

impl Chunks {
    /// Moves whole chunks out of `bytes`; true once the last one came.
    fn take(&mut self, bytes: &mut Vec<u8>, limit: usize) -> Result<bool, ClientError> {
        let bad = || ClientError::BadAnswer("bad chunk".to_owned());
        let mut at = 0;
        let done = loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match httparse::parse_chunk_size(rest) {
                Ok(httparse::Status::Partial) => break false,
                Err(_) => return Err(bad()),
                Ok(httparse::Status::Complete((_, 0))) => break true,
                Ok(httparse::Status::Complete((start, size))) => {
                    let size = usize::try_from(size).map_err(|_| bad())?;
                    if size > limit.saturating_sub(self.body.len()) {
                        return Err(ClientError::TooLarge { limit });
                    }
                    if rest.len() < start + size + 2 {
                        break false;
                    }
                    self.body.extend_from_slice(&rest[start..start + size]);
                    at += start + size + 2;
                }
            }
        };
        bytes.drain(..at);
        Ok(done)
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
