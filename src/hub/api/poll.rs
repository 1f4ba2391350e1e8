//! The long-poll fallback, and its public form `/messages/pending` and `/messages/ack`; devices only.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use uuid::Uuid;

use super::super::body::JsonBody;
use super::super::guard::bearer;
use super::super::problem::{ApiError, ApiResult};
use super::super::records::DeviceRecord;
use super::super::state::Hub;
use super::asked::{Names, names};
use super::{Params, RawQuery};
use crate::auth::crypto::sha256;
use crate::auth::token::peek_device;
use crate::domain::{Code, Seq};
use crate::wire::{Hello, POLL_REPORTS, POLL_WAIT_S, PollAck, PollAcked, Welcome};

/// Why a session does not go on.
pub(crate) const ENDS: &[Code] = &[
    Code::Superseded,
    Code::PollClosed,
    Code::HeartbeatLost,
    Code::Conflict,
    Code::ProtocolError,
    Code::GoingAway,
    Code::StoreUnavailable,
    Code::DiskFull,
];

/// Which session polls, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct PollQuery {
    /// The session's number, from its welcome.
    generation: u64,
    /// The last envelope that was received; those after it are answered.
    after: u64,
    /// How long to wait for one, seconds; 0 when not said, one heartbeat of the hub at most.
    #[schemars(range(max = 60))]
    wait_s: Option<u64>,
}

static KNOWN: Names = Names::new(names::<PollQuery>);

/// A device with a fresh connect JWT.
#[derive(Debug)]
pub(crate) struct DeviceCaller(Arc<DeviceRecord>);

impl FromRequestParts<Arc<Hub>> for DeviceCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<Self> {
        let token = bearer(parts)?;
        if peek_device(token).is_none() {
            hub.verify_token(token)?;
            return Err(ApiError::new(
                Code::ScopeMissing,
                "this call takes a device's connect JWT, not a token of the hub",
            )
            .hint("messages are read with GET /messages; only a daemon polls"));
        }
        let device = hub.verify_device(token)?;
        let mut bucket = [0; 16];
        bucket.copy_from_slice(&sha256(device.id.as_str().as_bytes())[..16]);
        let taken = hub
            .polls
            .limiter
            .take(Uuid::from_bytes(bucket), hub.mono.now());
        taken.map_err(|seconds| {
            ApiError::new(Code::RateLimited, "this device polls too often").retry_after(seconds)
        })?;
        Ok(Self(device))
    }
}

/// `POST /poll/open`: what `hello` carries → what `welcome` carries.
pub(crate) async fn open(
    State(hub): State<Arc<Hub>>,
    DeviceCaller(device): DeviceCaller,
    body: JsonBody,
) -> ApiResult<Json<Welcome>> {
    if hub.draining.is_cancelled() {
        return Err(ApiError::new(Code::GoingAway, "the hub is stopping").retry_after(2));
    }
    let hello: Hello = body.read()?;
    hub.open_poll(device, hello).await.map(Json)
}

/// `GET /poll?generation=&after=&wait_s=` and `GET /messages/pending` → [`Polled`](crate::wire::Polled).
pub(crate) async fn poll(
    State(hub): State<Arc<Hub>>,
    DeviceCaller(device): DeviceCaller,
    query: RawQuery,
) -> ApiResult<Response> {
    let params = Params::of(query, &KNOWN)?;
    let number = |name| {
        let rule = "a whole number, at least 0";
        params
            .get::<u64>(name, rule)?
            .ok_or_else(|| ApiError::field(name, "is required"))
    };
    let (generation, after) = (number("generation")?, Seq(number("after")?));
    let rule = "a whole number of seconds from 0 to 60";
    let wait_s = params.get::<u64>("wait_s", rule)?.unwrap_or(0);
    if wait_s > POLL_WAIT_S {
        return Err(ApiError::field("wait_s", format!("must be {rule}")));
    }
    // Within a heartbeat there is an answer, so that a hung call is told from a waiting one.
    let wait = Duration::from_secs(wait_s).min(Duration::from_millis(hub.link.heartbeat_ms));
    let session = hub.poll_session(&device, generation).await?;
    let text = session.poll(after, wait).await?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// `POST /poll/ack` and `POST /messages/ack`: [`PollAck`] → [`PollAcked`] after the commit.
pub(crate) async fn ack(
    State(hub): State<Arc<Hub>>,
    DeviceCaller(device): DeviceCaller,
    body: JsonBody,
) -> ApiResult<Json<PollAcked>> {
    let ack: PollAck = body.read()?;
    if ack.reports.len() > POLL_REPORTS {
        let detail = format!("holds more than {POLL_REPORTS} reports");
        return Err(ApiError::field("/reports", detail));
    }
    let session = hub.poll_session(&device, ack.generation).await?;
    session.ack(ack).await.map(Json)
}
