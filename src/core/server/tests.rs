//! The hub's machine: window and load, acks, reports, credentials, and every frame at the wrong time.

use super::*;
use crate::domain::{Cursor, InstanceId, ReportKind, Ts};
use crate::wire::{DeviceFrame, OutboxPosition, Resume, encode};

mod endings;

const EPOCH: Epoch = InstanceId::from_u128(0xe);

fn row(seq: u64) -> Row {
    sized(seq, 10)
}

fn sized(seq: u64, bytes: usize) -> Row {
    Row {
        seq: Seq(seq),
        json: "x".repeat(bytes).into(),
    }
}

fn hello(last: Option<u64>) -> DeviceFrame {
    DeviceFrame::Hello(Hello {
        instance: InstanceId::from_u128(1),
        last: last.map(|seq| Cursor {
            epoch: EPOCH,
            seq: Seq(seq),
        }),
        take_over: false,
        outbox: OutboxPosition {
            instance: InstanceId::from_u128(2),
            next_n: 1,
        },
        build: String::new(),
        os: String::new(),
        claude_version: None,
        capacity: 0,
        projects: Vec::new(),
        sessions: Vec::new(),
    })
}

fn report(n: u64) -> DeviceFrame {
    DeviceFrame::Report(Report {
        n,
        id: uuid::Uuid::from_u128(1),
        kind: ReportKind::Note,
        at: WallMs(0),
        body: serde_json::json!("x"),
    })
}

struct Rig {
    server: LinkServer,
    now: Ts,
}

impl Rig {
    fn new(window: u32, window_bytes: u64) -> Self {
        Self {
            server: LinkServer::new(
                ServerConfig {
                    window,
                    window_bytes,
                    ..ServerConfig::default()
                },
                Ts(0),
            ),
            now: Ts(0),
        }
    }

    fn take(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.server.poll_output()).collect()
    }

    fn feed(&mut self, input: Input) -> Vec<Output> {
        self.server.handle(input, self.now);
        self.take()
    }

    fn frame(&mut self, frame: &DeviceFrame) -> Vec<Output> {
        self.feed(Input::Text(encode(frame)))
    }

    fn ack(&mut self, seq: u64) -> Vec<Output> {
        self.frame(&DeviceFrame::Ack { seq: Seq(seq) })
    }

    fn pass(&mut self, ms: u64) -> Vec<Output> {
        let end = self.now.plus(ms);
        let mut out = Vec::new();
        while let Some((at, _)) = self.server.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.server.handle_timeout(self.now);
            out.extend(self.take());
        }
        self.now = end;
        out
    }

    fn admitting(window: u32, last: Option<u64>) -> Self {
        let mut rig = Self::new(window, 1_000);
        let out = rig.frame(&hello(last));
        assert!(matches!(out.as_slice(), [Output::Admit(_)]));
        rig
    }

    fn admit(&mut self, head: u64, report_n: u64) -> Vec<Output> {
        self.feed(Input::Admitted(Admission {
            epoch: EPOCH,
            head: Seq(head),
            generation: 1,
            now: WallMs(7),
            report_n,
        }))
    }

    /// Open, synced, everything up to 5 is at the device.
    fn open(window: u32) -> Self {
        let mut rig = Self::admitting(window, Some(5));
        rig.admit(5, 0);
        rig
    }

    fn push(&mut self, prev: u64, seq: u64) -> Vec<Output> {
        self.feed(Input::Pushed {
            prev: Seq(prev),
            row: row(seq),
        })
    }

    fn loaded(&mut self, seqs: &[u64], more: bool) -> Vec<Output> {
        self.feed(Input::Loaded {
            rows: seqs.iter().map(|s| row(*s)).collect(),
            more,
        })
    }
}

fn delivered(out: &[Output]) -> Vec<u64> {
    out.iter()
        .filter_map(|o| match o {
            Output::Deliver(row) => Some(row.seq.0),
            _ => None,
        })
        .collect()
}

fn load(out: &[Output]) -> Option<(u64, u32)> {
    out.iter().find_map(|o| match o {
        Output::Load { after, limit, .. } => Some((after.0, *limit)),
        _ => None,
    })
}

fn syncs(out: &[Output]) -> usize {
    out.iter().filter(|o| **o == Output::Synced).count()
}

/// The close code and the code of the error frame before it.
fn closes(out: &[Output]) -> Option<(CloseCode, String)> {
    match out {
        [
            ..,
            Output::Send(HubFrame::Error { code, .. }),
            Output::Close { code: close, .. },
        ] => Some((*close, code.clone())),
        [.., Output::Close { code, .. }] => Some((*code, String::new())),
        _ => None,
    }
}

fn protocol(out: &[Output]) -> bool {
    closes(out) == Some((CloseCode::Protocol, "protocol_error".into()))
}

#[test]
fn a_cursor_of_this_life_is_continued_and_synced_at_once_when_nothing_waits() {
    let mut rig = Rig::admitting(4, Some(5));
    let out = rig.admit(5, 0);
    assert!(
        matches!(&out[0], Output::Send(HubFrame::Welcome(w)) if w.resume == Resume::Continue && w.generation == 1)
    );
    assert_eq!(out[1], Output::Send(HubFrame::Synced { seq: Seq(5) }));
    assert_eq!((syncs(&out), load(&out)), (1, None));
}

#[test]
fn no_cursor_and_one_beyond_the_head_begin_anew() {
    for last in [None, Some(9)] {
        let mut rig = Rig::admitting(4, last);
        let out = rig.admit(5, 0);
        assert!(matches!(&out[0], Output::Send(HubFrame::Welcome(w)) if w.resume == Resume::Reset));
        assert_eq!(load(&out), Some((0, 4)));
    }
}

#[test]
fn the_backlog_is_loaded_window_by_window_and_synced_comes_once_after_it() {
    let mut rig = Rig::admitting(2, Some(0));
    assert_eq!(load(&rig.admit(7, 0)), Some((0, 2)));
    let out = rig.loaded(&[1, 3], true);
    assert_eq!(delivered(&out), [1, 3]);
    assert_eq!((load(&out), syncs(&out)), (None, 0), "the window is full");
    let out = rig.ack(3);
    assert_eq!(load(&out), Some((3, 2)));
    let out = rig.loaded(&[7], true);
    assert_eq!((delivered(&out), syncs(&out)), (vec![7], 1));
    let out = rig.loaded(&[], false);
    assert_eq!(syncs(&out), 0);
}

#[test]
fn synced_comes_although_the_last_envelopes_of_the_backlog_need_no_delivery() {
    let mut rig = Rig::admitting(2, Some(0));
    rig.admit(7, 0);
    let out = rig.loaded(&[4], false);
    assert_eq!(
        out,
        [
            Output::Deliver(row(4)),
            Output::Send(HubFrame::Synced { seq: Seq(4) }),
            Output::Synced
        ]
    );
}

#[test]
fn a_pushed_row_goes_out_without_a_load_when_it_is_the_next_one() {
    let mut rig = Rig::open(4);
    assert_eq!(rig.push(5, 6), [Output::Deliver(row(6))]);
    assert_eq!(rig.push(5, 6), [], "announced twice");
    assert_eq!(rig.push(6, 9), [Output::Deliver(row(9))]);
}

#[test]
fn a_gap_before_a_pushed_row_is_closed_by_a_load_and_nothing_is_sent_twice() {
    let mut rig = Rig::open(8);
    let out = rig.push(7, 8);
    assert_eq!((delivered(&out), load(&out)), (vec![], Some((5, 8))));
    assert_eq!(rig.push(8, 9), [], "a load is under way");
    let out = rig.loaded(&[6, 7, 8], false);
    assert_eq!(delivered(&out), [6, 7, 8]);
    assert_eq!(load(&out), Some((8, 5)), "9 came while loading");
    assert_eq!(delivered(&rig.loaded(&[9], false)), [9]);
    assert_eq!(rig.push(9, 10), [Output::Deliver(row(10))]);
}

#[test]
fn rows_that_come_while_the_hello_is_decided_are_not_lost() {
    let mut rig = Rig::admitting(4, Some(5));
    assert_eq!(rig.push(5, 6), []);
    assert_eq!(load(&rig.admit(5, 0)), Some((5, 4)));
    let mut rig = Rig::admitting(4, Some(5));
    rig.feed(Input::Wake { head: Seq(6) });
    assert_eq!(load(&rig.admit(5, 0)), Some((5, 4)));
}

#[test]
fn a_full_window_holds_pushed_rows_back_until_an_ack() {
    let mut rig = Rig::open(1);
    rig.push(5, 6);
    assert_eq!(rig.push(6, 7), []);
    let out = rig.ack(6);
    assert_eq!(load(&out), Some((6, 1)));
    assert!(out.contains(&Output::StoreAck { seq: Seq(6) }));

    let mut rig = Rig::open(100);
    let big = |prev, seq| Input::Pushed {
        prev: Seq(prev),
        row: sized(seq, 800),
    };
    assert_eq!(delivered(&rig.feed(big(5, 6))), [6]);
    assert_eq!(rig.feed(big(6, 7)), [], "bytes count as well");
}

#[test]
fn acks_are_cumulative_gathered_and_checked() {
    let mut rig = Rig::open(8);
    for seq in 6..10 {
        rig.push(seq - 1, seq);
    }
    assert_eq!(rig.ack(6), [Output::StoreAck { seq: Seq(6) }]);
    assert_eq!(rig.ack(7), [], "one commit at a time");
    assert_eq!(rig.ack(8), []);
    let out = rig.feed(Input::AckStored { seq: Seq(6) });
    assert_eq!(out, [Output::StoreAck { seq: Seq(8) }]);
    rig.feed(Input::AckStored { seq: Seq(8) });
    assert_eq!(rig.ack(7), [], "an older ack is ignored");
    assert!(protocol(&rig.ack(10)), "10 was never sent");
}

#[test]
fn an_ack_is_committed_even_when_the_connection_ends_with_it() {
    let mut rig = Rig::open(8);
    rig.push(5, 6);
    rig.push(6, 7);
    rig.ack(6);
    rig.ack(7);
    let out = rig.frame(&DeviceFrame::Bye {
        reason: "shutdown".into(),
    });
    assert_eq!(
        out,
        [
            Output::StoreAck { seq: Seq(7) },
            Output::Close {
                code: CloseCode::Normal,
                reason: "bye".into()
            }
        ]
    );
    assert!(rig.server.is_closed());
    assert_eq!(rig.push(7, 8), []);
}

#[test]
fn reports_are_committed_in_gathered_batches_and_confirmed_after_it() {
    let mut rig = Rig::open(8);
    assert!(matches!(rig.frame(&report(1)).as_slice(), [Output::StoreReports(r)] if r.len() == 1));
    assert_eq!(rig.frame(&report(2)), []);
    assert_eq!(rig.frame(&report(3)), []);
    let rejected = vec![RejectedReport {
        n: 1,
        code: "invalid_field".into(),
    }];
    let out = rig.feed(Input::ReportsStored {
        through_n: 1,
        rejected: rejected.clone(),
    });
    assert_eq!(out[0], Output::Send(HubFrame::ReportAck { n: 1, rejected }));
    assert!(matches!(&out[1], Output::StoreReports(r) if r.len() == 2));
}

#[test]
fn an_unreadable_report_keeps_its_place_and_says_nothing() {
    let mut rig = Rig::open(10);
    let out = rig.feed(Input::Text(
        r#"{"type":"report","n":1,"id":"no uuid","kind":1}"#.into(),
    ));
    let [Output::StoreReports(reports)] = out.as_slice() else {
        panic!("{out:?}")
    };
    assert!(reports[0].n == 1 && reports[0].read().is_err());
    let out = rig.feed(Input::Text(r#"{"type":"report","id":"no number"}"#.into()));
    assert!(
        out.iter().any(|o| matches!(o, Output::Close { .. })),
        "{out:?}"
    );
}

#[test]
fn a_report_sent_twice_is_confirmed_again_and_not_committed_again() {
    let mut rig = Rig::open(8);
    rig.frame(&report(1));
    assert_eq!(rig.frame(&report(1)), [], "its confirmation is on the way");
    rig.feed(Input::ReportsStored {
        through_n: 1,
        rejected: vec![],
    });
    let out = rig.frame(&report(1));
    assert_eq!(
        out,
        [Output::Send(HubFrame::ReportAck {
            n: 1,
            rejected: vec![]
        })]
    );
}

#[test]
fn a_number_is_skipped_only_while_no_report_is_in_flight() {
    let mut rig = Rig::admitting(4, Some(5));
    rig.admit(5, 3);
    assert!(matches!(
        rig.frame(&report(9)).as_slice(),
        [Output::StoreReports(_)]
    ));
    let out = rig.frame(&report(11));
    assert!(protocol(&out), "10 was lost on the way");
    for n in [0, u64::MAX] {
        assert!(protocol(&Rig::open(4).frame(&report(n))));
    }
}

#[test]
fn more_uncommitted_reports_than_allowed_slow_the_device_down() {
    let mut rig = Rig::open(8);
    let mut out = Vec::new();
    for n in 1..=300 {
        out = rig.frame(&report(n));
        if rig.server.is_closed() {
            break;
        }
    }
    assert_eq!(
        closes(&out),
        Some((CloseCode::SlowDown, "rate_limited".into()))
    );
    assert!(matches!(&out[0], Output::StoreReports(r) if r.len() == 257));
}
