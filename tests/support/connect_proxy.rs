//! A proxy for tunnels that does what a test tells it; names are its own to resolve.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::{SOON, watch};

/// What becomes of a CONNECT.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// A tunnel to this address, whatever was asked for.
    Tunnel(SocketAddr),
    /// These bytes; then the connection stays open, if so told.
    Bytes(&'static [u8], bool),
    /// Nothing, for ever.
    Silence,
    /// Nothing and a close.
    Close,
}

pub(crate) struct ConnectProxy {
    pub(crate) address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    heads: Arc<Mutex<Vec<String>>>,
    running: tokio::task::JoinHandle<()>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl ConnectProxy {
    pub(crate) async fn start(answer: Answer) -> Self {
        Self::serve(answer, None).await
    }

    /// One that speaks TLS itself.
    pub(crate) async fn start_tls(answer: Answer, tls: Arc<ServerConfig>) -> Self {
        Self::serve(answer, Some(TlsAcceptor::from(tls))).await
    }

    async fn serve(answer: Answer, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(answer));
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (answers, seen) = (Arc::clone(&answer), Arc::clone(&heads));
        let running = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (answers, seen, tls) = (Arc::clone(&answers), Arc::clone(&seen), tls.clone());
                open.spawn(async move {
                    let mut stream: Box<dyn Stream> = Box::new(tcp);
                    if let Some(tls) = tls {
                        let Ok(shaken) = tls.accept(stream).await else {
                            return;
                        };
                        stream = Box::new(shaken);
                    }
                    one(stream, &answers, &seen).await;
                });
            }
        });
        Self {
            address,
            answer,
            heads,
            running,
        }
    }

    /// Answers so from now on.
    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn one(mut stream: Box<dyn Stream>, answers: &Mutex<Answer>, seen: &Mutex<Vec<String>>) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut bytes).await, Ok(1..)) {
            return;
        }
    }
    seen.lock().unwrap().push(String::from_utf8(bytes).unwrap());
    let answer = answers.lock().unwrap().clone();
    match answer {
        Answer::Tunnel(to) => {
            let mut hub = TcpStream::connect(to).await.unwrap();
            let ok = b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n";
            if stream.write_all(ok).await.is_ok() {
                // Either end may break off.
                drop(copy_bidirectional(&mut stream, &mut hub).await);
            }
        }
        Answer::Bytes(bytes, stay) => {
            drop(stream.write_all(bytes).await);
            drop(stream.flush().await);
            if stay {
                std::future::pending::<()>().await;
            }
            drop(stream.shutdown().await);
        }
        Answer::Silence => std::future::pending().await,
        Answer::Close => {}
    }
}

/// Tinyproxy, the real one; ended when this is dropped.
pub(crate) struct Tinyproxy {
    pub(crate) port: u16,
    child: tokio::process::Child,
}

impl Tinyproxy {
    /// Starts it with more lines of its configuration, such as `BasicAuth user password`.
    pub(crate) async fn start(dir: &Path, lines: &str) -> Self {
        for _ in 0..10 {
            // It takes no port 0: a port is found free, and another one if it was taken meanwhile.
            let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let (config, log) = (dir.join("tinyproxy.conf"), dir.join("tinyproxy.log"));
            // What an earlier try wrote says nothing about this one.
            drop(std::fs::remove_file(&log));
            let text = format!(
                "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 50\nLogLevel Info\nLogFile \"{}\"\n{lines}\n",
                log.display()
            );
            std::fs::write(&config, text).unwrap();
            let child = tokio::process::Command::new("tinyproxy")
                .arg("-d")
                .arg("-c")
                .arg(&config)
                .stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .expect("tinyproxy, which tests/run installs");
            let mut proxy = Self { port, child };
            if proxy.listens(dir, &log).await {
                return proxy;
            }
        }
        panic!("tinyproxy does not start");
    }

    /// Waits until it takes connections, as its log says; whether it does.
    async fn listens(&mut self, dir: &Path, log: &Path) -> bool {
        let log = log.to_owned();
        let ready = watch::until(dir, SOON, move || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.contains("Accepting connections").then_some(())
        });
        tokio::select! {
            _ = self.child.wait() => false,
            () = ready => true,
        }
    }
}
