//! The link goes over to another transport: from the polls to a WebSocket that is open already, or, after a loss, from the
//! WebSocket to the polls. Whichever way, what was in flight on the old one is neither lost nor done twice.

use super::*;
use crate::wire::Hello;

#[derive(Debug, Clone, Copy)]
enum Way {
    /// To a transport that is open beside the old one.
    Over,
    /// To one that is dialled after the old one was lost.
    Anew,
}

const WAYS: [Way; 2] = [Way::Over, Way::Anew];

impl Rig {
    /// Goes over, up to the snapshot for `hello`; what was asked for on the way.
    fn leave(&mut self, way: Way) -> Vec<Output> {
        match way {
            Way::Over => {
                self.client.moved(self.now);
                self.take()
            }
            Way::Anew => {
                let mut out = self.feed(lost());
                out.extend(self.feed(Input::RetryDue));
                out.extend(self.feed(Input::TransportUp));
                out
            }
        }
    }

    /// Says `hello`; what it carries.
    fn say_hello(&mut self, last: Option<u64>, next_n: u64) -> Hello {
        self.client.hello(snapshot(last, next_n), self.now);
        match self.take().as_slice() {
            [Output::Send(DeviceFrame::Hello(hello))] => hello.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn welcomed(&mut self, report_n: u64) -> Vec<Output> {
        let welcome = Welcome {
            report_n,
            generation: 5,
            ..welcome(Resume::Continue)
        };
        self.frame(&HubFrame::Welcome(welcome))
    }
}

fn frames(out: &[Output]) -> Vec<&DeviceFrame> {
    out.iter()
        .filter_map(|o| match o {
            Output::Send(frame) => Some(frame),
            _ => None,
        })
        .collect()
}

fn stores(out: &[Output]) -> Vec<u64> {
    let seq = |o: &Output| match o {
        Output::Store { cursor, .. } => Some(cursor.seq.0),
        _ => None,
    };
    out.iter().filter_map(seq).collect()
}

fn reports(out: &[Output]) -> Vec<u64> {
    let n = |o: &Output| match o {
        Output::Send(DeviceFrame::Report(r)) => Some(r.n),
        _ => None,
    };
    out.iter().filter_map(n).collect()
}

fn rows(range: std::ops::RangeInclusive<u64>) -> Input {
    Input::Reports(range.map(|n| report(n, "x")).collect())
}

#[test]
fn acks_in_flight_envelopes_in_flight_and_late_commits() {
    for way in WAYS {
        let mut rig = Rig::synced();
        for seq in 6..=8 {
            rig.deliver(seq);
        }
        // The ack of 7 may never have arrived; 8 is being stored.
        assert_eq!(acks(&rig.store(7)), [7]);
        let left = rig.leave(way);
        assert_eq!(left.last(), Some(&Output::SendHello), "{way:?}");
        assert!(frames(&left).is_empty(), "{way:?}: {left:?}");
        assert_eq!(rig.state(), LinkState::Reconnecting);
        // The snapshot was read before the last commits.
        let hello = rig.say_hello(Some(6), 1);
        assert_eq!(hello.last.map(|c| c.seq), Some(Seq(7)), "{way:?}");
        assert_eq!(rig.store(8), [], "no ack before the hub has welcomed");
        assert!(
            acks(&rig.welcomed(0)).is_empty(),
            "nothing was delivered here"
        );
        // The hub goes on after 7, which hello said: 8 comes again, is not stored again, and is acked.
        let again = rig.deliver(8);
        assert_eq!((stores(&again), acks(&again)), (vec![], vec![8]), "{way:?}");
        let next = rig.deliver(9);
        assert_eq!((stores(&next), acks(&next)), (vec![9], vec![]), "{way:?}");
        assert_eq!(acks(&rig.store(9)), [9]);
        rig.frame(&HubFrame::Synced { seq: Seq(9) });
        assert_eq!(rig.state(), LinkState::Synced, "{way:?}");
        assert_eq!(rig.client.status().generation, Some(5));
    }
}

#[test]
fn reports_in_flight_confirmed_unconfirmed_and_loaded_late() {
    // Of 1 to 4 in flight the old transport confirmed one; so many had reached the hub.
    for way in WAYS {
        for reached in 1..=4 {
            let mut rig = Rig::synced();
            rig.feed(Input::OutboxGrew { next_n: 5 });
            assert_eq!(reports(&rig.feed(rows(1..=4))), [1, 2, 3, 4]);
            rig.frame(&HubFrame::ReportAck {
                n: 1,
                rejected: Vec::new(),
            });
            let left = rig.leave(way);
            assert!(frames(&left).is_empty(), "{way:?}: {left:?}");
            // Rows that were asked for on the old one, and a row that is new.
            assert_eq!(rig.feed(rows(5..=5)), [], "{way:?}");
            assert_eq!(rig.feed(Input::OutboxGrew { next_n: 7 }), []);
            let hello = rig.say_hello(None, 5);
            assert_eq!(
                hello.outbox.next_n, 7,
                "what was told wins over what was read"
            );
            assert_eq!(rig.feed(rows(5..=6)), [], "{way:?}");
            let out = rig.welcomed(reached);
            let pruned = Output::PruneReports {
                through_n: reached,
                rejected: Vec::new(),
            };
            assert!(out.contains(&pruned), "{way:?}: {out:?}");
            let load = Output::LoadReports {
                after_n: reached,
                limit: 64,
            };
            assert_eq!(out.last(), Some(&load), "{way:?}");
            let sent = reports(&rig.feed(rows(reached + 1..=6)));
            let rest: Vec<_> = (reached + 1..=6).collect();
            assert_eq!(sent, rest, "once each, in order");
        }
    }
}

#[test]
fn what_is_told_on_the_way_follows_the_welcome() {
    for way in WAYS {
        let mut rig = Rig::synced();
        rig.leave(way);
        assert_eq!(rig.feed(Input::Capacity(1)), []);
        assert_eq!(
            rig.feed(Input::Token("late".into())),
            [],
            "each begins its own"
        );
        rig.say_hello(Some(5), 1);
        assert_eq!(rig.feed(Input::Capacity(0)), []);
        let out = rig.welcomed(0);
        assert_eq!(
            frames(&out),
            [&DeviceFrame::Capacity { free: 0 }],
            "{way:?}"
        );
    }
}

#[test]
fn what_was_not_carried_out_yet_does_not_reach_the_new_transport_before_hello() {
    let mut rig = Rig::synced();
    rig.client.handle(Input::Capacity(1), rig.now);
    rig.client.handle(Input::OutboxGrew { next_n: 2 }, rig.now);
    rig.client.handle(rows(1..=1), rig.now);
    rig.client.moved(rig.now);
    let out = rig.take();
    assert!(frames(&out).is_empty(), "{out:?}");
    assert_eq!(out.last(), Some(&Output::SendHello));
    rig.say_hello(Some(5), 2);
    rig.welcomed(0);
    assert_eq!(reports(&rig.feed(rows(1..=1))), [1], "it is said again");
}

#[test]
fn nothing_moves_while_no_connection_is_open() {
    let waiting = || {
        let mut rig = Rig::synced();
        rig.feed(lost());
        rig
    };
    let opening = || {
        let mut rig = Rig::dialing();
        rig.feed(Input::TransportUp);
        rig
    };
    let stopped = || {
        let mut rig = Rig::synced();
        rig.feed(Input::Shutdown);
        rig
    };
    let moving = || {
        let mut rig = Rig::synced();
        rig.leave(Way::Over);
        rig
    };
    let phases: [(&str, Rig); 7] = [
        ("idle", Rig::new()),
        ("waiting", waiting()),
        ("dialing", Rig::dialing()),
        ("opening", opening()),
        ("greeted", Rig::greeted()),
        ("stopped", stopped()),
        ("moving", moving()),
    ];
    for (phase, mut rig) in phases {
        let before = (rig.client.status(), rig.client.poll_timeout());
        rig.client.moved(rig.now);
        assert_eq!(rig.take(), [], "{phase}");
        let after = (rig.client.status(), rig.client.poll_timeout());
        assert_eq!(before, after, "{phase}");
    }
}

#[test]
fn going_over_is_no_failure_and_a_new_transport_that_says_nothing_is_one() {
    let mut rig = Rig::synced();
    rig.pass(10_000);
    let left = rig.leave(Way::Over);
    assert_eq!((armed(&left), close_code(&left)), (None, None));
    let cause = rig.client.status().cause;
    assert!(matches!(cause, Some(Cause::Lost { detail }) if detail.contains("going over")));
    rig.say_hello(Some(5), 1);
    let silent = rig.pass(10_000);
    assert_eq!(close_code(&silent), Some(CloseCode::Heartbeat));
    assert_eq!(
        armed(&silent),
        Some(Retry::Soon { within_ms: 1_000 }),
        "the first drop, however often the link went over"
    );
    // In the middle of a replay, too.
    let mut rig = Rig::open();
    assert_eq!(rig.leave(Way::Over).last(), Some(&Output::SendHello));
    assert_eq!(
        rig.state(),
        LinkState::Handshake,
        "it was not in sync before"
    );
}
