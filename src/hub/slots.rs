//! Free run slots, for routing: what a device said, less what it was sent since.
//!
//! `capacity` comes after a run began. Until then the tasks that were routed to the device would all see the same free
//! slots, so each one routed counts against them: until the next `capacity`, or for a while, because a task may also be
//! held at the device and take no slot.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::domain::{DeviceId, Ts};

/// How long a routed task counts, ms.
const COUNTS_MS: u64 = 10_000;
/// Routed tasks that are counted of one device; more than this is none free anyway.
const MAX_COUNTED: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<BTreeMap<DeviceId, Vec<Ts>>>);

impl Slots {
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<DeviceId, Vec<Ts>>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A task was routed to the device.
    pub(crate) fn take(&self, device: &DeviceId, now: Ts) {
        self.with(|all| {
            let taken = all.entry(device.clone()).or_default();
            taken.retain(|at| now.since(*at) < COUNTS_MS);
            if taken.len() < MAX_COUNTED {
                taken.push(now);
            }
        });
    }

    /// The device said how many are free.
    pub(crate) fn told(&self, device: &DeviceId) {
        self.with(|all| all.remove(device));
    }

    /// How many of the `said` slots are still free.
    pub(crate) fn free(&self, device: &DeviceId, said: u32, now: Ts) -> u32 {
        let taken = self.with(|all| {
            let of = all.get(device).into_iter().flatten();
            of.filter(|at| now.since(**at) < COUNTS_MS).count()
        });
        said.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routed_task_takes_a_slot_until_the_device_speaks_or_time_passes() {
        let slots = Slots::default();
        let device = DeviceId::new("d").unwrap();
        assert_eq!(slots.free(&device, 2, Ts(0)), 2);
        slots.take(&device, Ts(0));
        slots.take(&device, Ts(5_000));
        slots.take(&device, Ts(5_000));
        assert_eq!(slots.free(&device, 2, Ts(5_000)), 0);
        assert_eq!(slots.free(&device, 4, Ts(11_000)), 2);
        slots.told(&device);
        assert_eq!(slots.free(&device, 2, Ts(5_000)), 2);
    }
}
