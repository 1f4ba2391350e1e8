//! Who is connected: one connection per device key.
//!
//! A device key runs in one place. A hello of the same instance is that place after a restart or a lost link and takes
//! the older connection over (4409 for the older one, no waiting); a hello of another instance, while one lives, is a
//! copy of the key and is refused by name, unless a person moved the device there: then the older one is shut out. Every admitted connection has a ticket; what it leaves behind at its end is
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
    /// Another instance took the device over.
    TakenOver,
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

/// A connection that has its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entered {
    pub(crate) ticket: u64,
    /// The other instance that held the place.
    pub(crate) shut_out: Option<InstanceId>,
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
        take_over: bool,
    ) -> Result<Entered, HeldElsewhere> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(|live| {
            let mut shut_out = None;
            if let Some(older) = live.get(device) {
                let other = older.instance != instance;
                if other && !take_over && !older.notices.is_closed() {
                    return Err(HeldElsewhere);
                }
                shut_out = other.then_some(older.instance);
                older.tell(if other {
                    Notice::TakenOver
                } else {
                    Notice::Superseded
                });
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
            Ok(Entered { ticket, shut_out })
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
        let enter = |instance, tx: &mpsc::Sender<_>, take_over| {
            p.enter(&device, instance, 0, tx.clone(), take_over)
        };
        let t1 = enter(one, &tx1, false).unwrap().ticket;
        assert_eq!(enter(two, &tx2, false), Err(HeldElsewhere));
        assert!(p.holds(&device, t1));
        let t2 = enter(one, &tx2, false).unwrap();
        assert!(t2.ticket > t1 && t2.shut_out.is_none());
        assert_eq!(rx1.try_recv(), Ok(Notice::Superseded));
        assert!(!p.leave(&device, t1) && p.is_online(&device));
        drop(rx2);
        // The holder's task is gone without a goodbye: its place is free.
        let (tx3, mut rx3) = mpsc::channel(2);
        let t3 = enter(two, &tx3, false).unwrap();
        // A person moved the device: the other instance is told and named.
        let t4 = enter(one, &tx1, true).unwrap();
        assert_eq!(t4.shut_out, Some(two));
        assert_eq!(rx3.try_recv(), Ok(Notice::TakenOver));
        assert!(!p.leave(&device, t3.ticket));
        assert!(p.leave(&device, t4.ticket) && !p.is_online(&device));
    }
}
