//! When a device is silent past a deadline: pure functions over a record and the time.
//!
//! What a device has is the device's to end, also when its time is up: it may have begun in time. But a device can vanish,
//! and nothing may stay open for ever. So whatever a device has gets a **deadline**: a run's wall clock from its start,
//! else the envelope's expiry (or the end of a block, if that is later). At a time after that the item is looked at (its
//! `watch` record says when). If the device was not heard since, the hub concludes: a task is `interrupted`, a message
//! `undeliverable`, both `device_silent`, and the device's own word about the same attempt still replaces that. A device
//! that is connected gets far longer: it speaks, only not about this.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::records::{ItemKind, ItemRecord};
use crate::domain::{TaskStatus, WallMs, limits};

/// The longest wall clock of a run, and the longest block after its envelope's expiry, that are believed, ms: producers and
/// devices may name any, and a time beyond 13 digits would stand before all others in the order of the looks.
const LONGEST_MS: i64 = 30 * 24 * 3600 * 1000;

/// How long silence is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// After the deadline, and after the last sign of life, of a device that is away, ms.
    pub(crate) away_ms: i64,
    /// After the deadline, of a device that is connected, ms.
    pub(crate) online_ms: i64,
}

/// What a look at an item says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is waited for.
    Settled,
    /// Look again then.
    Wait(WallMs),
    /// The silence is too long.
    Silent,
}

/// When the device should have spoken.
fn deadline(item: &ItemRecord) -> WallMs {
    match (item.kind, item.state.status, item.deadline) {
        (ItemKind::Task, TaskStatus::Running, Some(at)) => at,
        (ItemKind::Task, ..) => {
            let (from, until) = (item.expires_at, item.state.until);
            let latest = from.plus(LONGEST_MS);
            until.unwrap_or(from).clamp(from, latest)
        }
        (ItemKind::Message, ..) => item.expires_at,
    }
}

/// Sets what follows from a change of the item: the deadline of a run that just began, and when to look.
pub(crate) fn watch(item: &mut ItemRecord, now: WallMs, patience: Patience) {
    if item.is_over() || item.presumed {
        (item.deadline, item.watch) = (None, None);
        return;
    }
    let running = item.kind == ItemKind::Task && item.state.status == TaskStatus::Running;
    if !running {
        item.deadline = None;
    } else if item.deadline.is_none() {
        let wall_clock = item.timeout_s.unwrap_or(limits::RUN_TIMEOUT_S);
        let ms = i64::try_from(wall_clock.saturating_mul(1000)).unwrap_or(i64::MAX);
        let deadline = now.plus(ms.min(LONGEST_MS));
        item.deadline = Some(deadline);
        item.watch = Some(deadline.plus(patience.away_ms));
    }
    if item.watch.is_none() && item.expires_at <= now {
        item.watch = Some(now.plus(patience.away_ms));
    }
}

/// Looks at an item at `now`; `heard` is the device's last sign of life, if it is away.
pub(crate) fn look(
    item: &ItemRecord,
    online: bool,
    heard: Option<WallMs>,
    now: WallMs,
    patience: Patience,
) -> Verdict {
    if item.is_over() || item.presumed {
        return Verdict::Settled;
    }
    let deadline = deadline(item);
    let due = if online {
        deadline.plus(patience.online_ms)
    } else {
        let since = heard.map_or(deadline, |at| at.max(deadline));
        since.plus(patience.away_ms)
    };
    if now >= due {
        return Verdict::Silent;
    }
    if online {
        // It may leave meanwhile.
        Verdict::Wait(due.min(now.plus(patience.away_ms.max(1000))))
    } else {
        Verdict::Wait(due)
    }
}

#[cfg(test)]
#[path = "silence_tests.rs"]
mod tests;
