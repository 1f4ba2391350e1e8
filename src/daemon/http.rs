//! The hub's HTTP API as the daemon calls it; the one file that names the HTTP client.
//!
//! Every call carries a fresh connect JWT, has one deadline and a limit for the answer, and follows no redirect: a
//! redirect could carry the credential elsewhere. The way to the hub is the link's: the same [`Way`] tells this client addresses, proxy and
//! trusted certificates. A hub that says our clock is off is asked once more with its time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use url::Url;

use crate::auth::{PublicKey, Token};
use crate::config::HubUrl;
use crate::core::client::DialFailure;
use crate::domain::{AccountId, Code, DeviceId, Problem, ProjectName, SessionId};

mod producer;

pub use producer::{Events, ProducerHttp, Verb};

use super::clock;
use super::credentials::{Credentials, CredentialsError, Enrolment};
use super::store::Upload;
use super::way::{Resolve, Way};

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a piece of an upload may take.
const PIECE_DEADLINE: Duration = Duration::from_secs(60);
/// Largest answer, bytes.
const MAX_ANSWER: usize = 4 << 20;

/// Why a call to the hub failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// This device has no hub yet.
    #[error("this device is not enrolled at a hub; see `remote-collab login --help`")]
    NotEnrolled,
    /// The device's files.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// No answer.
    #[error("the hub cannot be reached: {0}")]
    Network(String),
    /// The hub refused, and says why.
    #[error("the hub refused: {0}")]
    Refused(Box<Problem>),
    /// Something between here and the hub answered.
    #[error("HTTP {0} from something between here and the hub")]
    Edge(u16),
    /// The answer is too large or of another shape.
    #[error("the hub's answer cannot be used: {0}")]
    BadAnswer(String),
}

impl HttpError {
    /// The stable code of this failure.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotEnrolled => Code::TokenMissing,
            Self::Credentials(_) => Code::TokenInvalid,
            Self::Network(_) | Self::Edge(_) => Code::NotConnected,
            Self::Refused(problem) => problem.known_code().unwrap_or(Code::Internal),
            Self::BadAnswer(_) => Code::Internal,
        }
    }
}

/// A resource, or why there is nothing to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// The resource with its tag.
    Found {
        /// The tag for the next call.
        etag: Option<String>,
        /// The JSON.
        body: Value,
    },
    /// It is what the given tag says.
    NotModified,
    /// The hub has none.
    Missing,
}

/// Where an upload stands at the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Received {
    /// Bytes that are durable there.
    pub received: u64,
    /// Whether that is all of it.
    pub complete: bool,
}

/// What a call carries.
#[derive(Debug, Clone, Copy)]
enum Body<'a> {
    None,
    Json(&'a Value),
    Text(&'a str),
}

/// The hub's HTTP API for this device.
#[derive(Debug, Clone)]
pub struct HubHttp {
    client: Client,
    way: Way,
    credentials: PathBuf,
    hub: Option<HubUrl>,
}

#[derive(Deserialize)]
struct Enrolled {
    device_id: DeviceId,
    hub_id: String,
    account: AccountId,
}

impl HubHttp {
    /// The API this way; credentials are read from their folder at every call, and `hub` wins over the
    /// hub of `login`.
    ///
    /// # Errors
    /// When the client cannot be set up.
    pub fn new(way: &Way, credentials: PathBuf, hub: Option<HubUrl>) -> Result<Self, HttpError> {
        Ok(Self {
            client: client(way)?,
            way: way.clone(),
            credentials,
            hub,
        })
    }

    /// Enrols a public key under `name` with a join token; gives what is to be kept.
    ///
    /// # Errors
    /// Why the hub did not.
    pub async fn enrol(
        &self,
        hub: &HubUrl,
        join: &Token,
        key: &PublicKey,
        name: &str,
    ) -> Result<Enrolment, HttpError> {
        let body = json!({
            "public_key": key.to_string(),
            "name": name,
            "os": std::env::consts::OS,
            "build": env!("CARGO_PKG_VERSION"),
        });
        let url = hub.api(&["enroll"]);
        let response = self
            .send(Method::POST, url, join, None, Body::Json(&body))
            .await?;
        let answer = read(accepted(response).await?).await?;
        let enrolled = Enrolled::deserialize(answer)
            .map_err(|e| HttpError::BadAnswer(format!("enrolment: {e}")))?;
        Ok(Enrolment {
            hub: hub.clone(),
            hub_id: enrolled.hub_id,
            device: enrolled.device_id,
            account: enrolled.account,
        })
    }

    /// The memory of a session (or its lineage, or its project).
    ///
    /// # Errors
    /// When the hub cannot be asked.
    pub async fn get_memory(
        &self,
        session: SessionId,
        project: Option<&ProjectName>,
        etag: Option<&str>,
    ) -> Result<Fetched, HttpError> {
        let session = session.to_string();
        self.fetch(&["memory", &session], project, etag).await
    }

    /// The index of a session (or its lineage, or its project).
    ///
    /// # Errors
    /// When the hub cannot be asked.
    pub async fn get_index(
        &self,
        session: SessionId,
        project: Option<&ProjectName>,
        etag: Option<&str>,
    ) -> Result<Fetched, HttpError> {
        let session = session.to_string();
        self.fetch(&["memory", &session, "index"], project, etag)
            .await
    }

    /// Replaces the memory of a session: `{summary, context[], project?}`.
    ///
    /// # Errors
    /// When the hub did not take it.
    pub async fn post_memory(&self, session: SessionId, memory: &Value) -> Result<(), HttpError> {
        let session = session.to_string();
        let response = self
            .call(
                Method::POST,
                &["memory", &session],
                &[],
                None,
                Body::Json(memory),
            )
            .await?;
        accepted(response).await.map(drop)
    }

    /// Sends a piece of a result's text, from the byte `offset` on; an empty one asks where the upload stands.
    ///
    /// # Errors
    /// When the hub cannot be asked, or does not want it.
    pub async fn put_result(
        &self,
        upload: &Upload,
        offset: u64,
        piece: &str,
    ) -> Result<Received, HttpError> {
        let task = upload.task_id.to_string();
        let query = [
            ("attempt", upload.attempt.to_string()),
            ("offset", offset.to_string()),
            ("total", upload.whole.bytes.to_string()),
            ("sha256", upload.whole.sha256.clone()),
        ];
        let path = ["tasks", &task, "result"];
        let response = self
            .call(Method::PUT, &path, &query, None, Body::Text(piece))
            .await?;
        let answer = read(accepted(response).await?).await?;
        Received::deserialize(answer).map_err(|e| HttpError::BadAnswer(format!("upload: {e}")))
    }

    async fn fetch(
        &self,
        path: &[&str],
        project: Option<&ProjectName>,
        etag: Option<&str>,
    ) -> Result<Fetched, HttpError> {
        let query = project.map(|p| ("project", p.to_string()));
        let response = self
            .call(Method::GET, path, query.as_slice(), etag, Body::None)
            .await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Fetched::NotModified);
        }
        let tag = response.headers().get(header::ETAG);
        let etag = tag.and_then(|v| v.to_str().ok()).map(str::to_owned);
        match accepted(response).await {
            Ok(response) => Ok(Fetched::Found {
                etag,
                body: read(response).await?,
            }),
            Err(e) if e.code() == Code::NotFound => Ok(Fetched::Missing),
            Err(e) => Err(e),
        }
    }

    /// One call as this device; once more with the hub's time if the clock is off.
    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        etag: Option<&str>,
        body: Body<'_>,
    ) -> Result<Response, HttpError> {
        let credentials = Credentials::load(&self.credentials)?.ok_or(HttpError::NotEnrolled)?;
        let hub = self.hub.as_ref().unwrap_or(&credentials.enrolment.hub);
        let mut url = hub.api(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut offset_ms = 0;
        loop {
            let now = clock::wall().plus(offset_ms);
            let token = credentials
                .mint(now)
                .map_err(|e| HttpError::BadAnswer(e.to_string()))?;
            let response = self
                .send(method.clone(), url.clone(), &token, etag, body)
                .await?;
            if response.status() != StatusCode::UNAUTHORIZED || offset_ms != 0 {
                return Ok(response);
            }
            match accepted(response).await {
                Err(HttpError::Refused(p)) if p.known_code() == Some(Code::ClockSkew) => {
                    let hub_now = p.now.unwrap_or(0);
                    offset_ms = hub_now.saturating_sub(clock::wall().0);
                    if offset_ms == 0 {
                        return Err(HttpError::Refused(p));
                    }
                }
                Err(e) => return Err(e),
                Ok(response) => return Ok(response),
            }
        }
    }

    /// One call of the link's fallback: POST with a body, else GET; the answer's bytes.
    ///
    /// # Errors
    /// When there is none in time, or it is a refusal.
    pub(super) async fn exchange(
        &self,
        url: Url,
        token: &Token,
        body: Option<String>,
        within: Duration,
    ) -> Result<Vec<u8>, HttpError> {
        let request = match body {
            Some(body) => self
                .client
                .post(url)
                .header(header::CONTENT_TYPE, "application/json")
                .body(body),
            None => self.client.get(url),
        };
        let request = request.bearer_auth(token.expose()).timeout(within);
        let response = request
            .send()
            .await
            .map_err(|e| HttpError::Network(said(&e)))?;
        bytes(accepted(response).await?, MAX_ANSWER).await
    }

    async fn send(
        &self,
        method: Method,
        url: Url,
        token: &Token,
        etag: Option<&str>,
        body: Body<'_>,
    ) -> Result<Response, HttpError> {
        let mut request = self.client.request(method, url).bearer_auth(token.expose());
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        match body {
            Body::None => {}
            Body::Json(value) => request = request.json(value),
            Body::Text(text) => {
                let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
                request = request
                    .header(header::CONTENT_TYPE, kind)
                    .timeout(PIECE_DEADLINE)
                    .body(text.to_owned());
            }
        }
        send(&self.way, &self.client, request).await
    }
}

/// Sends a request this way. The client does not tell what a proxy answered: why there is no tunnel is asked once more.
async fn send(
    way: &Way,
    client: &Client,
    request: reqwest::RequestBuilder,
) -> Result<Response, HttpError> {
    let request = request.build();
    let request = request.map_err(|e| HttpError::Network(said(&e)))?;
    let url = request.url();
    let (host, port) = (
        url.host_str().unwrap_or_default(),
        url.port_or_known_default(),
    );
    let proxy = way.proxies().for_host(host, port.unwrap_or(443));
    let is_proxied = proxy
        .map_err(|e| HttpError::Network(e.to_string()))?
        .is_some();
    let hub: Option<HubUrl> = url.origin().ascii_serialization().parse().ok();
    let error = match client.execute(request).await {
        Ok(response) => return Ok(response),
        Err(e) => e,
    };
    let Some(hub) = hub.filter(|_| is_proxied && error.is_connect()) else {
        return Err(HttpError::Network(said(&error)));
    };
    Err(HttpError::Network(
        match timeout(DEADLINE, way.open(&hub)).await {
            Ok(Err(DialFailure::Proxy { detail, .. } | DialFailure::Network { detail })) => detail,
            _ => format!("through the proxy: {}", said(&error)),
        },
    ))
}

/// The way's names, for the client.
struct Names(Resolve);

impl reqwest::dns::Resolve for Names {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        // The client puts the port in.
        let found = (self.0)(name.as_str().to_owned(), 0);
        Box::pin(async move {
            let addresses: reqwest::dns::Addrs = Box::new(found.await?.into_iter());
            Ok(addresses)
        })
    }
}

/// A client that goes this way.
fn client(way: &Way) -> Result<Client, HttpError> {
    let mut tls = ClientConfig::clone(way.tls());
    tls.alpn_protocols.clear();
    let proxies = Arc::clone(way.proxies());
    Client::builder()
        .tls_backend_preconfigured(tls)
        // Its own reading of the environment is off.
        .no_proxy()
        .proxy(reqwest::Proxy::custom(move |url| {
            // An unusable proxy was refused before the call.
            let port = url.port_or_known_default()?;
            proxies
                .for_host(url.host_str()?, port)
                .ok()??
                .with_credentials()
        }))
        .dns_resolver(Names(way.resolver()))
        .redirect(reqwest::redirect::Policy::none())
        .timeout(DEADLINE)
        .connect_timeout(DEADLINE)
        .pool_max_idle_per_host(2)
        .user_agent(concat!("remote-collab/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| HttpError::Network(said(&e)))
}

/// The answer if it is a success, else why not.
async fn accepted(response: Response) -> Result<Response, HttpError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let ours = kind.is_some_and(|v| v.as_bytes().starts_with(b"application/problem+json"));
    if ours
        && let Ok(body) = read(response).await
        && let Ok(problem) = Problem::deserialize(body)
        && problem.known_code().is_some()
    {
        return Err(HttpError::Refused(Box::new(problem)));
    }
    Err(HttpError::Edge(status.as_u16()))
}

async fn read(response: Response) -> Result<Value, HttpError> {
    let bytes = bytes(response, MAX_ANSWER).await?;
    serde_json::from_slice(&bytes).map_err(|e| HttpError::BadAnswer(e.to_string()))
}

/// The body, of at most `most` bytes.
async fn bytes(mut response: Response, most: usize) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|e| HttpError::Network(said(&e)))?
    {
        if bytes.len() + chunk.len() > most {
            return Err(HttpError::BadAnswer(format!("larger than {most} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The error with its causes, without the URL.
fn said(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(cause) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    if error.is_timeout() {
        "no answer in time".to_owned()
    } else if text.is_empty() {
        "the call failed".to_owned()
    } else {
        text
    }
}
