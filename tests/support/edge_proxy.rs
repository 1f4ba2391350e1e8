//! An HTTP edge between a daemon and its hub: it answers the WebSocket's upgrade itself when it is told to, and loses
//! acks on either transport.
//!
//! One request per connection: the head is read, `Connection: close` is put in, and everything else passes untouched.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the edge answers an upgrade with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrades {
    /// The hub's answer.
    Through,
    /// This status, and a page of HTML.
    Answered(u16),
}

/// What becomes of acks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acks {
    /// They pass.
    Pass,
    /// They never reach the hub: what the device sends after its hello, or its calls.
    Lost,
    /// They reach it, and the answers of its calls are lost.
    Unanswered,
}

#[derive(Debug)]
struct Shared {
    target: String,
    upgrades: Mutex<Upgrades>,
    acks: Mutex<Acks>,
    /// Grows with every cut.
    cut: watch::Sender<u64>,
    answered: AtomicUsize,
    lost: AtomicUsize,
    muted: AtomicBool,
}

pub(crate) struct EdgeProxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for EdgeProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl EdgeProxy {
    pub(crate) async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            upgrades: Mutex::new(Upgrades::Through),
            acks: Mutex::new(Acks::Pass),
            cut: watch::Sender::new(0),
            answered: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            muted: AtomicBool::new(false),
        });
        let of = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                while connections.try_join_next().is_some() {}
                let shared = Arc::clone(&of);
                connections.spawn(async move {
                    // Either side may go away at any time: that is what this is for.
                    shared.carry(tcp).await.ok();
                });
            }
        });
        Self {
            address,
            shared,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn upgrades(&self, what: Upgrades) {
        *self.shared.upgrades.lock().unwrap() = what;
    }

    pub(crate) fn acks(&self, what: Acks) {
        *self.shared.acks.lock().unwrap() = what;
        self.shared
            .muted
            .store(what == Acks::Lost, Ordering::SeqCst);
    }

    /// Ends every connection that is open.
    pub(crate) fn cut(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// Upgrades that the edge answered itself.
    pub(crate) fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::SeqCst)
    }

    /// Acks that were lost.
    pub(crate) fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Shared {
    async fn carry(&self, mut device: TcpStream) -> std::io::Result<()> {
        let mut cut = self.cut.subscribe();
        cut.mark_unchanged();
        let carried = async {
            device.set_nodelay(true)?;
            let (head, body) = read_request(&mut device).await?;
            if head.starts_with("GET /connect ") {
                let answer = *self.upgrades.lock().unwrap();
                return match answer {
                    Upgrades::Through => self.socket(&mut device, head).await,
                    Upgrades::Answered(status) => {
                        self.answered.fetch_add(1, Ordering::SeqCst);
                        let page = "<html>no WebSockets here</html>";
                        let text = format!(
                            "HTTP/1.1 {status} Edge\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                            page.len()
                        );
                        device.write_all(text.as_bytes()).await?;
                        device.shutdown().await
                    }
                };
            }
            let acks = if head.starts_with("POST /poll/ack ") {
                *self.acks.lock().unwrap()
            } else {
                Acks::Pass
            };
            if acks == Acks::Lost {
                self.lost.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            let mut hub = TcpStream::connect(&self.target).await?;
            hub.set_nodelay(true)?;
            let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
            hub.write_all(head.as_bytes()).await?;
            hub.write_all(&body).await?;
            if acks == Acks::Unanswered {
                let mut answer = Vec::new();
                hub.read_to_end(&mut answer).await?;
                self.lost.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            copy_bidirectional(&mut device, &mut hub).await.map(drop)
        };
        tokio::select! {
            carried = carried => carried,
            _ = cut.changed() => Ok(()),
        }
    }

    /// A WebSocket: bytes both ways, unless the device's are lost.
    async fn socket(&self, device: &mut TcpStream, head: String) -> std::io::Result<()> {
        let mut hub = TcpStream::connect(&self.target).await?;
        hub.set_nodelay(true)?;
        hub.write_all(head.as_bytes()).await?;
        let (mut from_device, mut to_device) = device.split();
        let (mut from_hub, mut to_hub) = hub.split();
        let down = tokio::io::copy(&mut from_hub, &mut to_device);
        let up = async {
            let mut bytes = vec![0; 16 << 10];
            loop {
                let n = from_device.read(&mut bytes).await?;
                if n == 0 {
                    return Ok::<(), std::io::Error>(());
                }
                if self.muted.load(Ordering::SeqCst) {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                } else {
                    to_hub.write_all(&bytes[..n]).await?;
                }
            }
        };
        tokio::select! {
            ended = down => ended.map(drop),
            ended = up => ended,
        }
    }
}

/// The head as text, and the body by its `Content-Length`.
async fn read_request(from: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if from.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8(bytes).map_err(std::io::Error::other)?;
    let length = head
        .lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, n)| n.trim().parse().unwrap());
    while body.len() < length {
        if from.read_buf(&mut body).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((head, body))
}
