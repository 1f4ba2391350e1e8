//! Who is connected: one connection per device key.
//!
//! A device key runs in one place. A hello of the same instance is that place after a restart or a lost link and takes
//! the older connection over (4409 for the older one, no waiting); a hello of another instance, while one lives, is a
//! copy of the key and is refused by name. Every admitted connection has a ticket; what it leaves behind at its end is
//! removed only if the ticket is still the newest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::domain::{DeviceId, InstanceId};

/// What a connection is told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A newer connection took over.
    Superseded,
    /// The device was revoked.
    Revoked,
}

#[derive(Debug)]
struct Live {
    ticket: u64,
    instance: InstanceId,
    notices: mpsc::Sender<Notice>,
    capacity: u32,
    synced: bool,
}

impl Live {
    fn tell(&self, notice: Notice) {
        // Either notice ends the connection, so one that finds the queue full was told already.
        if self.notices.try_send(notice).is_err() {
            tracing::debug!(?notice, "a connection was told before");
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    next: AtomicU64,
    live: Mutex<BTreeMap<DeviceId, Live>>,
}

/// Another live instance holds the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldElsewhere;

impl Presence {
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<DeviceId, Live>) -> T) -> T {
        f(&mut self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Enters a connection and tells the one that it supersedes.
    pub(crate) fn enter(
        &self,
        device: &DeviceId,
        instance: InstanceId,
        capacity: u32,
        notices: mpsc::Sender<Notice>,
    ) -> Result<u64, HeldElsewhere> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(|live| {
            if let Some(older) = live.get(device) {
                if older.instance != instance && !older.notices.is_closed() {
                    return Err(HeldElsewhere);
                }
                older.tell(Notice::Superseded);
            }
            live.insert(
                device.clone(),
                Live {
                    ticket,
                    instance,
                    notices,
                    capacity,
                    synced: false,
                },
            );
            Ok(ticket)
        })
    }

    /// Whether this ticket is the device's newest.
    pub(crate) fn holds(&self, device: &DeviceId, ticket: u64) -> bool {
        self.with(|live| live.get(device).is_some_and(|l| l.ticket == ticket))
    }

    /// Removes a connection, unless a newer one took over; tells whether it did.
    pub(crate) fn leave(&self, device: &DeviceId, ticket: u64) -> bool {
        self.with(|live| {
            let mine = live.get(device).is_some_and(|l| l.ticket == ticket);
            if mine {
                live.remove(device);
            }
            mine
        })
    }

    pub(crate) fn synced(&self, device: &DeviceId, ticket: u64) {
        self.with(|live| {
            if let Some(l) = live.get_mut(device).filter(|l| l.ticket == ticket) {
                l.synced = true;
            }
        });
    }

    pub(crate) fn set_capacity(&self, device: &DeviceId, ticket: u64, free: u32) {
        self.with(|live| {
            if let Some(l) = live.get_mut(device).filter(|l| l.ticket == ticket) {
                l.capacity = free;
            }
        });
    }

    /// Tells the device's connection, if there is one.
    pub(crate) fn notify(&self, device: &DeviceId, notice: Notice) {
        self.with(|live| {
            if let Some(l) = live.get(device) {
                l.tell(notice);
            }
        });
    }

    pub(crate) fn is_online(&self, device: &DeviceId) -> bool {
        self.with(|live| live.contains_key(device))
    }

    /// Free run slots of a connected device, and whether its backlog is done.
    pub(crate) fn of(&self, device: &DeviceId) -> Option<(u32, bool)> {
        self.with(|live| live.get(device).map(|l| (l.capacity, l.synced)))
    }

    pub(crate) fn count(&self) -> usize {
        self.with(|live| live.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_instance_takes_over_and_another_is_refused() {
        let p = Presence::default();
        let device = DeviceId::new("d").unwrap();
        let (one, two) = (InstanceId::from_u128(1), InstanceId::from_u128(2));
        let (tx1, mut rx1) = mpsc::channel(2);
        let (tx2, rx2) = mpsc::channel(2);
        let t1 = p.enter(&device, one, 0, tx1).unwrap();
        assert_eq!(p.enter(&device, two, 0, tx2.clone()), Err(HeldElsewhere));
        assert!(p.holds(&device, t1));
        let t2 = p.enter(&device, one, 0, tx2.clone()).unwrap();
        assert!(t2 > t1);
        assert_eq!(rx1.try_recv(), Ok(Notice::Superseded));
        assert!(!p.leave(&device, t1) && p.is_online(&device));
        drop(rx2);
        // The holder's task is gone without a goodbye: its place is free.
        let (tx3, _rx3) = mpsc::channel(2);
        let t3 = p.enter(&device, two, 0, tx3).unwrap();
        assert!(p.leave(&device, t3) && !p.is_online(&device));
    }
}
