//! Re-routing: what a device that stays away never had goes to another one.
//!
//! Only what is addressed by a project's name alone may move, only to a device that is connected and serves the project
//! with the account's approval, and only if no connection of the absent device ever had it. The text leaves the one
//! mailbox and enters the other in one commit, which is fenced like a cancellation: a device that comes back at that
//! moment either has the envelope or never will. The envelope keeps its id, and the record says whence it came.

use crate::domain::{DeviceId, Envelope, EnvelopeId, Seq, WallMs};
use crate::hub::clock::wall;
use crate::hub::directory::{Standing, Want};
use crate::hub::handed::Absent;
use crate::hub::records::{DeviceRecord, ItemKind, ItemRecord, Rerouted};
use crate::hub::state::Hub;
use crate::hub::store::{Mailbox, MailboxId, Op, StoreError};

/// Envelopes of one device that one pass looks at.
const PER_DEVICE: u32 = 200;
const PER_DEVICE_BYTES: u64 = 8 << 20;
/// Moves of one item at most: there is no device left that did not have it before.
const MAX_MOVES: usize = 8;

/// Whether the device has been away for so long that its mail may go elsewhere.
fn stays_away(d: &DeviceRecord, started: WallMs, now: WallMs, after_ms: i64) -> bool {
    if d.revoked_at.is_some() {
        return true;
    }
    // After a start of the hub every device gets the time to come back.
    let since = d.last_seen.unwrap_or(d.enrolled_at).max(started);
    now.0.saturating_sub(since.0) >= after_ms
}

/// Whether this item may leave the device: decided by what it is, not by where it could go.
fn may_move(item: &ItemRecord, envelope: EnvelopeId, from: &DeviceId) -> bool {
    item.anywhere
        && !item.is_over()
        && !item.is_on_device()
        && item.device == *from
        && item.current() == envelope
        && item.rerouted.len() < MAX_MOVES
}

/// The record after the move.
fn moved(item: &ItemRecord, to: &DeviceId, at: WallMs) -> ItemRecord {
    let mut after = item.clone();
    let from = std::mem::replace(&mut after.device, to.clone());
    if let Some(attempt) = after.attempts.last_mut() {
        attempt.device = Some(to.clone());
    }
    let to = to.clone();
    after.rerouted.push(Rerouted { from, to, at });
    after
}

impl Hub {
    /// One pass over the devices that stay away.
    pub(super) async fn reroute(&self) -> Result<(), StoreError> {
        let after_ms = self.lifecycle.reroute_ms();
        for device in self.directory.every_device() {
            let away = !self.presence.is_online(&device.id)
                && stays_away(&device, self.started, wall(), after_ms);
            if away && self.directory.has_stand_in(&device.account, &device.id) {
                self.reroute_from(&device).await?;
            }
        }
        Ok(())
    }

    async fn reroute_from(&self, device: &DeviceRecord) -> Result<(), StoreError> {
        let Some(absent) = self.absent(&device.account, &device.id).await? else {
            return Ok(());
        };
        let mut after = absent.mark;
        while after < absent.head {
            let found = self
                .store
                .read_after(&absent.mailbox, after, PER_DEVICE, PER_DEVICE_BYTES)
                .await?;
            let Some(last) = found.rows.last().map(|r| r.seq) else {
                return Ok(());
            };
            for row in &found.rows {
                // What cannot be read was written by a later version: it waits.
                if let Ok(envelope) = serde_json::from_str::<Envelope>(&row.json) {
                    self.reroute_one(device, &absent, &envelope, &row.json)
                        .await?;
                }
            }
            after = Seq(last.0);
            if !found.more {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn reroute_one(
        &self,
        device: &DeviceRecord,
        absent: &Absent,
        envelope: &Envelope,
        json: &std::sync::Arc<str>,
    ) -> Result<(), StoreError> {
        let (account, id) = (&device.account, envelope.id);
        let items = self.items(account, &[id]).await?;
        let Some((version, item, _)) = items.pair(id) else {
            return Ok(());
        };
        let Some(project) = item
            .to
            .project
            .as_ref()
            .filter(|_| may_move(item, id, &device.id))
        else {
            return Ok(());
        };
        let want = Want {
            project: Some(project.to_string()),
            ..Want::default()
        };
        let Ok(route) = self.route(account, &want, item.kind) else {
            return Ok(());
        };
        let to = &route.device;
        let had_it = |m: &Rerouted| m.from == *to;
        let away = self.standing(item.kind, to) == Standing::Away;
        if *to == device.id || away || item.rerouted.iter().any(had_it) {
            return Ok(());
        }
        let now = wall();
        let after = moved(item, to, now);
        let mut ops = vec![
            absent.fence(),
            Op::Append {
                mailbox: MailboxId::of(account, to),
                id,
                json: std::sync::Arc::clone(json),
                expires_at: envelope.expires_at,
            },
            Op::Retire {
                mailbox: absent.mailbox.clone(),
                id,
            },
        ];
        ops.extend(super::write_item(
            account,
            Some((version, item)),
            &after,
            now,
        ));
        match self.commit(ops).await {
            Ok(_) => {
                if item.kind == ItemKind::Task {
                    self.slots.take(to, self.mono.now());
                }
                tracing::info!(%id, from = %device.id, %to, "an envelope was re-routed");
                Ok(())
            }
            // The device is back, the item changed, or the other mailbox is full: it stays where it is.
            Err(StoreError::Fenced | StoreError::Conflict { .. } | StoreError::MailboxFull) => {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
#[path = "reroute_tests.rs"]
mod tests;
