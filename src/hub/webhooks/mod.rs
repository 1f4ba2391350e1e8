//! Callbacks: the end of a task or of a message, and each reply, POSTed to the producer's URL by Standard Webhooks.
//!
//! A call is owed from the commit of the change that it tells: [`owed`] puts its record into the same batch, and
//! only the commit of its outcome takes it away. So a hub that is killed between the two calls again: each call is made
//! at least once, with the same `webhook-id` and the same body, in order per item. [`plan`] says when it is made again,
//! [`address`] where it may go, [`client`] how it gets there and nowhere else.
//!
//! Each token has a secret of its own (`whsec_…`), shown when it is made and never again; a call is signed with that of
//! the token that posted the item. A token that is called back ends its calls.

pub(crate) mod address;
mod client;
mod plan;
mod room;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use uuid::Uuid;

pub use client::Resolver;
pub(crate) use worker::run;

use super::events::outcome;
use super::problem::{ApiError, ApiResult};
use super::records::{self, ItemKind, ItemRecord, Record};
use super::state::Hub;
use super::store::{AnyStore, Commit, Done, Expect, Op, StoreError};
use crate::auth::crypto::{CryptoError, hmac_sha256, random};
use crate::domain::{AccountId, Code, EnvelopeId, FieldFault, WallMs, limits::FINISHED_KEPT_MS};
use crate::wire::event::{CallbackData, Event, Told, Webhook, utc};

/// Calls of one account that may wait; beyond it no further callback is promised.
const MAX_WAITING: usize = 1_000;
/// Calls that may wait for the worker to take them in; beyond it reads the store.
const QUEUE: usize = 256;
const PREFIX: &str = "hook/";
const SECRETS: &str = "hook-secret/";

/// How callbacks are made.
#[derive(Debug, Clone)]
pub struct WebhookConfig {
    /// Whether private and loopback addresses are called, the latter in clear text, too.
    pub allow_private: bool,
    /// How names become addresses.
    pub resolver: Resolver,
    /// The wait after a first failure; each further one triples it.
    pub first_wait: Duration,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            allow_private: false,
            resolver: Resolver::default(),
            first_wait: Duration::from_secs(5),
        }
    }
}

/// Where the changes of an item are called back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Callback {
    pub(crate) url: String,
    /// The token whose secret signs.
    pub(crate) token: Uuid,
}

/// A call that is owed: `hook/<account>/<item>/<id>`, in the order of the ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HookRecord {
    pub(crate) url: String,
    pub(crate) token: Uuid,
    pub(crate) body: String,
    pub(crate) created_at: WallMs,
    pub(crate) attempts: u32,
    pub(crate) next_at: WallMs,
}

/// How the calls of an item went: `hook-state/<account>/<item>`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct HookState {
    pub(crate) delivered: u32,
    pub(crate) delivered_at: Option<WallMs>,
    pub(crate) attempts: u32,
    pub(crate) last_error: Option<String>,
    pub(crate) next_at: Option<WallMs>,
    /// No more calls: the receiver answered 410, or the token was called back.
    pub(crate) stopped: bool,
}

impl Record for HookRecord {}
impl Record for HookState {}

/// A callback as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct CallbackView {
    /// The URL without its query.
    pub(crate) url: String,
    /// Calls that the receiver took.
    pub(crate) delivered: u32,
    /// When the last one was taken, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delivered_at: Option<WallMs>,
    /// Tries of the newest call so far.
    pub(crate) attempts: u32,
    /// Why the last try failed; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// When it is tried again, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_attempt_at: Option<WallMs>,
    /// Whether no further call is made: the receiver answered 410, or the token was called back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stopped: bool,
}

/// What all parts of a hub share about callbacks.
#[derive(Debug)]
pub(crate) struct Webhooks {
    pub(crate) config: WebhookConfig,
    secrets: RwLock<HashMap<Uuid, SecretString>>,
    /// Calls that wait, by account; the worker keeps it.
    waiting: Mutex<HashMap<String, usize>>,
    fresh: mpsc::Sender<(String, HookRecord)>,
    /// Taken by the worker.
    inbox: Mutex<Option<mpsc::Receiver<(String, HookRecord)>>>,
}

impl Webhooks {
    pub(crate) async fn load(store: &AnyStore) -> Result<Self, StoreError> {
        let all = store.list_all(SECRETS).await?;
        let secrets = all.into_iter().filter_map(|s| {
            let token = s.key.strip_prefix(SECRETS)?.parse().ok()?;
            Some((token, SecretString::from(s.value)))
        });
        let (fresh, inbox) = mpsc::channel(QUEUE);
        Ok(Self {
            config: WebhookConfig::default(),
            secrets: RwLock::new(secrets.collect()),
            waiting: Mutex::default(),
            fresh,
            inbox: Mutex::new(Some(inbox)),
        })
    }

    fn secret(&self, token: &Uuid) -> Option<SecretString> {
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        secrets.get(token).cloned()
    }

    /// The callback that a producer asks for, or what is wrong with it.
    pub(crate) fn accept(
        &self,
        account: &AccountId,
        token: Uuid,
        url: String,
    ) -> ApiResult<Callback> {
        let fault = |detail: String| {
            ApiError::fields(vec![FieldFault {
                pointer: "/callback_url".to_owned(),
                detail,
            }])
        };
        address::url(&url, self.config.allow_private).map_err(|e| fault(e.to_string()))?;
        if self.secret(&token).is_none() {
            return Err(fault(format!(
                "this token has no webhook secret to sign with: `remote-collab hub token webhook-secret {token}` makes one"
            )));
        }
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.get(account.as_str()).copied().unwrap_or(0) >= MAX_WAITING {
            return Err(ApiError::new(
                Code::RateLimited,
                format!("{MAX_WAITING} callbacks of this account wait for their receivers"),
            )
            .hint("post without `callback_url`, or bring the receiver back")
            .retry_after(60));
        }
        Ok(Callback { url, token })
    }
}

/// A new webhook secret and the step that keeps it until `keep_until`.
pub(crate) fn new_secret(
    token: Uuid,
    keep_until: WallMs,
) -> Result<(SecretString, Op), CryptoError> {
    let secret = format!("whsec_{}", STANDARD.encode(random::<32>()?));
    let op = Op::Put {
        key: secret_key(&token),
        value: secret.clone(),
        expect: Expect::Any,
        // What was posted right before the token's end is still called back.
        keep_until: Some(keep_until.plus(2 * 24 * 3600 * 1000)),
    };
    Ok((SecretString::from(secret), op))
}

/// The step that drops the secret of a token whose calls end.
pub(crate) fn drop_secret(token: &Uuid) -> Op {
    Op::Delete {
        key: secret_key(token),
        expect: Expect::Any,
    }
}

fn secret_key(token: &Uuid) -> String {
    format!("{SECRETS}{token}")
}

/// `v1,<base64 of the HMAC-SHA256 of id.timestamp.body>`.
fn signature(secret: &SecretString, id: &str, timestamp: i64, body: &str) -> Option<String> {
    let key = secret.expose_secret().strip_prefix("whsec_")?;
    let key = STANDARD.decode(key).ok()?;
    let mac = hmac_sha256(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    Some(format!("v1,{}", STANDARD.encode(mac)))
}

/// The calls that an event owes: the end of a task or a message, and each reply.
pub(crate) fn owed(account: &AccountId, item: &ItemRecord, event: &Event) -> Option<Op> {
    let callback = item.callback.as_ref()?;
    let calls = match &event.what {
        Told::TaskStatus(s) => s.terminal,
        Told::MessageReceipt(r) => r.terminal,
        Told::TaskReply(_) | Told::MessageReply(_) => true,
        _ => false,
    };
    if !calls {
        return None;
    }
    let ended = matches!(event.what, Told::TaskStatus(_));
    let path = match item.kind {
        ItemKind::Task => "tasks",
        ItemKind::Message => "messages",
    };
    let body = Webhook {
        kind: event.what.kind().to_owned(),
        timestamp: utc(event.at),
        data: CallbackData {
            event: event.clone(),
            url: format!("/{path}/{}", item.id),
            result: item.result.as_ref().filter(|_| ended).map(outcome),
            metadata: item.metadata.clone(),
        },
    };
    let record = HookRecord {
        url: callback.url.clone(),
        token: callback.token,
        body: records::text(&body),
        created_at: event.at,
        attempts: 0,
        next_at: event.at,
    };
    let key = format!("{PREFIX}{account}/{}/{}", item.id, Uuid::now_v7());
    Some(records::put(key, &record, Expect::Absent, None))
}

/// How the callback of an item stands.
pub(crate) async fn view(
    hub: &Hub,
    account: &AccountId,
    item: &ItemRecord,
) -> Result<Option<CallbackView>, StoreError> {
    let Some(callback) = &item.callback else {
        return Ok(None);
    };
    let stored = hub.store.get(state_key(account.as_str(), item.id)).await?;
    let state: HookState = stored.as_ref().and_then(records::read).unwrap_or_default();
    Ok(Some(CallbackView {
        url: address::shown(&callback.url),
        delivered: state.delivered,
        delivered_at: state.delivered_at,
        attempts: state.attempts,
        last_error: state.last_error,
        next_attempt_at: state.next_at,
        stopped: state.stopped,
    }))
}

fn state_key(account: &str, item: EnvelopeId) -> String {
    format!("hook-state/{account}/{item}")
}

fn put_state(account: &str, item: EnvelopeId, state: &HookState, now: WallMs) -> Op {
    let until = Some(now.plus(FINISHED_KEPT_MS));
    records::put(state_key(account, item), state, Expect::Any, until)
}

impl Hub {
    /// Commits a batch in which calls may be owed, and lets them begin.
    pub(crate) async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Done>, StoreError> {
        let owed: Vec<(String, HookRecord)> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Put { key, value, .. } if key.starts_with(PREFIX) => {
                    Some((key.clone(), serde_json::from_str(value).ok()?))
                }
                _ => None,
            })
            .collect();
        let done = self.store.commit(ops).await?;
        for call in owed {
            // A full queue is made good by the worker's next look into the store.
            drop(self.webhooks.fresh.try_send(call));
        }
        Ok(done)
    }

    /// Keeps a token's secret for signing.
    pub(crate) fn keep_secret(&self, token: Uuid, secret: SecretString) {
        let secrets = &self.webhooks.secrets;
        let mut secrets = secrets.write().unwrap_or_else(PoisonError::into_inner);
        secrets.insert(token, secret);
    }

    /// Signs no further call with a token's secret.
    pub(crate) fn forget_secret(&self, token: &Uuid) {
        let secrets = &self.webhooks.secrets;
        let mut secrets = secrets.write().unwrap_or_else(PoisonError::into_inner);
        secrets.remove(token);
    }
}

/// The hub, as the worker holds it.
type Shared = Arc<Hub>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_one_of_the_specifications_example() {
        // The vector of the Standard Webhooks libraries.
        let secret = SecretString::from("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        let got = signature(
            &secret,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        let want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(got.as_deref(), Some(want));
    }
}
