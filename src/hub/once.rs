//! Once in effect: a POST with an `Idempotency-Key` may be repeated and is answered as the first time.
//!
//! The key's record is the first step of the same batch that carries the effect, with "must be absent" as its
//! expectation. So of any number of parallel posts one commits; the others find the record and give its answer. Only an
//! effect pins a key: a refusal or a failure leaves it free. A key belongs to the account and the token's name.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::clock::wall;
use super::guard::Caller;
use super::problem::{ApiError, ApiResult};
use super::records::{self, IdemRecord};
use super::state::Hub;
use super::store::{Commit, Expect, Op, StoreError};
use crate::auth::crypto::sha256;
use crate::domain::{Code, limits::IDEMPOTENCY_TTL_MS};

/// Tries of an effect whose grounds change at the same time.
const TRIES: usize = 8;
/// Longest key, characters.
const MAX_KEY: usize = 200;

/// A key with what it was used for.
#[derive(Debug, Clone)]
pub(crate) struct Once {
    record: String,
    fingerprint: String,
}

/// An answer that can be given again.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) location: Option<String>,
    pub(crate) body: Value,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body)).into_response();
        if let Some(url) = self.location.and_then(|l| HeaderValue::from_str(&l).ok()) {
            response.headers_mut().insert(header::LOCATION, url);
        }
        response
    }
}

impl Once {
    /// The request's key, if it carries one; `call` is its method and path.
    pub(crate) fn of(
        caller: &Caller,
        headers: &HeaderMap,
        call: &str,
        body_sha256: &[u8; 32],
    ) -> ApiResult<Option<Self>> {
        let Some(value) = headers.get("idempotency-key") else {
            return Ok(None);
        };
        let key = value
            .to_str()
            .ok()
            .filter(|k| !k.is_empty() && k.len() <= MAX_KEY)
            .ok_or_else(|| {
                ApiError::field(
                    "Idempotency-Key",
                    format!("must be 1 to {MAX_KEY} visible ASCII characters"),
                )
            })?;
        let mut print = call.as_bytes().to_vec();
        print.push(0);
        print.extend_from_slice(body_sha256);
        Ok(Some(Self {
            record: format!(
                "idem/{}/{}/{}",
                caller.account,
                caller.key_name(),
                hex(&sha256(key.as_bytes()))
            ),
            fingerprint: hex(&sha256(&print)),
        }))
    }

    fn op(&self, answer: &Answer) -> Op {
        let record = IdemRecord {
            body_sha256: self.fingerprint.clone(),
            status: answer.status.as_u16(),
            location: answer.location.clone(),
            body: answer.body.clone(),
        };
        let until = wall().plus(IDEMPOTENCY_TTL_MS);
        records::put(self.record.clone(), &record, Expect::Absent, Some(until))
    }

    /// The answer that the key already stands for.
    ///
    /// # Errors
    /// 409 when it was used for something else.
    async fn earlier(&self, hub: &Hub) -> ApiResult<Option<Answer>> {
        let Some(stored) = hub.store.get(self.record.clone()).await? else {
            return Ok(None);
        };
        if stored.keep_until.is_some_and(|t| t <= wall()) {
            let expired = Op::Delete {
                key: self.record.clone(),
                expect: Expect::Version(stored.version),
            };
            return match hub.store.commit(vec![expired]).await {
                Ok(_) | Err(StoreError::Conflict { .. }) => Ok(None),
                Err(e) => Err(e.into()),
            };
        }
        let Some(record) = records::read::<IdemRecord>(&stored) else {
            return Ok(None);
        };
        if record.body_sha256 != self.fingerprint {
            return Err(ApiError::new(
                Code::IdempotencyMismatch,
                "this Idempotency-Key was used for another request",
            )
            .hint("use a new key for a new request"));
        }
        Ok(Some(Answer {
            status: StatusCode::from_u16(record.status).unwrap_or(StatusCode::OK),
            location: record.location,
            body: record.body,
        }))
    }
}

/// What a request would do and how it would be answered.
#[derive(Debug)]
pub(crate) struct Effect {
    pub(crate) ops: Vec<Op>,
    pub(crate) answer: Answer,
}

/// Why an effect was not carried out.
pub(crate) enum Failed {
    /// The store did not.
    Store(StoreError),
    /// The request is refused.
    Refused(ApiError),
}

impl From<StoreError> for Failed {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<ApiError> for Failed {
    fn from(e: ApiError) -> Self {
        Self::Refused(e)
    }
}

impl From<Failed> for ApiError {
    fn from(e: Failed) -> Self {
        match e {
            Failed::Store(e) => e.into(),
            Failed::Refused(e) => e,
        }
    }
}

/// Carries out an effect once per key. A refusal of `effect` is answered only if the key does not already stand for an
/// answer, so that a repetition is answered as before even when the target has gone meanwhile.
pub(crate) async fn commit(
    hub: &Hub,
    once: Option<&Once>,
    effect: ApiResult<Effect>,
) -> ApiResult<Answer> {
    Ok(attempt(hub, once, effect).await?)
}

/// As [`commit`], for an effect that rests on what it read: when that has changed, it is made anew.
pub(crate) async fn settle<F, Fut>(hub: &Hub, once: Option<&Once>, effect: F) -> ApiResult<Answer>
where
    F: Fn() -> Fut,
    Fut: Future<Output = ApiResult<Effect>>,
{
    for _ in 0..TRIES {
        match attempt(hub, once, effect().await).await {
            Err(Failed::Store(StoreError::Conflict { .. } | StoreError::Fenced)) => {}
            other => return Ok(other?),
        }
    }
    Err(StoreError::Busy.into())
}

async fn attempt(
    hub: &Hub,
    once: Option<&Once>,
    effect: ApiResult<Effect>,
) -> Result<Answer, Failed> {
    let (effect, once) = match (effect, once) {
        (Ok(effect), Some(once)) => (effect, once),
        (Ok(effect), None) => {
            if !effect.ops.is_empty() {
                hub.commit(effect.ops).await?;
            }
            return Ok(effect.answer);
        }
        (Err(refusal), Some(once)) => return Ok(once.earlier(hub).await?.ok_or(refusal)?),
        (Err(refusal), None) => return Err(refusal.into()),
    };
    let mut batch = vec![once.op(&effect.answer)];
    batch.extend(effect.ops);
    // Twice, because a key that ran out is cleared and the effect tried again.
    for _ in 0..2 {
        match hub.commit(batch.clone()).await {
            Ok(_) => return Ok(effect.answer),
            Err(StoreError::Conflict { key }) if key == once.record => {
                if let Some(answer) = once.earlier(hub).await? {
                    return Ok(answer);
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    Err(StoreError::Busy.into())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut s, b| {
        // Writing to a string cannot fail.
        let _infallible = write!(s, "{b:02x}").is_ok();
        s
    })
}
