//! One call: resolve, check, connect to what was checked, and nothing else.
//!
//! The name is resolved once per call, every address is checked, and the connection goes to the first of those very
//! addresses: a name that is answered otherwise a moment later changes nothing. No redirect is followed, because the
//! place it names was not checked; no proxy of the environment is used, because it would do the connecting.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::{Client, Response, header};
use rustls::{ClientConfig, RootCertStore};
use url::Host;

use super::address;
use super::plan::Outcome;

/// Time for a whole call, resolving included.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of an answer's body that are taken before the connection is dropped, and the time for them.
const MAX_ANSWER: usize = 16 << 10;
const TAKE: Duration = Duration::from_secs(1);

/// How names become addresses.
#[derive(Clone)]
pub struct Resolver(Arc<Resolve>);

type Resolve =
    dyn Fn(String, u16) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> + Send + Sync;

impl Resolver {
    /// One that asks this function: name and port in, addresses out.
    pub fn of(
        f: impl Fn(String, u16) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(f))
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::of(|name, port| {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
        })
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// What is sent.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) url: String,
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) timestamp: i64,
    pub(crate) signature: String,
    pub(crate) body: String,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    resolver: Resolver,
    allow_private: bool,
    tls: Arc<ClientConfig>,
}

impl Caller {
    /// A caller that trusts the system's certificates (or those of `SSL_CERT_FILE`); blocks while they are read.
    pub(crate) fn new(resolver: Resolver, allow_private: bool) -> Self {
        crate::auth::crypto::install();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let tls = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            resolver,
            allow_private,
            tls: Arc::new(tls),
        }
    }

    pub(crate) async fn call(&self, call: &Call) -> Outcome {
        let mut response = match tokio::time::timeout(DEADLINE, self.send(call)).await {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => return failed(why),
            Err(_) => return failed("no answer within 10 s".to_owned()),
        };
        let outcome = judged(&response);
        // Taken so that the receiver can finish writing; neither what it says there nor how slowly matters any more.
        let take = async {
            let mut taken = 0;
            while let Ok(Some(chunk)) = response.chunk().await {
                taken += chunk.len();
                if taken > MAX_ANSWER {
                    break;
                }
            }
        };
        drop(tokio::time::timeout(TAKE, take).await);
        outcome
    }

    /// Makes the call, up to the head of the answer.
    async fn send(&self, call: &Call) -> Result<Response, String> {
        let url = address::url(&call.url, self.allow_private).map_err(|e| e.to_string())?;
        let port = url.port_or_known_default().unwrap_or(443);
        let mut client = Client::builder()
            .tls_backend_preconfigured(ClientConfig::clone(&self.tls))
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .pool_max_idle_per_host(0)
            .user_agent(concat!("remote-collab/", env!("CARGO_PKG_VERSION")));
        if let Some(Host::Domain(name)) = url.host() {
            let found = (self.resolver.0)(name.to_owned(), port).await;
            let found = found.map_err(|e| format!("`{name}` cannot be resolved: {e}"))?;
            let first = found
                .first()
                .ok_or_else(|| format!("`{name}` has no address"))?;
            for addr in &found {
                address::check(&url, addr.ip(), self.allow_private)
                    .map_err(|e| format!("`{name}` {e}"))?;
            }
            client = client.resolve_to_addrs(name, &[SocketAddr::new(first.ip(), port)]);
        }
        let client = client.build().map_err(said)?;
        let request = client
            .post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", &call.id)
            .header("webhook-timestamp", call.timestamp)
            .header("webhook-signature", &call.signature)
            .body(call.body.clone());
        request.send().await.map_err(said)
    }
}

/// What an answer's head says.
fn judged(response: &Response) -> Outcome {
    let status = response.status();
    let retry_after_s = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|v| v.to_str().ok()?.trim().parse().ok());
    match status.as_u16() {
        200..=299 => Outcome::Delivered,
        410 => Outcome::Gone,
        300..=399 => failed(format!("answered {status}; redirects are not followed")),
        _ => Outcome::Failed {
            why: format!("answered {status}"),
            retry_after_s,
        },
    }
}

fn failed(why: String) -> Outcome {
    Outcome::Failed {
        why,
        retry_after_s: None,
    }
}

/// What went wrong, without the URL, in which there may be secrets.
fn said(e: reqwest::Error) -> String {
    let e = e.without_url();
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(&e);
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    text.chars().take(300).collect()
}
