use super::*;
use crate::wire::RejectedReport;

fn sent(out: &[Output]) -> Vec<u64> {
    out.iter()
        .filter_map(|o| match o {
            Output::Send(DeviceFrame::Report(r)) => Some(r.n),
            _ => None,
        })
        .collect()
}

fn load(out: &[Output]) -> Option<(u64, u32)> {
    out.iter().find_map(|o| match o {
        Output::LoadReports { after_n, limit } => Some((*after_n, *limit)),
        _ => None,
    })
}

fn rows(range: std::ops::RangeInclusive<u64>) -> Input {
    Input::Reports(range.map(|n| report(n, "x")).collect())
}

fn report_ack(n: u64) -> HubFrame {
    HubFrame::ReportAck {
        n,
        rejected: vec![],
    }
}

#[test]
fn an_ack_follows_the_commit_and_several_commits_share_one() {
    let mut rig = Rig::synced();
    assert_eq!(acks(&rig.deliver(6)), [] as [u64; 0]);
    rig.deliver(8);
    for seq in [6, 8] {
        rig.client.handle(
            Input::Stored {
                epoch: EPOCH,
                seq: Seq(seq),
            },
            rig.now,
        );
    }
    assert_eq!(acks(&rig.take()), [8]);
}

#[test]
fn a_duplicate_is_not_stored_but_acked_again() {
    let mut rig = Rig::synced();
    rig.deliver(6);
    rig.store(6);
    let out = rig.deliver(6);
    assert_eq!(acks(&out), [6]);
    assert!(!out.iter().any(|o| matches!(o, Output::Store { .. })));
}

#[test]
fn a_commit_from_an_older_connection_is_acked_only_once_this_one_delivered_it() {
    let mut rig = Rig::synced();
    rig.deliver(6);
    rig.redial(Some(5), 1);
    rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    assert!(
        acks(&rig.store(6)).is_empty(),
        "the hub has not sent it here"
    );
    assert_eq!(acks(&rig.deliver(6)), [6]);
}

#[test]
fn hello_never_stands_behind_what_the_store_told() {
    let mut rig = Rig::synced();
    rig.deliver(6);
    rig.feed(lost());
    rig.feed(Input::RetryDue);
    rig.feed(Input::TransportUp);
    rig.store(6);
    rig.client.hello(snapshot(Some(5), 1), rig.now);
    let out = rig.take();
    let Some(Output::Send(DeviceFrame::Hello(hello))) = out.first() else {
        panic!("{out:?}");
    };
    assert_eq!(hello.last.map(|c| c.seq), Some(Seq(6)));
}

#[test]
fn a_reset_forgets_the_cursor_before_the_first_store() {
    let mut rig = Rig::greeted();
    let other = InstanceId::from_u128(0xf);
    let out = rig.frame(&HubFrame::Welcome(Welcome {
        epoch: other,
        ..welcome(Resume::Reset)
    }));
    assert_eq!(out.first(), Some(&Output::ResetCursor { epoch: other }));
    let out = rig.deliver(1);
    assert!(
        matches!(out.as_slice(), [Output::Store { cursor, .. }] if *cursor == Cursor { epoch: other, seq: Seq(1) })
    );
    assert!(acks(&rig.store(5)).is_empty(), "a commit of the old life");
    let out = rig.feed(Input::Stored {
        epoch: other,
        seq: Seq(1),
    });
    assert_eq!(acks(&out), [1]);
}

#[test]
fn a_hub_that_overruns_its_own_window_is_closed() {
    let mut rig = Rig::synced();
    for seq in 6..10 {
        assert_eq!(close_code(&rig.deliver(seq)), None);
    }
    assert_eq!(close_code(&rig.deliver(10)), Some(CloseCode::Protocol));
}

#[test]
fn reports_go_in_order_with_at_most_64_in_flight_and_are_pruned_when_confirmed() {
    let mut rig = Rig::dialing();
    rig.greet(Some(5), 101);
    let out = rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    assert_eq!(load(&out), Some((0, 64)));
    let out = rig.feed(rows(1..=64));
    assert_eq!(sent(&out), (1..=64).collect::<Vec<_>>());
    assert_eq!(load(&out), None);
    let out = rig.frame(&HubFrame::ReportAck {
        n: 40,
        rejected: vec![RejectedReport {
            n: 3,
            code: "invalid_field".into(),
        }],
    });
    assert!(matches!(
        out.first(),
        Some(Output::PruneReports { through_n: 40, rejected }) if rejected.len() == 1
    ));
    assert_eq!(load(&out), Some((64, 40)));
    let out = rig.feed(rows(65..=100));
    assert_eq!(sent(&out), (65..=100).collect::<Vec<_>>());
    rig.frame(&report_ack(100));
    assert_eq!(
        load(&rig.feed(Input::OutboxGrew { next_n: 102 })),
        Some((100, 64))
    );
}

#[test]
fn reports_are_sent_again_after_a_reconnect_from_where_the_hub_stands() {
    let mut rig = Rig::dialing();
    rig.greet(Some(5), 11);
    rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    rig.feed(rows(1..=10));
    rig.redial(Some(5), 11);
    let out = rig.frame(&HubFrame::Welcome(Welcome {
        report_n: 4,
        ..welcome(Resume::Continue)
    }));
    assert!(out.contains(&Output::PruneReports {
        through_n: 4,
        rejected: vec![]
    }));
    assert_eq!(load(&out), Some((4, 64)));
    // The answer to a load of the old connection comes first, then the right one.
    assert_eq!(sent(&rig.feed(rows(1..=6))), [5, 6]);
    assert_eq!(sent(&rig.feed(rows(5..=10))), [7, 8, 9, 10]);
}

#[test]
fn a_hub_restored_to_an_older_state_gets_what_the_outbox_still_has() {
    let mut rig = Rig::dialing();
    rig.greet(Some(5), 12);
    rig.frame(&HubFrame::Welcome(Welcome {
        report_n: 3,
        ..welcome(Resume::Continue)
    }));
    assert_eq!(
        sent(&rig.feed(rows(10..=11))),
        [10, 11],
        "the gap is before everything in flight"
    );
}

#[test]
fn an_outbox_older_than_the_hub_knows_is_renumbered_and_loses_nothing() {
    let mut rig = Rig::dialing();
    rig.greet(Some(5), 3);
    let out = rig.frame(&HubFrame::Welcome(Welcome {
        report_n: 7,
        ..welcome(Resume::Continue)
    }));
    assert!(out.contains(&Output::RenumberOutbox { after_n: 7 }));
    assert!(!out.iter().any(|o| matches!(o, Output::PruneReports { .. })));
    assert_eq!(load(&out), None);
    assert_eq!(
        load(&rig.feed(Input::OutboxGrew { next_n: 10 })),
        Some((7, 64))
    );
    assert_eq!(sent(&rig.feed(rows(8..=9))), [8, 9]);
}

#[test]
fn a_report_too_large_for_a_frame_is_set_aside_when_first_in_line() {
    let mut rig = Rig::dialing();
    rig.greet(Some(5), 4);
    rig.frame(&HubFrame::Welcome(Welcome {
        max_frame_bytes: 2_000,
        ..welcome(Resume::Continue)
    }));
    let big = report(2, &"x".repeat(3_000));
    let batch = || Input::Reports(vec![big.clone(), report(3, "x")]);
    let out = rig.feed(Input::Reports(vec![
        report(1, "x"),
        big.clone(),
        report(3, "x"),
    ]));
    assert_eq!(sent(&out), [1]);
    assert_eq!(load(&out), None, "2 waits until 1 is confirmed");
    assert_eq!(load(&rig.frame(&report_ack(1))), Some((1, 64)));
    let out = rig.feed(batch());
    assert!(out.contains(&Output::PruneReports {
        through_n: 2,
        rejected: vec![RejectedReport {
            n: 2,
            code: "too_large".into()
        }]
    }));
    assert_eq!(sent(&out), [3]);
}

#[test]
fn the_credential_is_renewed_in_band_before_its_time_and_when_asked() {
    let mut rig = Rig::synced();
    let mut minted = 0;
    for _ in 0..60 {
        minted += rig
            .pass(10_000)
            .iter()
            .filter(|o| **o == Output::MintToken)
            .count();
        rig.feed(Input::Heard);
        if minted > 0 {
            break;
        }
    }
    assert_eq!((minted, rig.now), (1, Ts(601_000)));
    let out = rig.feed(Input::Token("jwt".into()));
    assert!(
        matches!(out.as_slice(), [Output::Send(DeviceFrame::Auth { token })] if token == "jwt")
    );
    rig.frame(&HubFrame::Reauth { within_s: 30 });
    assert!(rig.pass(0).contains(&Output::MintToken));
}

#[test]
fn capacity_told_during_the_handshake_follows_the_welcome() {
    let mut rig = Rig::greeted();
    assert!(rig.feed(Input::Capacity(1)).is_empty());
    let out = rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    assert!(out.contains(&Output::Send(DeviceFrame::Capacity { free: 1 })));
    let out = rig.feed(Input::Capacity(0));
    assert_eq!(out, [Output::Send(DeviceFrame::Capacity { free: 0 })]);
}

#[test]
fn a_directory_too_large_for_a_frame_is_cut_and_hello_still_goes_out() {
    let mut rig = Rig::dialing();
    rig.feed(Input::TransportUp);
    let mut snapshot = snapshot(None, 1);
    snapshot.projects = (0..6_000)
        .map(|n| ProjectInfo {
            name: crate::domain::ProjectName::new(format!("p{n}")).unwrap(),
            path: "/home/x/".repeat(30),
            enabled: true,
        })
        .collect();
    rig.client.hello(snapshot, rig.now);
    let out = rig.take();
    let Some(Output::Send(frame)) = out.first() else {
        panic!("no hello");
    };
    assert!(encode(frame).len() <= 1 << 20);
}
