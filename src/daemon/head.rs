//! The head of an HTTP answer, read off a connection that becomes something else after it.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Largest head, bytes.
const MAX_HEAD: usize = 16 << 10;

/// What matters of an answer's head.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) content_length: Option<usize>,
    pub(super) retry_after_s: Option<u64>,
    pub(super) accept: Option<String>,
    pub(super) protocol: Option<String>,
}

/// Why there is no head.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error("it closed the connection: {0}")]
    Lost(#[from] io::Error),
    #[error("it does not speak HTTP: {0}")]
    NotHttp(#[from] httparse::Error),
    #[error("it sent too large a header")]
    TooLarge,
}

/// Reads a head; `bytes` are those read before. Gives what came after it, too.
pub(super) async fn read_head(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    mut bytes: Vec<u8>,
) -> Result<(Head, Vec<u8>), HeadError> {
    loop {
        if let Some((head, length)) = Head::parse(&bytes)? {
            let rest = bytes.split_off(length.min(bytes.len()));
            return Ok((head, rest));
        }
        if bytes.len() >= MAX_HEAD {
            return Err(HeadError::TooLarge);
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(HeadError::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

impl Head {
    /// The head at the beginning of `bytes` and its length; `None` while it is not complete.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, httparse::Error> {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(length) = response.parse(bytes)? else {
            return Ok(None);
        };
        let mut head = Self {
            status: response.code.unwrap_or(0),
            ..Self::default()
        };
        for field in response.headers.iter() {
            let value = String::from_utf8_lossy(field.value).trim().to_owned();
            match field.name.to_ascii_lowercase().as_str() {
                "content-type" => head.content_type = value,
                "content-length" => head.content_length = value.parse().ok(),
                "retry-after" => head.retry_after_s = value.parse().ok(),
                "sec-websocket-accept" => head.accept = Some(value),
                "sec-websocket-protocol" => head.protocol = Some(value),
                _ => {}
            }
        }
        Ok(Some((head, length)))
    }
}
