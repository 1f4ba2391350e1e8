//! What becomes of a revoked device's mail: it cannot come back for it, and nobody else may have it.

use serde::Deserialize;

use crate::domain::{EnvelopeId, Seq, WallMs};
use crate::hub::records::DeviceRecord;
use crate::hub::reports::{self, Effect};
use crate::hub::state::Hub;
use crate::hub::store::{Commit, Mailbox, MailboxId, Op, StoreError};

/// Envelopes that one step looks at.
const STEP: u32 = 100;
/// Bytes that one step reads.
const STEP_BYTES: u64 = 4 << 20;
/// Steps of one pass and device.
const STEPS: usize = 200;

#[derive(Deserialize)]
struct Named {
    id: EnvelopeId,
}

impl Hub {
    /// Ends what waits for devices that were revoked a while ago, and drops it: the mailbox is empty after one pass.
    pub(super) async fn end_revoked(&self, now: WallMs) -> Result<(), StoreError> {
        let before = now.plus(-self.lifecycle.revoked_ms());
        for device in self.directory.revoked_devices(before) {
            let mailbox = MailboxId::of(&device.account, &device.id);
            for _ in 0..STEPS {
                let rows = self
                    .store
                    .read_after(&mailbox, Seq(0), STEP, STEP_BYTES)
                    .await?;
                let ids: Vec<EnvelopeId> = rows
                    .rows
                    .iter()
                    .filter_map(|row| serde_json::from_str::<Named>(&row.json).ok())
                    .map(|named| named.id)
                    .collect();
                if ids.is_empty() {
                    break;
                }
                for id in ids {
                    self.end_of(&device, &mailbox, id, now).await?;
                }
            }
        }
        Ok(())
    }

    async fn end_of(
        &self,
        device: &DeviceRecord,
        mailbox: &MailboxId,
        id: EnvelopeId,
        now: WallMs,
    ) -> Result<(), StoreError> {
        let account = &device.account;
        let mut ops = vec![Op::Retire {
            mailbox: mailbox.clone(),
            id,
        }];
        let mut items = self.items(account, &[id]).await?;
        if let Some(item) = items.get_mut(id)
            && id == item.current()
            && reports::abandon(item, "device_revoked", now) == Effect::Changed
        {
            ops.extend(items.write(account, id, now).into_iter().flat_map(|w| w.0));
        }
        match self.store.commit(ops).await {
            // Somebody changed it first; the next step looks again.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
