//! What the hub's owner does: tokens, join tokens, devices, keys.
//!
//! Beside a running hub a call goes through `<data-dir>/hub/admin.sock` (0600, and the peer must be the same user): one
//! JSON line there, one back. When no hub runs, the caller takes the store's lock and does the same itself. Either way
//! [`Hub::admin`] carries it out.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use uuid::Uuid;

use super::api::directory::{device_page, revoke_device};
use super::clock::wall;
use super::lock::{Home, admin_socket};
use super::problem::{ApiError, ApiResult};
use super::records::{self, TokenRecord, put};
use super::state::Hub;
use super::store::{Commit, Expect, Op};
use super::{HubConfig, HubError, open_hub};
use crate::auth::{Grant, Scope, mint_producer};
use crate::domain::{AccountId, Code, Problem, Trust};

/// Longest line either way, bytes.
const MAX_LINE: u64 = 1 << 20;
/// Time for one call.
const DEADLINE: Duration = Duration::from_secs(15);
/// Longest life of a token, seconds: ten years.
const MAX_TTL_S: i64 = 10 * 366 * 24 * 3600;

/// A call of the hub's owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminCall {
    /// Make a producer token → `{token, jti, name, expires_at}`.
    CreateToken {
        /// What receivers see as the sender.
        name: String,
        /// Its account.
        account: AccountId,
        /// What it may do.
        scopes: Vec<String>,
        /// How far it is believed.
        trust: Trust,
        /// Its life, seconds.
        ttl_s: i64,
    },
    /// Make a join token: one device, one hour → `{token, jti, name, expires_at}`.
    CreateJoin {
        /// What it is for.
        name: String,
        /// The device's account.
        account: AccountId,
    },
    /// The tokens that were made → `{tokens: […]}`.
    ListTokens {
        /// Of which account.
        account: AccountId,
    },
    /// Call a token back, by its id or by its name (all of that name) → `{revoked: n}`.
    RevokeToken {
        /// Of which account.
        account: AccountId,
        /// Its `jti` or name.
        token: String,
    },
    /// The enrolled devices → `{devices: […]}`.
    ListDevices {
        /// Of which account.
        account: AccountId,
    },
    /// Revoke a device for good → `{}`.
    RevokeDevice {
        /// Of which account.
        account: AccountId,
        /// Its id.
        device: String,
    },
    /// Add a signing key; older ones go on verifying → `{keys: n}`.
    RotateKeys,
}

/// Why a call was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The hub refused it.
    #[error(transparent)]
    Refused(Box<Problem>),
    /// The store cannot be opened here.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The running hub did not answer.
    #[error("the running hub did not answer on its admin socket: {0}")]
    Socket(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok(Value),
    Problem(Box<Problem>),
}

/// Carries out a call beside or without a running hub.
///
/// # Errors
/// When the call is refused, the store cannot be opened, or the running hub does not answer.
pub async fn call(data_dir: &Path, call: &AdminCall) -> Result<Value, AdminError> {
    let socket = admin_socket(&data_dir.join("hub"));
    match UnixStream::connect(&socket).await {
        Ok(stream) => match timeout(DEADLINE, ask(stream, call)).await {
            Ok(Ok(Reply::Ok(v))) => Ok(v),
            Ok(Ok(Reply::Problem(p))) => Err(AdminError::Refused(p)),
            Ok(Err(e)) => Err(AdminError::Socket(e.to_string())),
            Err(_) => Err(AdminError::Socket("time is up".to_owned())),
        },
        Err(_) => {
            let home = Home::open(data_dir)?;
            let hub = open_hub(&home, &HubConfig::local(data_dir)).await?;
            let result = hub.admin(call).await;
            hub.store.close().await;
            result.map_err(|e| AdminError::Refused(e.0))
        }
    }
}

async fn ask(mut stream: UnixStream, call: &AdminCall) -> std::io::Result<Reply> {
    let mut line = serde_json::to_string(call)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream)
        .take(MAX_LINE)
        .read_line(&mut answer)
        .await?;
    Ok(serde_json::from_str(&answer)?)
}

/// Listens on the admin socket, which replaces one that a killed hub left behind (the caller holds the lock).
pub(super) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // The folder is 0700, so nobody else gets in before the socket's own mode is set.
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the admin socket until the hub stops.
pub(super) async fn serve(hub: Arc<Hub>, listener: UnixListener) {
    loop {
        let accepted = tokio::select! {
            () = hub.draining.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let hub = Arc::clone(&hub);
                let tracker = hub.sockets.clone();
                tracker.spawn(async move {
                    if let Ok(Err(e)) | Err(e) = timeout(DEADLINE, answer(&hub, stream))
                        .await
                        .map_err(std::io::Error::other)
                    {
                        tracing::debug!(error = %e, "an admin call ended early");
                    }
                });
            }
            Err(e) => {
                tracing::warn!(error = %e, "the admin socket cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(hub: &Hub, stream: UnixStream) -> std::io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != rustix::process::geteuid().as_raw() {
        tracing::warn!(uid = peer, "another user called the admin socket");
        return Ok(());
    }
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read)
        .take(MAX_LINE)
        .read_line(&mut line)
        .await?;
    let result = match serde_json::from_str::<AdminCall>(&line) {
        Ok(call) => hub.admin(&call).await,
        Err(e) => Err(ApiError::new(Code::MalformedJson, e.to_string())),
    };
    let reply = match result {
        Ok(v) => Reply::Ok(v),
        Err(e) => Reply::Problem(e.0),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await
}

impl Hub {
    /// Carries out a call of the hub's owner.
    pub(crate) async fn admin(&self, call: &AdminCall) -> ApiResult<Value> {
        match call {
            AdminCall::CreateToken {
                name,
                account,
                scopes,
                trust,
                ttl_s,
            } => {
                let scopes = scopes
                    .iter()
                    .map(|s| s.parse::<Scope>())
                    .collect::<Result<std::collections::BTreeSet<_>, _>>()
                    .map_err(|e| ApiError::field("scopes", e))?;
                if scopes.is_empty() {
                    return Err(ApiError::field("scopes", "must name at least one"));
                }
                if scopes.contains(&Scope::DevicesEnroll) {
                    return Err(ApiError::field(
                        "scopes",
                        "`devices:enroll` is for join tokens: `remote-collab hub token create --scope devices:enroll`",
                    ));
                }
                self.mint(&Grant {
                    name: name.clone(),
                    account: account.clone(),
                    scopes,
                    trust: *trust,
                    ttl_s: *ttl_s,
                })
                .await
            }
            AdminCall::CreateJoin { name, account } => {
                self.mint(&Grant::join(name.clone(), account.clone())).await
            }
            AdminCall::ListTokens { account } => {
                let all: Vec<Value> = self
                    .tokens(account)
                    .await?
                    .iter()
                    .map(|t| {
                        let mut v = json!(t);
                        v["revoked"] = json!(self.directory.is_revoked(&t.jti));
                        v
                    })
                    .collect();
                Ok(json!({ "tokens": all }))
            }
            AdminCall::RevokeToken { account, token } => self.revoke_token(account, token).await,
            AdminCall::ListDevices { account } => Ok(json!(device_page(self, account))),
            AdminCall::RevokeDevice { account, device } => {
                revoke_device(self, account, device).await?;
                Ok(json!({}))
            }
            AdminCall::RotateKeys => {
                self.change_keys(crate::auth::HubKeys::rotate)
                    .map_err(|e| {
                        tracing::error!(error = %e, "no new key");
                        ApiError::new(Code::Internal, e.to_string())
                    })?;
                let n = self.with_keys(|k| k.publics().count());
                Ok(json!({ "keys": n }))
            }
        }
    }

    async fn mint(&self, grant: &Grant) -> ApiResult<Value> {
        // A name stands in keys and in front of receivers: one word of the safe set.
        AccountId::new(grant.name.as_str()).map_err(|_| {
            ApiError::field(
                "name",
                "must be 1 to 64 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit",
            )
        })?;
        if !(1..=MAX_TTL_S).contains(&grant.ttl_s) {
            return Err(ApiError::field(
                "ttl",
                format!("must be 1 s to {MAX_TTL_S} s"),
            ));
        }
        let now = wall();
        let (token, jti) = self.with_keys(|k| mint_producer(k, &self.id, grant, now))?;
        let record = TokenRecord {
            jti,
            account: grant.account.clone(),
            name: grant.name.clone(),
            scopes: grant.scopes.iter().map(ToString::to_string).collect(),
            trust: grant.trust,
            created_at: now,
            expires_at: now.plus(grant.ttl_s * 1000),
        };
        let key = format!("token/{}/{jti}", grant.account);
        let op = put(key, &record, Expect::Absent, Some(record.expires_at));
        self.store.commit(vec![op]).await?;
        Ok(json!({
            "token": token.expose(), "jti": jti, "name": record.name, "expires_at": record.expires_at,
        }))
    }

    async fn tokens(&self, account: &AccountId) -> ApiResult<Vec<TokenRecord>> {
        let stored = self.store.list_all(&format!("token/{account}/")).await?;
        Ok(stored.iter().filter_map(records::read).collect())
    }

    async fn revoke_token(&self, account: &AccountId, token: &str) -> ApiResult<Value> {
        let all = self.tokens(account).await?;
        let hit: Vec<Uuid> = all
            .iter()
            .filter(|t| t.name == token || t.jti.to_string() == token)
            .map(|t| t.jti)
            .collect();
        if hit.is_empty() {
            return Err(
                ApiError::new(Code::NotFound, format!("unknown token `{token}`"))
                    .known(all.into_iter().map(|t| t.name).take(20).collect()),
            );
        }
        let ops = hit
            .iter()
            .map(|jti| {
                let until = all.iter().find(|t| t.jti == *jti).map(|t| t.expires_at);
                Op::Put {
                    key: format!("revoked/{jti}"),
                    value: wall().0.to_string(),
                    expect: Expect::Any,
                    keep_until: until,
                }
            })
            .collect();
        self.store.commit(ops).await?;
        for jti in &hit {
            self.directory.revoke(*jti);
        }
        Ok(json!({ "revoked": hit.len() }))
    }
}
