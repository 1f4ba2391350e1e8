//! What must hold: after every step, and when the trouble is over.

use remote_collab::core::client::{self, LinkState};
use remote_collab::domain::Seq;

use super::world::{Step, World};

impl World {
    /// Acked means durable: every deliverable envelope up to here is in the queue.
    pub(super) fn check_ack(&self, seq: Seq) {
        let Some(cursor) = self.client.status().cursor else {
            panic!("an ack without a durable cursor");
        };
        assert!(cursor.seq >= seq, "ack {seq:?} beyond the store {cursor:?}");
        if cursor.epoch == self.hub.epoch {
            for mail in self.hub.mail.iter().filter(|m| m.seq <= seq && !m.terminal) {
                assert!(
                    self.device.known.contains(&mail.id),
                    "{seq:?} acked, but envelope {} is not durable here",
                    mail.id
                );
            }
        }
    }

    /// Holds after every step.
    pub(crate) fn check(&self) {
        assert!(
            self.device.queue.is_sorted_by(|a, b| a < b),
            "in order, and once per id: {:?}",
            self.device.queue
        );
        for (through, rows) in self.hub.reports.values() {
            assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "reports: {rows:?}");
            assert_eq!(rows.last().map_or(0, |(n, _)| *n), *through);
        }
        for conn in self.conns.iter().filter(|c| c.hub_open) {
            assert!(conn.server.status().in_flight <= self.window as usize);
        }
        assert!(self.client.status().unacked <= self.window as usize);
        assert_eq!(self.client.status().malformed, 0);
    }

    pub(super) fn reports_at_hub(&self) -> Vec<u128> {
        let instance = self.device.instance.0.as_u128();
        let rows = self.hub.reports.get(&instance);
        rows.map(|(_, rows)| rows.iter().map(|(_, id)| *id).collect())
            .unwrap_or_default()
    }

    /// What is still missing when the network is calm, or nothing.
    pub(super) fn missing(&self) -> Option<String> {
        if self.client.state() != LinkState::Synced {
            return Some(format!("not SYNCED: {:?}", self.client.status()));
        }
        let mail = self.hub.mail.iter().filter(|m| !m.terminal);
        let lost: Vec<_> = mail
            .filter(|m| !self.device.known.contains(&m.id))
            .map(|m| m.id)
            .collect();
        if !lost.is_empty() {
            return Some(format!("envelopes not in the queue: {lost:?}"));
        }
        if !self.device.outbox.is_empty() {
            let waiting: Vec<_> = self.device.outbox.iter().map(|r| r.n).collect();
            return Some(format!("reports not confirmed: {waiting:?}"));
        }
        None
    }

    /// Lets everything run without further trouble.
    ///
    /// # Panics
    /// When the link is not SYNCED with everything delivered within bounded steps and virtual time.
    pub(crate) fn calm(&mut self) {
        self.fail_dial = None;
        self.refuse_token = false;
        let end = self.now.plus(20 * 60 * 1_000);
        for _ in 0..5_000 {
            self.settle();
            if self.missing().is_none() && self.hub_work.is_empty() && self.answers.is_empty() {
                return self.check_end();
            }
            if self.client.state() == LinkState::Disconnected && self.retry_at.is_none() {
                self.feed(client::Input::Connect);
                continue;
            }
            let Some(at) = self.next_event().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            self.fire();
            self.check();
        }
        panic!("not done when calm: {:?}", self.missing());
    }

    pub(super) fn round(&mut self) {
        self.dial();
        for at in 0..self.conns.len() {
            self.up(at);
        }
        self.down();
        self.device_step();
        self.hub_step();
        self.hub_step();
        self.step(&Step::Notes(1));
        self.step(&Step::Answers(1));
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            let busy = self.dialing
                || !self.device_work.is_empty()
                || !self.hub_work.is_empty()
                || !self.answers.is_empty()
                || !self.notes.is_empty()
                || self
                    .conns
                    .iter()
                    .any(|c| !c.stalled && c.hub_open && !c.up.is_empty())
                || self.conn.is_some_and(|at| {
                    let c = &self.conns[at];
                    !c.stalled && (!c.down.is_empty() || !c.hub_open)
                });
            if !busy {
                return;
            }
            self.round();
            self.check();
        }
        panic!("the machines talk without end");
    }

    pub(super) fn check_end(&self) {
        if !self.hub_restored {
            let at_hub = self.reports_at_hub();
            let mut once = at_hub.clone();
            once.dedup();
            for id in &self.reported {
                assert!(at_hub.contains(id), "report {id} never reached the hub");
            }
        }
    }
}
