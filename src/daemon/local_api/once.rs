//! Once in effect: a POST with an `Idempotency-Key` may be repeated and is answered as the first time, as at the hub.
//!
//! Nothing is kept beside the queue. The key gives the envelopes their ids, and the queue takes every id once, for longer
//! than any envelope lives: of parallel posts one is stored, and a repetition finds what the first one made. What was
//! asked for is compared with that for as long as it is there, which is longer than a day.

use axum::http::HeaderMap;
use uuid::Uuid;

use super::Api;
use super::body::ApiError;
use crate::daemon::store::Stored;
use crate::domain::{Code, Envelope, EnvelopeId};

/// Longest key, characters.
const MAX_KEY: usize = 200;
/// Where ids are made of keys.
const NAMESPACE: Uuid = Uuid::from_u128(0x7a3c_19f0_5b1e_4f4d_9c35_0d6e_21b8_c4e7);

/// A request's key.
#[derive(Debug, Clone)]
pub(super) struct Once(String);

impl Once {
    /// The request's key, if it carries one; `call` is its method and path.
    pub(super) fn of(headers: &HeaderMap, call: &str) -> Result<Option<Self>, ApiError> {
        let Some(value) = headers.get("idempotency-key") else {
            return Ok(None);
        };
        let key = value.to_str().ok();
        let key = key.filter(|k| !k.is_empty() && k.len() <= MAX_KEY);
        let key = key.ok_or_else(|| {
            let rule = format!("`Idempotency-Key` must be 1 to {MAX_KEY} visible ASCII characters");
            ApiError::new(Code::InvalidField, rule)
        })?;
        Ok(Some(Self(format!("{call}\0{key}"))))
    }

    /// The id of the envelope at this place of the request.
    pub(super) fn id(&self, place: usize) -> EnvelopeId {
        let name = format!("{place}\0{}", self.0);
        EnvelopeId(Uuid::new_v5(&NAMESPACE, name.as_bytes()))
    }

    /// Stores what the request asks for, or finds that it was stored; gives how many envelopes are new.
    pub(super) async fn store(
        key: Option<&Self>,
        api: &Api,
        batch: Vec<Envelope>,
    ) -> Result<usize, ApiError> {
        if let Some(key) = key
            && api.store.envelope(key.id(0)).await?.is_some()
        {
            // A longer batch than the first one must not add its rest.
            let more = api.store.envelope(key.id(batch.len())).await?;
            let known = Self::known(api, &batch).await?;
            return if more.is_none() && known == batch.len() {
                Ok(0)
            } else {
                Err(mismatch())
            };
        }
        let stored = api.store.post_local(batch.clone()).await?;
        let new = stored.iter().filter(|s| **s == Stored::New).count();
        if key.is_some() && new < batch.len() {
            // Another post with this key came at the same time.
            Self::known(api, &batch).await?;
        }
        Ok(new)
    }

    /// How many of these are stored; refused when one of them is another than asked for.
    async fn known(api: &Api, batch: &[Envelope]) -> Result<usize, ApiError> {
        let mut known = 0;
        for asked in batch {
            let Some(row) = api.store.envelope(asked.id).await? else {
                continue;
            };
            if !same(&row.envelope, asked) {
                return Err(mismatch());
            }
            known += 1;
        }
        Ok(known)
    }
}

/// Whether both ask for the same, whenever they came.
fn same(a: &Envelope, b: &Envelope) -> bool {
    let life = |e: &Envelope| e.expires_at.0.saturating_sub(e.created_at.0);
    let asked = |e: &Envelope| {
        let Envelope {
            id,
            kind,
            from,
            to,
            priority,
            body,
            wake,
            ..
        } = e.clone();
        (id, kind, from, to, priority, body, wake)
    };
    life(a) == life(b) && asked(a) == asked(b)
}

fn mismatch() -> ApiError {
    ApiError::new(
        Code::IdempotencyMismatch,
        "this Idempotency-Key was used for another request",
    )
    .hint("use a new key for a new request, and the same body for a repetition")
}
