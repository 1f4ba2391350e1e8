//! Accounts: who shares this hub without seeing each other.
//!
//! Everything that the hub keeps stands under a key or in a mailbox that names its account, and a token names one
//! account, so nothing has to be filtered. `default` is always there; another one is made before its first token.
//! Deleting one is for good: devices are disconnected, tokens called back and the secrets of their callbacks dropped,
//! then everything of it is dropped in bounded batches, callbacks that are still owed included. A deletion that was cut off is told by the list and is finished by repeating it.

use serde_json::{Value, json};
use uuid::Uuid;

use super::clock::wall;
use super::problem::{ApiError, ApiResult};
use super::records::{self, AccountRecord, TokenRecord, put};
use super::state::Hub;
use super::store::{Commit, Expect, Log, LogId, Mailbox, MailboxId, Op, Records, StoreError};
use super::webhooks::drop_secret;
use crate::domain::{AccountId, Code, EnvelopeId, Seq, WallMs};

/// The account that is always there.
pub(super) const DEFAULT: &str = "default";
/// Steps of one batch of a deletion.
const BATCH: usize = 400;

impl Hub {
    /// Refuses an account that does not exist, or is being deleted.
    pub(super) fn need_account(&self, account: &AccountId) -> ApiResult<()> {
        if self.directory.has_account(account) {
            return Ok(());
        }
        let known = self.directory.accounts();
        let known = known.iter().take(20).map(ToString::to_string);
        Err(
            ApiError::new(Code::NotFound, format!("unknown account `{account}`"))
                .hint("`remote-collab hub account create` makes one")
                .known(known.collect()),
        )
    }

    /// Makes an account; making it twice is told and changes nothing.
    pub(super) async fn create_account(&self, account: &AccountId) -> ApiResult<Value> {
        let exists = || ApiError::new(Code::Conflict, format!("the account `{account}` exists"));
        if account.as_str() == DEFAULT {
            return Err(exists());
        }
        let record = AccountRecord {
            account: account.clone(),
            created_at: wall(),
            deleting: false,
        };
        let op = put(AccountRecord::key(account), &record, Expect::Absent, None);
        match self.store.commit(vec![op]).await {
            Ok(_) => {}
            Err(StoreError::Conflict { .. }) => return Err(exists()),
            Err(e) => return Err(e.into()),
        }
        self.directory.put_account(account.clone());
        tracing::info!(%account, "an account was made");
        Ok(json!({ "account": account, "created_at": record.created_at }))
    }

    /// Every account, with what it holds.
    pub(super) async fn list_accounts(&self) -> ApiResult<Value> {
        let stored = self.store.list_all("account/").await?;
        let mut all: Vec<AccountRecord> = stored.iter().filter_map(records::read).collect();
        let mut rows = Vec::new();
        for account in self.directory.accounts() {
            if all.iter().all(|r| r.account != account) {
                all.push(AccountRecord {
                    account,
                    created_at: crate::domain::WallMs(0),
                    deleting: false,
                });
            }
        }
        all.sort_by(|a, b| a.account.cmp(&b.account));
        for r in all {
            let tokens = self.tokens(&r.account).await?.len();
            rows.push(json!({
                "account": r.account,
                "created_at": (r.created_at.0 > 0).then_some(r.created_at),
                "devices": self.directory.devices(&r.account).len(),
                "tokens": tokens,
                "deleting": r.deleting,
            }));
        }
        Ok(json!({ "accounts": rows }))
    }

    /// Deletes an account with everything in it.
    pub(super) async fn delete_account(&self, account: &AccountId) -> ApiResult<Value> {
        if account.as_str() == DEFAULT {
            return Err(ApiError::field(
                "account",
                "`default` stays: revoke its devices and tokens instead",
            ));
        }
        let key = AccountRecord::key(account);
        if self.store.get(key.clone()).await?.is_none() {
            self.need_account(account)?;
        }
        let record = AccountRecord {
            account: account.clone(),
            created_at: wall(),
            deleting: true,
        };
        let mut ops = vec![put(key.clone(), &record, Expect::Any, None)];
        let tokens = self.tokens(account).await?;
        ops.extend(tokens.iter().flat_map(call_back));
        self.store.commit(ops).await?;
        self.directory.drop_account(account);
        for token in &tokens {
            self.directory.revoke(token.jti, called_back_until(token));
            self.forget_secret(&token.jti);
        }
        let devices = self.directory.devices(account);
        for device in &devices {
            self.revoke(device).await?;
        }
        for device in &devices {
            self.empty_mailbox(&MailboxId::of(account, &device.id))
                .await?;
        }
        // Twice: what a callback under way wrote behind the first pass finds its record gone in the second.
        let dropped =
            self.drop_records(account, &key).await? + self.drop_records(account, &key).await?;
        self.empty_log(account).await?;
        self.directory.forget_account(account);
        let last = Op::Delete {
            key,
            expect: Expect::Any,
        };
        self.store.commit(vec![last]).await?;
        tracing::info!(%account, records = dropped, "an account was deleted");
        Ok(json!({
            "account": account, "devices": devices.len(), "tokens": tokens.len(), "records": dropped,
        }))
    }

    async fn empty_mailbox(&self, mailbox: &MailboxId) -> Result<(), StoreError> {
        let Some(at) = self.store.position(mailbox).await? else {
            return Ok(());
        };
        let ids = self.store.ids_between(mailbox, Seq(0), at.head).await?;
        for ids in ids.chunks(BATCH / 2) {
            let gone = |id: &EnvelopeId| {
                let (mailbox, id) = (mailbox.clone(), *id);
                let retire = Op::Retire {
                    mailbox: mailbox.clone(),
                    id,
                };
                [retire, Op::Forget { mailbox, id }]
            };
            self.store
                .commit(ids.iter().flat_map(gone).collect())
                .await?;
        }
        Ok(())
    }

    /// The newest event of a log stays, so that no number is given twice: it is an empty one.
    async fn empty_log(&self, account: &AccountId) -> Result<(), StoreError> {
        let log = LogId::of(account);
        if self.store.log_position(&log).await?.is_none() {
            return Ok(());
        }
        let blank = Op::Note {
            log: log.clone(),
            about: EnvelopeId(Uuid::nil()),
            at: wall(),
            json: "{}".into(),
        };
        let trim = Op::Trim {
            log,
            seq: Seq(u64::MAX >> 1),
        };
        self.store.commit(vec![blank, trim]).await.map(drop)
    }

    /// Drops every record of the account but `keep`.
    async fn drop_records(&self, account: &AccountId, keep: &str) -> Result<usize, StoreError> {
        let (mut from, mut dropped) = (None, 0);
        loop {
            let page = self.store.list("", from.take(), 500, false).await?;
            let full = page.len() == 500;
            from = page.last().map(|s| s.key.clone());
            let mine = page
                .iter()
                .filter(|s| records::account_of(&s.key) == Some(account.as_str()) && s.key != keep);
            let ops: Vec<Op> = mine
                .map(|s| Op::Delete {
                    key: s.key.clone(),
                    expect: Expect::Any,
                })
                .collect();
            dropped += ops.len();
            for ops in ops.chunks(BATCH) {
                self.store.commit(ops.to_vec()).await?;
            }
            if !full {
                return Ok(dropped);
            }
        }
    }
}

/// How long a call-back outlives its token, ms.
const LONGER_MS: i64 = 60_000;

/// Until when a call-back is remembered: a little longer than the token itself could be taken for valid.
pub(super) fn called_back_until(token: &TokenRecord) -> WallMs {
    token.expires_at.plus(LONGER_MS)
}

/// The steps that call a token back and end its callbacks.
pub(super) fn call_back(token: &TokenRecord) -> [Op; 2] {
    let revoked = Op::Put {
        key: format!("revoked/{}", token.jti),
        value: wall().0.to_string(),
        expect: Expect::Any,
        keep_until: Some(called_back_until(token)),
    };
    [revoked, drop_secret(&token.jti)]
}
