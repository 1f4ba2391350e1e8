//! How long the hub waits for devices that stay away or silent.

use std::time::Duration;

use super::silence::Patience;

/// The waits of tasks and messages; see the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifecycle {
    /// Time between two looks at what time ends.
    pub sweep_every: Duration,
    /// How long after a deadline a device that is away may stay silent about what it has.
    pub away_silence: Duration,
    /// The same for a device that is connected.
    pub online_silence: Duration,
    /// How long a device is away before what it never had goes to another one.
    pub reroute_after: Duration,
    /// How long after its revocation what waits for a device may still go to another one; then it ends.
    pub revoked_grace: Duration,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            sweep_every: Duration::from_secs(30),
            away_silence: Duration::from_secs(10 * 60),
            online_silence: Duration::from_secs(24 * 3600),
            reroute_after: Duration::from_secs(2 * 60),
            revoked_grace: Duration::from_secs(5 * 60),
        }
    }
}

impl Lifecycle {
    pub(crate) fn patience(&self) -> Patience {
        Patience {
            away_ms: ms(self.away_silence),
            online_ms: ms(self.online_silence),
        }
    }

    pub(crate) fn revoked_ms(&self) -> i64 {
        ms(self.revoked_grace)
    }

    pub(crate) fn reroute_ms(&self) -> i64 {
        ms(self.reroute_after)
    }
}

fn ms(d: Duration) -> i64 {
    i64::try_from(d.as_millis()).unwrap_or(i64::MAX)
}
