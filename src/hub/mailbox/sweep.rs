//! What the passing of time ends.

use crate::domain::{AccountId, EnvelopeId, WallMs, limits::FINISHED_KEPT_MS};
use crate::hub::clock::wall;
use crate::hub::reports::{self, Effect};
use crate::hub::state::Hub;
use crate::hub::store::{Commit, Mailbox, MailboxId, Op, StoreError};

/// Envelopes or records that one sweep step looks at.
const SWEEP: u32 = 200;
impl Hub {
    /// One pass over what time ends: expired envelopes, old ids and records. Bounded; what is left waits for the next pass.
    pub(crate) async fn sweep(&self) -> Result<(), StoreError> {
        self.directory
            .forget_sessions(wall().plus(-FINISHED_KEPT_MS));
        for _ in 0..50 {
            let now = wall();
            let due = self.store.due(now, SWEEP).await?;
            let more = due.len() == SWEEP as usize;
            for d in due {
                self.expire(&d.mailbox, d.id, d.acked, now).await?;
            }
            let dropped = self.store.retain(now, SWEEP).await?;
            if !more && dropped < SWEEP as usize {
                return Ok(());
            }
        }
        Ok(())
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
        // What the device has is the device's to end.
        let account = mailbox.as_str().split('/').next().unwrap_or_default();
        if !acked && let Ok(account) = AccountId::new(account) {
            let mut items = self.items(&account, &[id]).await?;
            if let Some(item) = items.get_mut(id)
                && id == item.current()
                && reports::expire(item, now) == Effect::Changed
            {
                ops.extend(items.write(&account, id, now).into_iter().flat_map(|w| w.0));
            }
        }
        match self.store.commit(ops).await {
            // A report came first; the next pass looks again.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
