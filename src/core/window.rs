//! The two ends of the delivery window: what the hub has in flight, and what the device has received, stored, acked.

use std::collections::VecDeque;

use crate::domain::Seq;

/// Reports that a device has in flight at most.
pub const REPORT_WINDOW: usize = 64;
/// Reports that a hub holds uncommitted for one connection before it closes it with 4429.
pub const REPORT_BACKLOG: usize = 4 * REPORT_WINDOW;

/// The device's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inbox {
    received: Seq,
    stored: Seq,
    acked: Seq,
    /// Received and not yet acked, in order.
    pending: VecDeque<Seq>,
    /// A duplicate came: the peer may have missed the ack.
    again: bool,
}

impl Inbox {
    /// Begins after `start`, which is durable here.
    pub(crate) const fn new(start: Seq) -> Self {
        Self {
            received: start,
            stored: start,
            acked: start,
            pending: VecDeque::new(),
            again: false,
        }
    }

    /// Takes note of a delivered envelope; false for a duplicate, which only has to be acked again.
    pub(crate) fn deliver(&mut self, seq: Seq) -> bool {
        if seq <= self.received {
            self.again = true;
            return false;
        }
        self.received = seq;
        self.pending.push_back(seq);
        true
    }

    /// Everything up to `seq` is durable.
    pub(crate) fn stored(&mut self, seq: Seq) {
        self.stored = self.stored.max(seq);
    }

    /// The ack that is due, if one is: never beyond what this connection delivered.
    pub(crate) fn take_ack(&mut self) -> Option<Seq> {
        let upto = self.stored.min(self.received);
        if upto > self.acked {
            self.acked = upto;
            while self.pending.front().is_some_and(|seq| *seq <= upto) {
                self.pending.pop_front();
            }
        } else if !self.again {
            return None;
        }
        self.again = false;
        Some(self.acked)
    }

    pub(crate) const fn received(&self) -> Seq {
        self.received
    }

    /// Whether everything up to `seq` is durable.
    pub(crate) fn has_stored(&self, seq: Seq) -> bool {
        self.stored >= seq
    }

    pub(crate) fn unacked(&self) -> usize {
        self.pending.len()
    }
}

/// The hub's end: at most so many envelopes and so many bytes in flight; one larger envelope may always go alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flight {
    max_rows: usize,
    max_bytes: u64,
    rows: VecDeque<(Seq, u64)>,
    bytes: u64,
}

impl Flight {
    pub(crate) fn new(max_rows: u32, max_bytes: u64) -> Self {
        Self {
            max_rows: (max_rows as usize).max(1),
            max_bytes: max_bytes.max(1),
            rows: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, seq: Seq, bytes: u64) {
        self.rows.push_back((seq, bytes));
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The device has everything up to `seq`.
    pub(crate) fn ack(&mut self, seq: Seq) {
        while let Some((first, bytes)) = self.rows.front().copied() {
            if first > seq {
                break;
            }
            self.bytes = self.bytes.saturating_sub(bytes);
            self.rows.pop_front();
        }
    }

    /// Whether one more row of this size may go out now.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.rows.is_empty()
            || (self.rows.len() < self.max_rows
                && self.bytes.saturating_add(bytes) <= self.max_bytes)
    }

    /// Rows and bytes worth loading now; `None` while so little is free that the load would be petty.
    pub(crate) fn room(&self) -> Option<(u32, u64)> {
        let rows = self.max_rows.saturating_sub(self.rows.len());
        let bytes = self.max_bytes.saturating_sub(self.bytes);
        let worth = self.rows.is_empty()
            || (rows >= (self.max_rows / 4).max(1) && bytes >= (self.max_bytes / 4).max(1));
        worth.then(|| (u32::try_from(rows).unwrap_or(u32::MAX), bytes))
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_never_runs_ahead_of_the_store_or_of_the_connection() {
        let mut inbox = Inbox::new(Seq(5));
        assert_eq!(inbox.take_ack(), None);
        assert!(inbox.deliver(Seq(7)) && inbox.deliver(Seq(9)));
        assert_eq!(inbox.take_ack(), None, "nothing is stored");
        inbox.stored(Seq(7));
        assert_eq!(inbox.take_ack(), Some(Seq(7)));
        assert_eq!(inbox.unacked(), 1);
        inbox.stored(Seq(20));
        assert_eq!(inbox.take_ack(), Some(Seq(9)), "20 was not delivered here");
        assert_eq!(inbox.take_ack(), None);
    }

    #[test]
    fn a_duplicate_is_acked_again_and_not_stored() {
        let mut inbox = Inbox::new(Seq(0));
        assert!(inbox.deliver(Seq(1)));
        inbox.stored(Seq(1));
        assert_eq!(inbox.take_ack(), Some(Seq(1)));
        assert!(!inbox.deliver(Seq(1)));
        assert_eq!(inbox.take_ack(), Some(Seq(1)));
        assert_eq!(inbox.take_ack(), None);
    }

    #[test]
    fn the_window_counts_envelopes_and_bytes_and_lets_one_large_one_through() {
        let mut flight = Flight::new(2, 100);
        assert!(flight.fits(1_000));
        flight.push(Seq(1), 1_000);
        assert!(!flight.fits(1));
        assert_eq!(flight.room(), None);
        flight.ack(Seq(1));
        flight.push(Seq(2), 10);
        assert!(flight.fits(90) && !flight.fits(91));
        assert_eq!(flight.room(), Some((1, 90)));
        flight.push(Seq(4), 10);
        assert!(!flight.fits(1));
        flight.ack(Seq(3));
        assert_eq!(flight.len(), 1);
    }
}
