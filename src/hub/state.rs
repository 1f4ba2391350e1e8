//! What all parts of a running hub share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::clock::{Mono, wall};
use super::directory::{Directory, NoRoute, Route, Standing, Want};
use super::events::{EventsConfig, Streams};
use super::handed::{Handed, Mark};
use super::lifecycle::Lifecycle;
use super::limits::{Limiter, Rate};
use super::mailbox::Connection;
use super::once::Answer;
use super::poll::Polls;
use super::presence::{Notice, Presence};
use super::problem::{ApiError, ApiResult};
use super::records::{self, DeviceRecord, ItemKind};
use super::slots::Slots;
use super::store::{AnyStore, Commit, Expect, Op, StoreError};
use super::used::UsedTokens;
use super::webhooks::Webhooks;
use crate::auth::crypto::sha256;
use crate::auth::token::peek_device;
use crate::auth::{AuthError, HubKeys, Verified, verify_connect, verify_producer};
use crate::core::server::ServerConfig;
use crate::domain::{AccountId, Code, DeviceId, EnvelopeId, WallMs};

/// Verified tokens that are remembered, so that a signature is checked once.
const MAX_VERIFIED: usize = 1024;
/// The record of the hub's own name.
pub(crate) const ID: &str = "hub/id";

/// Results beyond a frame that are put together or read at a time.
const TEXTS: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) id: String,
    pub(crate) store: AnyStore,
    pub(crate) directory: Directory,
    pub(crate) presence: Presence,
    pub(crate) handed: Handed,
    pub(crate) slots: Slots,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) limiter: Limiter,
    /// Long-poll sessions.
    pub(crate) polls: Polls,
    pub(crate) link: ServerConfig,
    pub(crate) mono: Mono,
    /// Large texts in memory at a time.
    pub(crate) texts: Semaphore,
    /// When this life of the hub began.
    pub(crate) started: WallMs,
    pub(crate) events: EventsConfig,
    pub(crate) streams: Streams,
    pub(crate) webhooks: Webhooks,
    /// Cancelled when the hub begins to stop.
    pub(crate) draining: CancellationToken,
    /// Upgraded sockets, which the HTTP server no longer tracks.
    pub(crate) sockets: TaskTracker,
    keys: RwLock<HubKeys>,
    verified: Mutex<HashMap<[u8; 32], Arc<Verified>>>,
    used: UsedTokens,
}

impl Hub {
    /// The hub over this store, whose name is drawn when the store is new.
    pub(crate) async fn open(
        store: AnyStore,
        keys: HubKeys,
        rate: Rate,
        link: ServerConfig,
        lifecycle: Lifecycle,
        used: UsedTokens,
    ) -> Result<Self, StoreError> {
        let id = hub_id(&store).await?;
        let directory = Directory::load(&store).await?;
        let handed = Handed::load(&store, &directory.every_device()).await?;
        let webhooks = Webhooks::load(&store).await?;
        Ok(Self {
            id,
            store,
            directory,
            presence: Presence::default(),
            handed,
            slots: Slots::default(),
            lifecycle,
            limiter: Limiter::new(rate),
            polls: Polls::default(),
            link,
            mono: Mono::start(),
            texts: Semaphore::new(TEXTS),
            started: wall(),
            events: EventsConfig::default(),
            streams: Streams::default(),
            webhooks,
            draining: CancellationToken::new(),
            sockets: TaskTracker::new(),
            keys: RwLock::new(keys),
            verified: Mutex::default(),
            used,
        })
    }

    pub(crate) fn with_keys<T>(&self, f: impl FnOnce(&HubKeys) -> T) -> T {
        f(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn change_keys<T>(&self, f: impl FnOnce(&mut HubKeys) -> T) -> T {
        f(&mut self.keys.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a hub-signed token says, if it holds and was not called back.
    pub(crate) fn verify_token(&self, token: &str) -> ApiResult<Arc<Verified>> {
        let now = wall();
        let hash = sha256(token.as_bytes());
        let lock = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = lock().get(&hash).cloned();
        let verified = match remembered {
            Some(v) if v.expires_at > now => v,
            Some(_) => {
                lock().remove(&hash);
                return Err(AuthError::Expired.into());
            }
            None => {
                let v = self.with_keys(|k| verify_producer(k, &self.id, token, now))?;
                let v = Arc::new(v);
                let mut map = lock();
                if map.len() >= MAX_VERIFIED {
                    map.clear();
                }
                map.insert(hash, Arc::clone(&v));
                v
            }
        };
        if self.directory.is_revoked(&verified.jti)
            || !self.directory.has_account(&verified.account)
        {
            return Err(ApiError::new(
                Code::TokenRevoked,
                format!("the token `{}` was called back", verified.name),
            )
            .hint("ask the hub's owner for a new one: `remote-collab hub token create`"));
        }
        Ok(verified)
    }

    /// The device that signed this connect JWT, if it holds, was not used before and the device is not revoked.
    pub(crate) fn verify_device(&self, token: &str) -> ApiResult<Arc<DeviceRecord>> {
        let id = peek_device(token).ok_or(AuthError::Malformed("it is not a connect JWT"))?;
        self.verify_device_as(&id, token)
    }

    /// As [`Self::verify_device`], for a token that has to be this device's.
    pub(crate) fn verify_device_as(
        &self,
        id: &DeviceId,
        token: &str,
    ) -> ApiResult<Arc<DeviceRecord>> {
        let now = wall();
        let device = self.directory.device(id).ok_or(AuthError::UnknownKey)?;
        let key = device.public().ok_or(AuthError::UnknownKey)?;
        let connect = verify_connect(&key, id, &self.id, token, now)?;
        // After the signature: only the holder of the key learns that it was revoked.
        if device.revoked_at.is_some() {
            return Err(ApiError::new(
                Code::DeviceRevoked,
                format!("the device `{id}` was revoked"),
            )
            .hint("enrol this machine anew: `remote-collab login`; its queue is kept"));
        }
        self.used.take(&connect, now)?;
        Ok(device)
    }

    /// How fit the device is to take an item of this kind now.
    pub(crate) fn standing(&self, kind: ItemKind, device: &DeviceId) -> Standing {
        match self.presence.of(device) {
            None => Standing::Away,
            Some((said, _)) => {
                let free = || self.slots.free(device, said, self.mono.now());
                // Only a task takes a run slot.
                if kind == ItemKind::Task && free() == 0 {
                    Standing::Full
                } else {
                    Standing::Ready
                }
            }
        }
    }

    /// Where a request of this kind goes.
    pub(crate) fn route(
        &self,
        account: &AccountId,
        want: &Want,
        kind: ItemKind,
    ) -> Result<Route, NoRoute> {
        let standing = |d: &DeviceId| self.standing(kind, d);
        self.directory.route(account, want, &standing)
    }

    /// Notes that a task took a run slot, if this is the answer that accepted it and not one given before.
    pub(crate) fn took(&self, id: EnvelopeId, answer: &Answer) {
        let said = |field: &str| answer.body.get(field).and_then(|v| v.as_str());
        if said("id") == Some(&*id.to_string())
            && let Some(Ok(device)) = said("device").map(DeviceId::new)
        {
            self.slots.take(&device, self.mono.now());
        }
    }

    /// Revokes a device for good and ends its connection.
    pub(crate) async fn revoke(&self, device: &DeviceRecord) -> Result<(), StoreError> {
        let revoked_at = Some(wall());
        self.change_device(&device.account, &device.id, |d| {
            d.revoked_at = d.revoked_at.or(revoked_at);
        })
        .await?;
        tracing::info!(device = %device.id, "a device was revoked");
        self.presence.notify(&device.id, Notice::Revoked);
        Ok(())
    }

    /// Notes that the device was here until now, and what it was handed.
    pub(crate) async fn left(&self, c: &Connection) {
        let now = Some(wall());
        let mark = Mark {
            epoch: c.epoch,
            generation: c.generation,
            seq: self.handed.mark(&c.device),
        };
        let noted = self.change_device(&c.account, &c.device, |d| {
            d.last_seen = now;
            d.handed = Some(mark);
        });
        if let Err(e) = noted.await {
            tracing::debug!(device = %c.device, error = %e, "the last sign of life was not noted");
        }
    }

    async fn change_device(
        &self,
        account: &AccountId,
        device: &DeviceId,
        change: impl Fn(&mut DeviceRecord),
    ) -> Result<(), StoreError> {
        let key = DeviceRecord::key(account, device);
        for _ in 0..8 {
            let Some(stored) = self.store.get(key.clone()).await? else {
                return Ok(());
            };
            let Some(mut record) = records::read::<DeviceRecord>(&stored) else {
                return Ok(());
            };
            change(&mut record);
            let expect = Expect::Version(stored.version);
            let op = records::put(key.clone(), &record, expect, None);
            match self.store.commit(vec![op]).await {
                Ok(_) => {
                    self.directory.put_device(record);
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Err(StoreError::Busy)
    }
}

async fn hub_id(store: &AnyStore) -> Result<String, StoreError> {
    if let Some(known) = store.get(ID).await? {
        return Ok(known.value);
    }
    let id = format!("hub-{}", Uuid::new_v4().simple());
    match store
        .commit(vec![Op::put(ID, id.clone(), Expect::Absent)])
        .await
    {
        Ok(_) => Ok(id),
        Err(StoreError::Conflict { .. }) => store
            .get(ID)
            .await?
            .map(|s| s.value)
            .ok_or_else(|| StoreError::Io("the hub's name vanished".to_owned())),
        Err(e) => Err(e),
    }
}
