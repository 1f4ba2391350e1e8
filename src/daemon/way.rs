//! The way to a hub: name, proxy or not, TCP, TLS. Everything that this machine says to a hub goes this way.
//!
//! ```text
//! direct:   resolve hub   ─▶ TCP, every address in turn ──────────────────────────────────▶ TLS with the hub
//! proxied:  resolve proxy ─▶ TCP, every address in turn ─▶ [TLS with the proxy] ─▶ CONNECT ─▶ TLS with the hub
//! ```
//!
//! Names are resolved at every attempt, the hub's own by the proxy if there is one. Whether there is one says
//! [`Proxies`], for the WebSocket and for HTTP alike; both trust the same certificates. Plain http leads nowhere but to this
//! machine, whatever a name resolves to. A proxy's refusal is told as the proxy's, with its name and status and
//! never with its password.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::head::{Head, read_head};
use super::tls::{self, TlsError};
use crate::config::{CaSources, DaemonConfig, HubUrl, Proxies, ProxyUrl};
use crate::core::client::DialFailure;

/// How long one address may take while others are left.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a proxy may take for TLS and CONNECT; less than a dial, so that the proxy is named as what was slow.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(8);

/// A connection, whatever it is made of.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Finds the addresses of a name.
pub type Resolve =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Opens connections to hubs. Cheap to clone.
#[derive(Clone)]
pub struct Way {
    tls: Arc<ClientConfig>,
    proxies: Arc<Proxies>,
    resolve: Resolve,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way")
            .field("proxies", &self.proxies)
            .finish_non_exhaustive()
    }
}

impl Way {
    /// The way that a configuration describes; blocks while certificates are read.
    ///
    /// # Errors
    /// When named certificates cannot be used, or there are none at all.
    pub fn new(config: &DaemonConfig) -> Result<Self, TlsError> {
        Self::with(&config.ca, config.proxies.clone())
    }

    /// The way with these trusted certificates and proxies; blocks while certificates are read.
    ///
    /// # Errors
    /// When named certificates cannot be used, or there are none at all.
    pub fn with(ca: &CaSources, proxies: Proxies) -> Result<Self, TlsError> {
        Ok(Self {
            tls: tls::client_config(ca)?,
            proxies: Arc::new(proxies),
            resolve: Arc::new(|host, port| {
                async move { Ok(lookup_host((host, port)).await?.collect()) }.boxed()
            }),
        })
    }

    /// The same way with another resolver.
    #[must_use]
    pub fn resolving(mut self, resolve: Resolve) -> Self {
        self.resolve = resolve;
        self
    }

    pub(crate) const fn tls(&self) -> &Arc<ClientConfig> {
        &self.tls
    }

    pub(crate) const fn proxies(&self) -> &Arc<Proxies> {
        &self.proxies
    }

    pub(crate) fn resolver(&self) -> Resolve {
        Arc::clone(&self.resolve)
    }

    /// A connection to the hub, ready for HTTP; the caller bounds the time by dropping the future.
    ///
    /// # Errors
    /// Why there is none, as the link's policy needs to know it.
    pub(crate) async fn open(&self, hub: &HubUrl) -> Result<Box<dyn Stream>, DialFailure> {
        let proxy = self
            .proxies
            .for_host(hub.host(), hub.port())
            .map_err(|e| network(e.to_string()))?;
        let stream: Box<dyn Stream> = match proxy {
            None => {
                let loopback_only = !hub.is_tls();
                let host = bare(hub.host());
                Box::new(self.tcp(host, hub.port(), loopback_only).await?)
            }
            Some(proxy) => self.tunnel(proxy, hub).await?,
        };
        if !hub.is_tls() {
            return Ok(stream);
        }
        self.shake(bare(hub.host()), stream)
            .await
            .map_err(|e| network(format!("TLS with {}: {e}", hub.authority())))
    }

    async fn shake(&self, host: &str, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::other(format!("`{host}` is no name for TLS: {e}")))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    /// A TCP connection to the first address that takes one.
    async fn tcp(
        &self,
        host: &str,
        port: u16,
        loopback_only: bool,
    ) -> Result<TcpStream, DialFailure> {
        let failed = |e: io::Error| network(format!("{host}:{port}: {e}"));
        let addresses = (self.resolve)(host.to_owned(), port)
            .await
            .map_err(failed)?;
        let mut addresses = addresses.into_iter().peekable();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        while let Some(address) = addresses.next() {
            if loopback_only && !address.ip().is_loopback() {
                last = io::Error::other("plain http leads away from this machine");
                continue;
            }
            let connect = TcpStream::connect(address);
            let result = if addresses.peek().is_some() {
                timeout(ADDRESS_TIMEOUT, connect)
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            } else {
                connect.await
            };
            match result {
                Ok(tcp) => {
                    tcp.set_nodelay(true).map_err(failed)?;
                    return Ok(tcp);
                }
                Err(e) => last = e,
            }
        }
        Err(failed(last))
    }

    async fn tunnel(&self, proxy: &ProxyUrl, hub: &HubUrl) -> Result<Box<dyn Stream>, DialFailure> {
        let failed = |detail: String| network(format!("the proxy {proxy}: {detail}"));
        let tcp = self.tcp(proxy.host(), proxy.port(), false).await;
        let tcp = tcp.map_err(|e| match e {
            DialFailure::Network { detail } => failed(detail),
            other => other,
        })?;
        let tunnel = async {
            let mut stream: Box<dyn Stream> = Box::new(tcp);
            if proxy.is_tls() {
                let shaken = self.shake(proxy.host(), stream).await;
                stream = shaken.map_err(|e| failed(format!("TLS: {e}")))?;
            }
            connect(stream, proxy, hub).await
        };
        timeout(TUNNEL_TIMEOUT, tunnel)
            .await
            .unwrap_or_else(|_| Err(failed("no answer to CONNECT in time".to_owned())))
    }
}

/// Asks the proxy for a tunnel to the hub.
async fn connect(
    mut stream: Box<dyn Stream>,
    proxy: &ProxyUrl,
    hub: &HubUrl,
) -> Result<Box<dyn Stream>, DialFailure> {
    let failed = |detail: &str| network(format!("the proxy {proxy}: {detail}"));
    let target = format!("{}:{}", hub.host(), hub.port());
    let authorization = proxy
        .authorization()
        .map(|a| format!("Proxy-Authorization: {a}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}User-Agent: remote-collab/{}\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
    );
    let lost = |e: io::Error| failed(&format!("it closed the connection: {e}"));
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let (head, rest) = loop {
        let (head, rest) = read_head(&mut stream, Vec::new())
            .await
            .map_err(|e| failed(&e.to_string()))?;
        // Interim answers come before the one that counts.
        if !(100..200).contains(&head.status) {
            break (head, rest);
        }
    };
    if !(200..300).contains(&head.status) {
        return Err(refusal(&head, proxy, &target));
    }
    if !rest.is_empty() {
        // In a tunnel the hub speaks second.
        return Err(failed("it opened a tunnel and spoke itself"));
    }
    Ok(stream)
}

fn refusal(head: &Head, proxy: &ProxyUrl, target: &str) -> DialFailure {
    let status = head.status;
    let why = match status {
        407 if proxy.authorization().is_some() => ": it does not accept the user and password",
        407 => ": it wants a user and password, as in http://USER:PASSWORD@HOST:PORT",
        403 | 405 => ": its rules do not allow this host or port",
        502..=504 => ": it cannot reach the hub",
        _ => "",
    };
    DialFailure::Proxy {
        status,
        retry_after_s: head.retry_after_s,
        detail: format!("the proxy {proxy} refused the way to {target} with HTTP {status}{why}"),
    }
}

fn network(detail: String) -> DialFailure {
    DialFailure::Network { detail }
}

fn bare(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}
