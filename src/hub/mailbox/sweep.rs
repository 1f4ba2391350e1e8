//! What the passing of time ends.

use crate::domain::{AccountId, EnvelopeId, WallMs, limits::FINISHED_KEPT_MS};
use crate::hub::clock::wall;
use crate::hub::records::{self, ItemKind, ItemRecord};
use crate::hub::reports::{self, Effect};
use crate::hub::silence::{self, Verdict};
use crate::hub::state::Hub;
use crate::hub::store::{Expect, Mailbox, MailboxId, Op, Records, StoreError};

/// Envelopes or records that one sweep step looks at.
const SWEEP: u32 = 200;
/// Steps of one sweep.
const STEPS: usize = 50;

impl Hub {
    /// One pass over what time ends: expired envelopes, silent devices, envelopes of absent ones, old ids and records.
    /// Bounded; what is left waits for the next pass.
    pub(crate) async fn sweep(&self) -> Result<(), StoreError> {
        self.directory
            .forget_sessions(wall().plus(-FINISHED_KEPT_MS));
        self.directory.forget_revoked(wall());
        // A step that changed nothing would find the same again.
        for _ in 0..STEPS {
            if self.expire_due().await? < SWEEP as usize {
                break;
            }
        }
        for _ in 0..STEPS {
            if self.look_at_watched().await? < SWEEP as usize {
                break;
            }
        }
        self.reroute().await?;
        self.end_revoked(wall()).await?;
        for _ in 0..STEPS {
            if self.store.retain(wall(), SWEEP).await? < SWEEP as usize {
                break;
            }
        }
        Ok(())
    }

    async fn expire_due(&self) -> Result<usize, StoreError> {
        let now = wall();
        let due = self.store.due(now, SWEEP).await?;
        for d in &due {
            self.expire(&d.mailbox, d.id, d.acked, now).await?;
        }
        Ok(due.len())
    }

    async fn expire(
        &self,
        mailbox: &MailboxId,
        id: EnvelopeId,
        acked: bool,
        now: WallMs,
    ) -> Result<(), StoreError> {
        let mut ops = vec![Op::Retire {
            mailbox: mailbox.clone(),
            id,
        }];
        let account = mailbox.as_str().split('/').next().unwrap_or_default();
        if let Ok(account) = AccountId::new(account) {
            let mut items = self.items(&account, &[id]).await?;
            if let Some(item) = items.get_mut(id)
                && id == item.current()
            {
                let before = item.clone();
                if acked {
                    // What the device has is the device's to end; only its silence is watched from now on.
                    silence::watch(item, now, self.lifecycle.patience());
                } else {
                    reports::expire(item, now);
                }
                if *item != before {
                    ops.extend(items.write(&account, id, now).into_iter().flat_map(|w| w.0));
                }
            }
        }
        match self.commit(ops).await {
            // A report came first; the next pass looks again.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Looks at the items whose `watch` is due, oldest first; tells how many there were.
    async fn look_at_watched(&self) -> Result<usize, StoreError> {
        let now = wall();
        let page = self.store.list("watch/", None, SWEEP, false).await?;
        let mut due = 0;
        for stored in page {
            let Some(watched) = Watched::parse(&stored.key).filter(|w| w.at <= now) else {
                break;
            };
            due += 1;
            self.look_at(&stored.key, &watched, now).await?;
        }
        Ok(due)
    }

    async fn look_at(&self, key: &str, w: &Watched, now: WallMs) -> Result<(), StoreError> {
        let stored = self.store.get(w.kind.key(&w.account, w.id)).await?;
        let item = stored
            .as_ref()
            .and_then(|s| Some((s.version, records::read::<ItemRecord>(s)?)));
        let mut ops = vec![Op::Delete {
            key: key.to_owned(),
            expect: Expect::Any,
        }];
        if let Some((version, item)) = item
            && item.watch == Some(w.at)
        {
            let mut after = item.clone();
            let online = self.presence.is_online(&item.device);
            let device = self.directory.device(&item.device);
            // Nobody could speak to a hub that was down.
            let heard = device.and_then(|d| d.last_seen).max(Some(self.started));
            let patience = self.lifecycle.patience();
            match silence::look(&item, online, heard, now, patience) {
                Verdict::Settled => after.watch = None,
                Verdict::Wait(until) => after.watch = Some(until),
                Verdict::Silent => {
                    if reports::presume_silent(&mut after, now) == Effect::Changed {
                        tracing::info!(id = %item.id, device = %item.device, "a device is silent past a deadline");
                        ops.push(Op::Retire {
                            mailbox: MailboxId::of(&w.account, &item.device),
                            id: item.current(),
                        });
                    }
                }
            }
            ops.extend(super::write_item(
                &w.account,
                Some((version, &item)),
                &after,
                now,
            ));
        }
        match self.commit(ops).await {
            // The device spoke at this moment.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// The key of a `watch` record, read.
struct Watched {
    at: WallMs,
    account: AccountId,
    kind: ItemKind,
    id: EnvelopeId,
}

impl Watched {
    fn parse(key: &str) -> Option<Self> {
        let mut parts = key.strip_prefix("watch/")?.split('/');
        let at = WallMs(parts.next()?.parse().ok()?);
        let account = AccountId::new(parts.next()?).ok()?;
        let kind = match parts.next()? {
            "task" => ItemKind::Task,
            "message" => ItemKind::Message,
            _ => return None,
        };
        let id = parts.next()?.parse().ok()?;
        Some(Self {
            at,
            account,
            kind,
            id,
        })
    }
}
