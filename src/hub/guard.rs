//! Who calls: the bearer token of a request, verified, rate-limited, and asked for its scopes.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use uuid::Uuid;

use super::problem::{ApiError, ApiResult};
use super::records::DeviceRecord;
use super::state::Hub;
use crate::auth::crypto::sha256;
use crate::auth::token::peek_device;
use crate::auth::{Scope, Verified};
use crate::domain::{AccountId, Code, Sender, Trust};

/// A verified caller.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) account: AccountId,
    who: Who,
}

#[derive(Debug, Clone)]
enum Who {
    Producer(Arc<Verified>),
    Device(Arc<DeviceRecord>),
}

/// The bearer token of a request's header; tokens in URLs are never read.
pub(crate) fn bearer(parts: &Parts) -> ApiResult<&str> {
    let missing = || {
        ApiError::new(Code::TokenMissing, "no bearer token was sent").hint(
            "send `Authorization: Bearer <token>`; `remote-collab hub token create` makes one",
        )
    };
    let value = parts.headers.get(AUTHORIZATION).ok_or_else(missing)?;
    let text = value.to_str().map_err(|_| missing())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(missing)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(missing());
    }
    Ok(token)
}

impl FromRequestParts<Arc<Hub>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> ApiResult<Self> {
        Self::of(hub, bearer(parts)?)
    }
}

impl Caller {
    fn of(hub: &Hub, token: &str) -> ApiResult<Self> {
        let (caller, bucket) = if peek_device(token).is_some() {
            let device = hub.verify_device(token)?;
            let mut bucket = [0; 16];
            bucket.copy_from_slice(&sha256(device.id.as_str().as_bytes())[..16]);
            let account = device.account.clone();
            let who = Who::Device(device);
            (Self { account, who }, Uuid::from_bytes(bucket))
        } else {
            let verified = hub.verify_token(token)?;
            let (account, bucket) = (verified.account.clone(), verified.jti);
            let who = Who::Producer(verified);
            (Self { account, who }, bucket)
        };
        hub.limiter
            .take(bucket, hub.mono.now())
            .map_err(|seconds| {
                ApiError::new(Code::RateLimited, "this token asks too often").retry_after(seconds)
            })?;
        Ok(caller)
    }

    /// Refuses a caller without this scope; a device has none but those of its own calls.
    pub(crate) fn need(&self, scope: Scope) -> ApiResult<()> {
        let has = match &self.who {
            Who::Producer(v) => v.scopes.contains(&scope),
            Who::Device(_) => matches!(scope, Scope::MemoryRead | Scope::MemoryWrite),
        };
        if has {
            return Ok(());
        }
        Err(ApiError::new(
            Code::ScopeMissing,
            format!("the token lacks the scope `{scope}`"),
        )
        .hint("ask the hub's owner for a token with it"))
    }

    /// Refuses a caller that may do nothing with devices' mail: a join token.
    pub(crate) fn need_any(&self) -> ApiResult<()> {
        match &self.who {
            Who::Producer(v) if v.scopes.iter().all(|s| *s == Scope::DevicesEnroll) => {
                self.need(Scope::TasksRead)
            }
            _ => Ok(()),
        }
    }

    /// Refuses trust below this.
    pub(crate) fn need_trust(&self, trust: Trust) -> ApiResult<()> {
        if self.sender().trust >= trust {
            return Ok(());
        }
        Err(ApiError::new(
            Code::TrustTooLow,
            "this token may inform only: it posts messages, not tasks",
        )
        .hint("POST /messages, or ask for a token with trust `suggest` or `run`"))
    }

    /// As whom receivers see the caller.
    pub(crate) fn sender(&self) -> Sender {
        match &self.who {
            Who::Producer(v) => Sender {
                name: v.name.clone(),
                trust: v.trust,
            },
            Who::Device(d) => Sender {
                name: d.id.to_string(),
                trust: Trust::Inform,
            },
        }
    }

    /// The caller's part of an idempotency key: a device cannot meet a token of the same name.
    pub(crate) fn key_name(&self) -> String {
        match &self.who {
            Who::Producer(v) => v.name.clone(),
            Who::Device(d) => format!("@{}", d.id),
        }
    }

    /// The device, for calls that only one makes.
    pub(crate) fn device(&self) -> ApiResult<&DeviceRecord> {
        match &self.who {
            Who::Device(d) => Ok(d),
            Who::Producer(_) => Err(ApiError::new(
                Code::ScopeMissing,
                "this call takes a connect JWT of a device, not a token of the hub",
            )),
        }
    }

    /// The producer's token, for calls that a device cannot make.
    pub(crate) fn producer(&self) -> ApiResult<&Verified> {
        match &self.who {
            Who::Producer(v) => Ok(v),
            Who::Device(_) => Err(ApiError::new(
                Code::ScopeMissing,
                "this call takes a token of the hub, not a device's",
            )),
        }
    }
}
