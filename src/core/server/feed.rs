//! The mailbox on its way down: which rows to load, which to send, and when the backlog is done.
//!
//! `covered` is the place up to which everything was sent or needs no sending. A committed row is sent without a load
//! only when its predecessor is covered; otherwise the feed is `dirty` and the next load closes the gap. So a row can be
//! announced late, twice or not at all: each is sent once per connection, in order.

use std::collections::VecDeque;

use super::{Output, Row};
use crate::core::window::Flight;
use crate::domain::Seq;
use crate::wire::HubFrame;

#[derive(Debug)]
pub(super) struct Feed {
    flight: Flight,
    covered: Seq,
    acked: Seq,
    /// The mailbox's head at `hello`: the end of the backlog.
    backlog: Seq,
    synced: bool,
    loading: bool,
    /// There may be rows after `covered`.
    dirty: bool,
    /// The mailbox grew while a load was under way, which may or may not have seen it.
    grew: bool,
    /// The next row does not fit into the window: nothing is loaded before an ack makes room.
    full: bool,
}

impl Feed {
    pub(super) fn new(flight: Flight, start: Seq, backlog: Seq, head: Seq) -> Self {
        Self {
            flight,
            covered: start,
            acked: start,
            backlog,
            synced: false,
            loading: false,
            dirty: head > start,
            grew: false,
            full: false,
        }
    }

    /// The load that is due, if one is.
    pub(super) fn load(&mut self) -> Option<Output> {
        if self.loading || self.full || !self.dirty {
            return None;
        }
        let (limit, max_bytes) = self.flight.room()?;
        self.loading = true;
        self.grew = false;
        Some(Output::Load {
            after: self.covered,
            limit,
            max_bytes,
        })
    }

    pub(super) fn loaded(&mut self, rows: Vec<Row>, more: bool, out: &mut VecDeque<Output>) {
        if !self.loading {
            return;
        }
        self.loading = false;
        for row in rows {
            // A load gives one row at least, however little room there is.
            if row.seq > self.covered && !self.flight.fits(row.json.len() as u64) {
                self.full = true;
                break;
            }
            self.send(row, out);
        }
        self.dirty = more || self.full || self.grew;
        self.grew = false;
        if !(more || self.full) || self.covered >= self.backlog {
            self.finish_backlog(out);
        }
    }

    /// The mailbox grew up to `head`.
    pub(super) fn wake(&mut self, head: Seq) {
        if head > self.covered {
            self.dirty = true;
            self.grew = self.loading;
        }
    }

    /// A row was committed right after `prev`.
    pub(super) fn pushed(&mut self, prev: Seq, row: Row, out: &mut VecDeque<Output>) {
        let next = prev <= self.covered && !self.dirty && !self.loading;
        if next && row.seq > self.covered && self.flight.fits(row.json.len() as u64) {
            self.send(row, out);
        } else {
            self.wake(row.seq);
        }
    }

    /// Tells `synced` if nothing of the backlog is left; once.
    pub(super) fn finish_backlog(&mut self, out: &mut VecDeque<Output>) {
        if !std::mem::replace(&mut self.synced, true) {
            out.push_back(Output::Send(HubFrame::Synced { seq: self.covered }));
            out.push_back(Output::Synced);
        }
    }

    /// Takes an ack; true when it is news.
    ///
    /// # Errors
    /// When it is beyond what was sent.
    pub(super) fn ack(&mut self, seq: Seq) -> Result<bool, String> {
        if seq > self.covered {
            return Err(format!(
                "ack {} beyond the last delivery {}",
                seq.0, self.covered.0
            ));
        }
        if seq <= self.acked {
            return Ok(false);
        }
        self.acked = seq;
        self.flight.ack(seq);
        self.full = false;
        Ok(true)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flight.len()
    }

    fn send(&mut self, row: Row, out: &mut VecDeque<Output>) {
        if row.seq <= self.covered {
            return;
        }
        self.covered = row.seq;
        self.flight.push(row.seq, row.json.len() as u64);
        out.push_back(Output::Deliver(row));
    }
}
