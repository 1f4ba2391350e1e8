//! The hub's clock, as the last welcome told it.
//!
//! Mail expires by the clock of the hub that made it, and this device's wall clock may be wrong or be set anew at any time.
//! So the hub's time is kept against the time since this boot, which nobody sets, and over a restart of the daemon for as
//! long as the boot is the same. Before a first welcome the wall clock has to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::daemon::clock;
use crate::domain::WallMs;

use super::error::StoreError;
use super::sqlite::Tx;
use super::writer::Job;
use super::{Db, Store};

/// No welcome yet.
const UNKNOWN: i64 = i64::MIN;
/// Changes below this are not written, ms.
const WORTH_WRITING: i64 = 1_000;

/// The hub's time at this boot, Unix ms.
#[derive(Debug, Clone)]
pub(super) struct HubTime(Arc<AtomicI64>);

impl HubTime {
    /// What was kept, if it was in this boot.
    pub(super) fn load(db: &Db) -> Result<Self, StoreError> {
        let kept = db.job(|tx| {
            tx.row("SELECT boot, hub_base FROM meta", &[], |r| {
                Ok(r.opt_text(0)?.zip(r.opt_int(1)?))
            })
        })?;
        let kept = kept.0.flatten();
        let boot = boot();
        let base = kept.filter(|(of, _)| boot.as_ref() == Some(of));
        Ok(Self(Arc::new(AtomicI64::new(
            base.map_or(UNKNOWN, |(_, base)| base),
        ))))
    }
}

impl Store {
    /// Notes the hub's time as it is now; kept over a restart.
    pub fn hub_clock(&self, now: WallMs) {
        let base = now.0.saturating_sub(clock::since_boot_ms());
        let before = self.hub_time.0.swap(base, Ordering::Relaxed);
        if before != UNKNOWN && before.saturating_sub(base).saturating_abs() < WORTH_WRITING {
            return;
        }
        let Some(boot) = boot() else { return };
        let (job, _) = Job::new(true, move |tx: &Tx<'_>| {
            tx.exec("UPDATE meta SET boot = ?, hub_base = ?", &[&boot, &base])
        });
        // A queue that is full or closed: the next welcome tells it again.
        drop(self.jobs.try_send(job));
    }

    /// The hub's time minus this device's wall clock, now; 0 before a welcome, ms.
    #[must_use]
    pub fn hub_offset_ms(&self) -> i64 {
        match self.hub_time.0.load(Ordering::Relaxed) {
            UNKNOWN => 0,
            base => base
                .saturating_add(clock::since_boot_ms())
                .saturating_sub(clock::wall().0),
        }
    }
}

/// What tells this boot from others; `None` where the system does not say.
fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}
