//! What the hub's owner does: tokens, join tokens, accounts, devices, projects, keys, backups.
//!
//! Beside a running hub a call goes through `<data-dir>/hub/admin.sock` (0600, and the peer must be the same user): one
//! JSON line there, one back. When no hub runs, the caller takes the store's lock and does the same itself. Either way
//! [`Hub::admin`] carries it out.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, timeout};

use super::accounts::{call_back, called_back_until};
use super::api::approval::{Decision, decide};
use super::api::directory::{device_page, project_page, revoke_device};
use super::clock::wall;
use super::lock::{Home, admin_socket};
use super::problem::{ApiError, ApiResult};
use super::records::{self, TokenRecord, put};
use super::state::Hub;
use super::store::{Commit, Expect};
use super::webhooks::new_secret;
use super::{HubConfig, HubError, open_hub};
use crate::auth::{Grant, Scope, mint_producer};
use crate::domain::{AccountId, Code, Problem, Trust};

/// Longest line either way, bytes.
const MAX_LINE: u64 = 1 << 20;
/// Time for one call, and for one that goes through the whole store.
const DEADLINE: Duration = Duration::from_secs(15);
const LONG: Duration = Duration::from_secs(15 * 60);
/// How long a folder is waited for that another process holds: a hub that starts or stops, another call.
const HELD: Duration = Duration::from_secs(5);
const HELD_STEP: Duration = Duration::from_millis(50);
/// Who decided, where it was the hub's owner.
const OWNER: &str = "hub owner";
/// Longest life of a token, seconds: ten years.
const MAX_TTL_S: i64 = 10 * 366 * 24 * 3600;

/// A call of the hub's owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminCall {
    /// Make a producer token → `{token, jti, name, expires_at}`, and `webhook_secret` if it may post: shown here only.
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
    /// Make an account → `{account, created_at}`.
    CreateAccount {
        /// Its name.
        account: AccountId,
    },
    /// The accounts → `{accounts: [{account, created_at, devices, tokens, deleting}]}`.
    ListAccounts,
    /// Delete an account with everything in it → `{account, devices, tokens, records}`.
    DeleteAccount {
        /// Its name.
        account: AccountId,
    },
    /// Replace the secret that signs a token's callbacks, by its id or name → `{webhook_secret, jti}`.
    RenewWebhookSecret {
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
    /// The projects of the devices → `{projects: […]}`.
    ListProjects {
        /// Of which account.
        account: AccountId,
    },
    /// Let a device serve a project, or no longer → the project.
    DecideProject {
        /// Of which account.
        account: AccountId,
        /// Its name, or its absolute path on the device.
        project: String,
        /// The device's id or name, where several announce the project.
        #[serde(default)]
        device: Option<String>,
        /// Whether it may.
        approved: bool,
    },
    /// Write a backup of store and keys → `{file, bytes, hub_id, made_at, devices, items, envelopes, keys}`.
    Backup {
        /// Its absolute path.
        file: std::path::PathBuf,
        /// Whether it may replace a file.
        force: bool,
    },
    /// Add a signing key; older ones go on verifying → `{keys: n}`.
    RotateKeys,
    /// The signing keys, newest first → `{keys: [{kid, signs}]}`.
    ListKeys,
}

impl AdminCall {
    /// Whether the call only looks: then it makes no hub where there is none.
    const fn only_looks(&self) -> bool {
        match self {
            Self::ListTokens { .. }
            | Self::ListAccounts
            | Self::ListDevices { .. }
            | Self::ListProjects { .. }
            | Self::DecideProject { .. }
            | Self::ListKeys
            | Self::RevokeToken { .. }
            | Self::RenewWebhookSecret { .. }
            | Self::RevokeDevice { .. }
            | Self::DeleteAccount { .. }
            | Self::Backup { .. } => true,
            Self::CreateToken { .. }
            | Self::CreateJoin { .. }
            | Self::CreateAccount { .. }
            | Self::RotateKeys => false,
        }
    }

    /// Time to carry it out.
    const fn deadline(&self) -> Duration {
        match self {
            Self::Backup { .. } | Self::DeleteAccount { .. } => LONG,
            _ => DEADLINE,
        }
    }
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

/// Carries out a call beside or without a running hub. A hub that starts or stops meanwhile, and another call that holds
/// the folder, are waited for a little.
///
/// # Errors
/// When the call is refused, the store cannot be opened, or the running hub does not answer.
pub async fn call(data_dir: &Path, call: &AdminCall) -> Result<Value, AdminError> {
    let dir = data_dir.join("hub");
    let socket = admin_socket(&dir);
    let until = Instant::now() + HELD;
    loop {
        match UnixStream::connect(&socket).await {
            Ok(stream) => return beside(stream, call).await,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(AdminError::Socket(e.to_string()));
            }
            Err(_) => {}
        }
        // A restore that was cut off has no store in its place yet: opening the folder finishes it.
        let there = dir.join("hub.db").exists() || dir.join("restoring").exists();
        if call.only_looks() && !there {
            return Err(HubError::NoStore { path: dir }.into());
        }
        match Home::open(data_dir) {
            Err(HubError::Held { .. }) if Instant::now() < until => {
                tokio::time::sleep(HELD_STEP).await;
            }
            Err(e) => return Err(e.into()),
            Ok(home) => {
                let hub = open_hub(&home, &HubConfig::local(data_dir)).await?;
                let result = hub.admin(call).await;
                hub.store.close().await;
                return result.map_err(|e| AdminError::Refused(e.0));
            }
        }
    }
}

async fn beside(stream: UnixStream, call: &AdminCall) -> Result<Value, AdminError> {
    match timeout(call.deadline(), ask(stream, call)).await {
        Ok(Ok(Reply::Ok(v))) => Ok(v),
        Ok(Ok(Reply::Problem(p))) => Err(AdminError::Refused(p)),
        Ok(Err(e)) => Err(AdminError::Socket(e.to_string())),
        Err(_) => Err(AdminError::Socket("time is up".to_owned())),
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
                    if let Err(e) = answer(&hub, stream).await {
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
    let mut read = BufReader::new(read).take(MAX_LINE);
    timeout(DEADLINE, read.read_line(&mut line)).await??;
    let result = match serde_json::from_str::<AdminCall>(&line) {
        Ok(call) => timeout(call.deadline(), hub.admin(&call)).await?,
        Err(e) => Err(ApiError::new(Code::MalformedJson, e.to_string())),
    };
    let reply = match result {
        Ok(v) => Reply::Ok(v),
        Err(e) => Reply::Problem(e.0),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    timeout(DEADLINE, write.write_all(text.as_bytes())).await?
}

fn no_secret(e: crate::auth::crypto::CryptoError) -> ApiError {
    tracing::error!(error = %e, "no webhook secret");
    ApiError::new(Code::Internal, e.to_string())
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
            AdminCall::RenewWebhookSecret { account, token } => {
                self.renew_secret(account, token).await
            }
            AdminCall::RevokeToken { account, token } => self.revoke_token(account, token).await,
            AdminCall::ListDevices { account } => Ok(json!(device_page(self, account))),
            AdminCall::RevokeDevice { account, device } => {
                revoke_device(self, account, device).await?;
                Ok(json!({}))
            }
            AdminCall::ListProjects { account } => Ok(json!(project_page(self, account))),
            AdminCall::DecideProject {
                account,
                project,
                device,
                approved,
            } => {
                self.need_account(account)?;
                let decision = Decision {
                    account,
                    project,
                    device: device.as_deref(),
                    approved: *approved,
                    by: OWNER.to_owned(),
                };
                Ok(decide(self, None, decision).await?.body)
            }
            AdminCall::CreateAccount { account } => self.create_account(account).await,
            AdminCall::ListAccounts => self.list_accounts().await,
            AdminCall::DeleteAccount { account } => self.delete_account(account).await,
            AdminCall::ListKeys => {
                let all: Vec<Value> = self.with_keys(|k| {
                    let newest = k.publics().enumerate();
                    newest
                        .map(|(n, key)| json!({ "kid": key.thumbprint(), "signs": n == 0 }))
                        .collect()
                });
                Ok(json!({ "keys": all }))
            }
            AdminCall::Backup { file, force } => self.backup(file, *force).await,
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
        self.need_account(&grant.account)?;
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
        let mut answer = json!({
            "token": token.expose(), "jti": jti, "name": record.name, "expires_at": record.expires_at,
        });
        let mut ops = vec![op];
        let posts = |s: &Scope| matches!(s, Scope::TasksWrite | Scope::MessagesWrite);
        if grant.scopes.iter().any(posts) {
            let (secret, keep) = new_secret(jti, record.expires_at).map_err(no_secret)?;
            ops.push(keep);
            self.store.commit(ops).await?;
            answer["webhook_secret"] = json!(secret.expose_secret());
            self.keep_secret(jti, secret);
        } else {
            self.store.commit(ops).await?;
        }
        Ok(answer)
    }

    /// Replaces the secret that signs a token's callbacks.
    async fn renew_secret(&self, account: &AccountId, token: &str) -> ApiResult<Value> {
        let all = self.tokens(account).await?;
        let hits: Vec<&TokenRecord> = all
            .iter()
            .filter(|t| t.jti.to_string() == token || t.name == token)
            .filter(|t| !self.directory.is_revoked(&t.jti))
            .collect();
        let [hit] = hits.as_slice() else {
            let title = if hits.is_empty() {
                format!("unknown token `{token}`")
            } else {
                format!("several tokens are called `{token}`: name one by its id")
            };
            let known = all.iter().map(|t| format!("{} {}", t.jti, t.name));
            return Err(ApiError::new(Code::NotFound, title).known(known.take(20).collect()));
        };
        let (secret, keep) = new_secret(hit.jti, hit.expires_at).map_err(no_secret)?;
        self.store.commit(vec![keep]).await?;
        let answer = json!({ "webhook_secret": secret.expose_secret(), "jti": hit.jti });
        self.keep_secret(hit.jti, secret);
        Ok(answer)
    }

    pub(super) async fn tokens(&self, account: &AccountId) -> ApiResult<Vec<TokenRecord>> {
        let stored = self.store.list_all(&format!("token/{account}/")).await?;
        Ok(stored.iter().filter_map(records::read).collect())
    }

    async fn revoke_token(&self, account: &AccountId, token: &str) -> ApiResult<Value> {
        let all = self.tokens(account).await?;
        let hit: Vec<&TokenRecord> = all
            .iter()
            .filter(|t| t.name == token || t.jti.to_string() == token)
            .collect();
        if hit.is_empty() {
            return Err(
                ApiError::new(Code::NotFound, format!("unknown token `{token}`"))
                    .known(all.into_iter().map(|t| t.name).take(20).collect()),
            );
        }
        self.store
            .commit(hit.iter().flat_map(|t| call_back(t)).collect())
            .await?;
        for token in &hit {
            self.directory.revoke(token.jti, called_back_until(token));
            self.forget_secret(&token.jti);
        }
        Ok(json!({ "revoked": hit.len() }))
    }
}
