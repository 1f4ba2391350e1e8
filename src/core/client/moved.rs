//! Going over to another transport without the old one having failed.

use crate::domain::Ts;

use super::machine::Phase;
use super::{Cause, LinkClient, Output};

impl LinkClient {
    /// The shell put another open transport in the place of the connection's: say `hello` there. The hub fences what is
    /// still under way on the old one; ignored when no connection is open.
    pub fn moved(&mut self, now: Ts) {
        let Phase::Open(session) = &self.phase else {
            return;
        };
        if let Some(live) = session.live {
            if now.since(live) >= self.config.stable_after_ms {
                self.attempt = 0;
                self.policy.reset();
            }
            self.lost_at = Some(now);
        }
        self.attempt = self.attempt.saturating_add(1);
        self.said = None;
        self.capacity = None;
        self.next_n = 1;
        self.phase = Phase::Opening {
            deadline: now.plus(self.config.handshake_timeout_ms),
        };
        // What was meant for the old one must not come before `hello`; `welcome` says what has to be said again.
        self.out
            .retain(|o| !matches!(o, Output::Send(_) | Output::Ping(_)));
        let detail = "going over to another transport".to_owned();
        self.tell(Some(Cause::Lost { detail }), now);
        self.out.push_back(Output::SendHello);
    }
}
