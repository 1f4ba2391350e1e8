//! Reports on their way up: loaded in order, a bounded number in flight, each confirmed before it is pruned.
//!
//! `n` grows strictly. A number is skipped only while nothing is in flight, that is when everything before it is
//! confirmed: so a hub can tell a report that was set aside (too large for a frame) or pruned in an earlier life of
//! the hub's store from one that was lost on the way.

use std::collections::VecDeque;

use crate::domain::{Code, Report};
use crate::wire::{DeviceFrame, RejectedReport, encoded_len};

use super::Output;

/// The sending end of the outbox on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pump {
    /// The last number sent, confirmed or set aside.
    sent: u64,
    /// The number after the outbox's last row.
    next_n: u64,
    flight: VecDeque<u64>,
    window: usize,
    max_frame: usize,
    loading: bool,
    /// The next row has to wait until nothing is in flight.
    held: bool,
    /// The outbox had no row where one was expected; waits for it to grow.
    dry: bool,
}

impl Pump {
    /// Begins after `report_n`, the last report that the hub holds.
    pub(crate) fn new(report_n: u64, next_n: u64, window: usize, max_frame: usize) -> Self {
        Self {
            sent: report_n,
            next_n,
            flight: VecDeque::new(),
            window: window.max(1),
            max_frame,
            loading: false,
            held: false,
            dry: false,
        }
    }

    pub(crate) fn grew(&mut self, next_n: u64) {
        self.next_n = self.next_n.max(next_n);
        self.dry = false;
    }

    /// The load that is due, if one is.
    pub(crate) fn load(&mut self) -> Option<Output> {
        let free = self.window - self.flight.len().min(self.window);
        let ready = if self.held {
            self.flight.is_empty()
        } else {
            free >= self.window.div_ceil(2)
        };
        if self.loading || self.dry || !ready || self.sent.saturating_add(1) >= self.next_n {
            return None;
        }
        self.loading = true;
        self.held = false;
        Some(Output::LoadReports {
            after_n: self.sent,
            limit: u32::try_from(free).unwrap_or(u32::MAX),
        })
    }

    /// Takes loaded rows; rows of a load from an earlier connection are recognised by their numbers.
    pub(crate) fn rows(&mut self, rows: Vec<Report>, out: &mut VecDeque<Output>) {
        self.loading = false;
        self.dry = rows.is_empty();
        for report in rows {
            let n = report.n;
            if n <= self.sent {
                continue;
            }
            if self.flight.len() >= self.window {
                break;
            }
            let frame = DeviceFrame::Report(report);
            let too_large = encoded_len(&frame) > self.max_frame;
            if (too_large || n != self.sent.saturating_add(1)) && !self.flight.is_empty() {
                self.held = true;
                break;
            }
            self.sent = n;
            if too_large {
                out.push_back(Output::PruneReports {
                    through_n: n,
                    rejected: vec![RejectedReport {
                        n,
                        code: Code::TooLarge.as_str().to_owned(),
                    }],
                });
            } else {
                self.flight.push_back(n);
                out.push_back(Output::Send(frame));
            }
        }
    }

    /// Takes a confirmation.
    ///
    /// # Errors
    /// When it confirms what was never sent.
    pub(crate) fn confirmed(
        &mut self,
        n: u64,
        rejected: Vec<RejectedReport>,
        out: &mut VecDeque<Output>,
    ) -> Result<(), String> {
        if n > self.sent {
            return Err(format!(
                "report_ack {n}, but {} is the last sent",
                self.sent
            ));
        }
        let Some(first) = self.flight.front().copied().filter(|first| *first <= n) else {
            return Ok(());
        };
        while self.flight.front().is_some_and(|f| *f <= n) {
            self.flight.pop_front();
        }
        out.push_back(Output::PruneReports {
            through_n: n,
            rejected: rejected
                .into_iter()
                .filter(|r| (first..=n).contains(&r.n))
                .collect(),
        });
        Ok(())
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.flight.len()
    }
}
