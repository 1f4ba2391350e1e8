//! Which envelopes were certainly never handed to a device.
//!
//! An envelope can be called off or moved to another device at once only if no connection ever had it: one that was on
//! the wire may be in the device's queue, acked or not, and then it is the device's to decide. So for each mailbox the
//! hub keeps a mark: whatever stands above it was never handed out.
//!
//! * While a device is connected nothing is certain, and the mark is not asked for.
//! * A connection begins with the device's own cursor, which raises the mark (after a `reset`, which tells nothing, the
//!   head does). Then each row raises it before it goes out.
//! * At the connection's end the mark goes into the device's record, together with the mailbox's epoch and generation.
//!   After a restart it counts only if both are still the mailbox's: else a connection (or another life of the store)
//!   came after it, whose rows nobody noted, and the mark is the head.
//!
//! A commit that relies on the mark is fenced by the generation that was read **before** the device was found absent: a
//! connection that comes in between raises it, so the commit fails and the question is asked anew.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::records::DeviceRecord;
use super::state::Hub;
use super::store::{AnyStore, Mailbox, MailboxId, Op, StoreError};
use crate::domain::{AccountId, DeviceId, EnvelopeId, Epoch, Seq};

/// The mark as it stands in the device's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) epoch: Epoch,
    pub(crate) generation: u64,
    pub(crate) seq: Seq,
}

/// The marks of devices that are away.
#[derive(Debug, Default)]
pub(crate) struct Handed(Mutex<BTreeMap<DeviceId, Seq>>);

impl Handed {
    /// The marks as they stand at the hub's start.
    pub(crate) async fn load(
        store: &AnyStore,
        devices: &[Arc<DeviceRecord>],
    ) -> Result<Self, StoreError> {
        let mut marks = BTreeMap::new();
        for d in devices {
            let mailbox = MailboxId::of(&d.account, &d.id);
            if let Some(at) = store.position(&mailbox).await? {
                let holds = |m: &Mark| m.epoch == at.epoch && m.generation == at.generation;
                let never = at.generation == 0;
                let known = d.handed.filter(holds).map(|m| m.seq);
                let seq = known.unwrap_or(if never { Seq(0) } else { at.head });
                marks.insert(d.id.clone(), seq);
            }
        }
        Ok(Self(Mutex::new(marks)))
    }

    /// Notes what a connection of the device has, or is about to be sent.
    pub(crate) fn raise(&self, device: &DeviceId, seq: Seq) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match marks.get_mut(device) {
            Some(mark) => *mark = seq.max(*mark),
            None => drop(marks.insert(device.clone(), seq)),
        }
    }

    /// Above this nothing was handed out; meaningful while the device is away.
    pub(crate) fn mark(&self, device: &DeviceId) -> Seq {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A device without a mark never connected.
        marks.get(device).copied().unwrap_or_default()
    }
}

/// A device that is away, with what makes a commit certain that it still is.
#[derive(Debug, Clone)]
pub(crate) struct Absent {
    pub(crate) mailbox: MailboxId,
    /// What stands above was never handed out.
    pub(crate) mark: Seq,
    pub(crate) head: Seq,
    generation: u64,
}

impl Absent {
    /// The first step of a commit that relies on the absence.
    pub(crate) fn fence(&self) -> Op {
        Op::Fence {
            mailbox: self.mailbox.clone(),
            generation: self.generation,
        }
    }
}

impl Hub {
    /// The device, if it is away now.
    pub(crate) async fn absent(
        &self,
        account: &AccountId,
        device: &DeviceId,
    ) -> Result<Option<Absent>, StoreError> {
        let mailbox = MailboxId::of(account, device);
        let at = self.store.position(&mailbox).await?;
        let (generation, head) = at.map_or((0, Seq(0)), |at| (at.generation, at.head));
        if self.presence.is_online(device) {
            return Ok(None);
        }
        let mark = self.handed.mark(device);
        Ok(Some(Absent {
            mailbox,
            mark,
            head,
            generation,
        }))
    }

    /// The absence of the device, if no connection of it ever had this envelope.
    pub(crate) async fn never_handed(
        &self,
        account: &AccountId,
        device: &DeviceId,
        envelope: EnvelopeId,
    ) -> Result<Option<Absent>, StoreError> {
        let Some(absent) = self.absent(account, device).await? else {
            return Ok(None);
        };
        let (mark, head) = (absent.mark, absent.head);
        let waiting = self.store.ids_between(&absent.mailbox, mark, head).await?;
        Ok(waiting.contains(&envelope).then_some(absent))
    }
}
