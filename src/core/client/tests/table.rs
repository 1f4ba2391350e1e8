use super::*;

#[test]
fn disconnected_goes_connecting_on_start_connect_and_retry() {
    let mut rig = Rig::new();
    assert_eq!(rig.state(), LinkState::Disconnected);
    assert!(dials(&rig.feed(Input::Connect)));
    assert_eq!(rig.state(), LinkState::Connecting);
    let out = rig.feed(Input::TransportFailed(DialFailure::Network {
        detail: "refused".into(),
    }));
    assert_eq!(rig.state(), LinkState::Disconnected);
    assert!(armed(&out).is_some());
    assert!(dials(&rig.feed(Input::RetryDue)));
    assert_eq!(rig.state(), LinkState::Connecting);
    assert!(
        !dials(&rig.feed(Input::RetryDue)),
        "a late timer is ignored"
    );
}

#[test]
fn new_credentials_replace_an_armed_retry() {
    let mut rig = Rig::dialing();
    rig.feed(Input::TransportFailed(DialFailure::Network {
        detail: "refused".into(),
    }));
    let out = rig.feed(Input::Connect);
    assert!(out.contains(&Output::CancelRetry) && dials(&out), "{out:?}");
}

#[test]
fn connecting_goes_to_handshake_when_the_transport_is_up() {
    let mut rig = Rig::dialing();
    rig.feed(Input::TransportUp);
    assert_eq!(rig.state(), LinkState::Handshake);
}

#[test]
fn connecting_ends_with_a_cause_and_a_retry_when_nothing_answers() {
    let mut rig = Rig::dialing();
    let out = rig.pass(10_000);
    assert_eq!(
        close_code(&out),
        Some(CloseCode::GoingAway),
        "the dial is abandoned"
    );
    assert!(armed(&out).is_some());
    assert_eq!(rig.state(), LinkState::Disconnected);
    assert!(matches!(
        rig.client.status().cause,
        Some(Cause::Lost { .. })
    ));
}

#[test]
fn handshake_is_synced_once_the_backlog_is_announced_done_and_stored() {
    let mut rig = Rig::open();
    assert_eq!(rig.state(), LinkState::Handshake);
    assert!(matches!(rig.deliver(7).as_slice(), [Output::Store { .. }]));
    rig.frame(&HubFrame::Synced { seq: Seq(7) });
    assert_eq!(rig.state(), LinkState::Handshake, "7 is not durable yet");
    let out = rig.store(7);
    assert_eq!(rig.state(), LinkState::Synced);
    assert_eq!(acks(&out), [7]);
}

#[test]
fn handshake_rejected_by_the_hub_is_disconnected_without_a_blind_retry() {
    for code in [
        Code::TokenInvalid,
        Code::DeviceRevoked,
        Code::VersionUnsupported,
        Code::KeyHeldElsewhere,
    ] {
        let mut rig = Rig::dialing();
        let out = rig.feed(refused(code));
        assert_eq!(armed(&out), None, "{code}");
        assert_eq!(rig.state(), LinkState::Disconnected);
        assert_eq!(fatal(&rig).as_deref(), Some(code.as_str()));

        let mut rig = Rig::greeted();
        rig.frame(&HubFrame::Error {
            code: code.as_str().into(),
            message: "no".into(),
            retry_after_s: None,
        });
        let close = match code.http_status() {
            401 => 4401,
            403 => 4403,
            409 => 4409,
            _ => continue,
        };
        let out = rig.feed(closed(Some(close), ""));
        assert_eq!(armed(&out), None, "{code}");
        assert_eq!(rig.state(), LinkState::Disconnected);
        assert_eq!(fatal(&rig).as_deref(), Some(code.as_str()));
    }
}

#[test]
fn handshake_lost_or_silent_is_disconnected_with_a_retry() {
    let mut rig = Rig::greeted();
    assert!(armed(&rig.feed(lost())).is_some());
    assert_eq!(rig.state(), LinkState::Disconnected);

    let mut rig = Rig::greeted();
    let out = rig.pass(10_000);
    assert!(close_code(&out).is_some() && armed(&out).is_some());
    assert_eq!(rig.state(), LinkState::Disconnected);
    assert_eq!(rig.client.status().cause, Some(Cause::Silent));

    let mut rig = Rig::dialing();
    rig.feed(Input::TransportUp);
    let out = rig.pass(10_000);
    assert!(armed(&out).is_some(), "the shell never read the snapshot");
}

#[test]
fn a_replay_that_stands_still_is_lost_although_pings_are_answered() {
    let mut rig = Rig::open();
    let mut out = Vec::new();
    for _ in 0..10 {
        out.extend(rig.pass(5_000));
        rig.feed(Input::Heard);
    }
    assert!(armed(&out).is_some());
    assert_eq!(rig.state(), LinkState::Disconnected);
}

#[test]
fn synced_goes_reconnecting_on_close_and_on_a_dead_heartbeat() {
    let mut rig = Rig::synced();
    assert!(armed(&rig.feed(lost())).is_some());
    assert_eq!(rig.state(), LinkState::Reconnecting);

    let mut rig = Rig::synced();
    let out = rig.pass(44_999);
    assert_eq!(
        out.iter().filter(|o| matches!(o, Output::Ping(_))).count(),
        2
    );
    assert_eq!(rig.state(), LinkState::Synced);
    let out = rig.pass(1);
    assert_eq!(close_code(&out), Some(CloseCode::Heartbeat));
    assert_eq!(rig.state(), LinkState::Reconnecting);
    assert_eq!(rig.client.status().cause, Some(Cause::Silent));
}

/// Wakes the machine; gives the number of the ping that asks whether the hub is still there.
fn woke(rig: &mut Rig) -> u64 {
    match rig.feed(Input::Woke).as_slice() {
        [Output::Ping(number)] => *number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wake_from_sleep_pings_at_once_and_that_pong_keeps_the_link() {
    let mut rig = Rig::synced();
    let ping = woke(&mut rig);
    rig.feed(Input::Pong(ping));
    rig.pass(6_000);
    assert_eq!(rig.state(), LinkState::Synced);
}

#[test]
fn what_lay_in_the_buffers_does_not_answer_for_a_hub_that_forgot_the_link() {
    let mut rig = Rig::synced();
    let ping = woke(&mut rig);
    rig.feed(Input::Heard);
    rig.feed(Input::Pong(ping - 1));
    rig.deliver(7);
    let out = rig.pass(2_000);
    assert_eq!(close_code(&out), Some(CloseCode::Heartbeat));
    assert!(dials(&out), "at once, without a wait: {out:?}");
    assert_eq!(rig.state(), LinkState::Reconnecting);
}

#[test]
fn a_slow_link_that_still_delivers_after_a_wake_is_kept() {
    let mut rig = Rig::synced();
    woke(&mut rig);
    rig.deliver(7);
    rig.feed(Input::Drained);
    rig.pass(1_000);
    rig.deliver(8);
    rig.pass(6_000);
    assert_eq!(rig.state(), LinkState::Synced);
}

#[test]
fn a_link_that_slept_longer_than_a_dead_heartbeat_or_ends_while_it_is_doubted_is_redialled_at_once()
{
    let mut rig = Rig::synced();
    rig.now = rig.now.plus(60_000);
    assert!(dials(&rig.feed(Input::Woke)));
    assert_eq!(rig.state(), LinkState::Reconnecting);

    let mut rig = Rig::synced();
    woke(&mut rig);
    assert!(dials(&rig.feed(lost())));
    // A link that is lost without a sleep waits a little, so that a thousand of them do not come at once.
    assert!(!dials(&Rig::synced().feed(lost())));
}

#[test]
fn a_wake_from_sleep_does_not_wait_for_an_armed_retry_unless_the_peer_named_it() {
    let mut rig = Rig::synced();
    rig.feed(lost());
    let out = rig.feed(Input::Woke);
    assert!(out.contains(&Output::CancelRetry) && dials(&out));

    let mut rig = Rig::synced();
    rig.feed(closed(Some(4429), "retry_after_ms=9000"));
    assert!(!dials(&rig.feed(Input::Woke)));
}

#[test]
fn synced_goes_disconnected_on_disconnect_superseded_and_revoked() {
    let mut rig = Rig::synced();
    let out = rig.feed(Input::Disconnect);
    assert!(matches!(
        out.as_slice(),
        [
            Output::Send(DeviceFrame::Bye { .. }),
            Output::Close {
                code: CloseCode::Normal,
                ..
            },
            Output::State { .. }
        ]
    ));
    assert_eq!(rig.client.status().cause, Some(Cause::User));
    assert!(!dials(&rig.feed(Input::RetryDue)));
    for (close, code) in [(4409, Code::Superseded), (4403, Code::DeviceRevoked)] {
        let mut rig = Rig::synced();
        let out = rig.feed(closed(Some(close), ""));
        assert_eq!(armed(&out), None);
        assert_eq!(rig.state(), LinkState::Disconnected);
        assert_eq!(fatal(&rig).as_deref(), Some(code.as_str()));
    }
}

#[test]
fn reconnecting_stays_reconnecting_through_redials_until_synced() {
    let mut rig = Rig::synced();
    rig.feed(lost());
    rig.feed(Input::RetryDue);
    assert_eq!(rig.state(), LinkState::Reconnecting);
    rig.feed(Input::TransportFailed(DialFailure::Network {
        detail: "refused".into(),
    }));
    assert_eq!(rig.state(), LinkState::Reconnecting);
    rig.feed(Input::RetryDue);
    rig.greet(Some(5), 1);
    assert_eq!(rig.state(), LinkState::Reconnecting);
    rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    assert_eq!(rig.state(), LinkState::Reconnecting);
    rig.feed(lost());
    assert_eq!(
        rig.state(),
        LinkState::Reconnecting,
        "a failed replay is no news"
    );
    rig.feed(Input::RetryDue);
    rig.greet(Some(5), 1);
    rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    rig.sync();
}

#[test]
fn reconnecting_gives_up_after_reconnect_timeout_if_there_is_one() {
    let mut rig = Rig::with(ClientConfig {
        reconnect_timeout_ms: Some(60_000),
        ..ClientConfig::default()
    });
    rig.feed(Input::Connect);
    rig.greet(Some(5), 1);
    rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    rig.sync();
    rig.feed(lost());
    let out = rig.pass(59_999);
    assert_eq!(rig.state(), LinkState::Reconnecting, "{out:?}");
    let out = rig.pass(1);
    assert!(out.contains(&Output::CancelRetry));
    assert_eq!(rig.state(), LinkState::Disconnected);

    let mut rig = Rig::synced();
    rig.feed(lost());
    assert_eq!(rig.client.poll_timeout(), None, "default: never");
}

#[test]
fn reconnecting_goes_disconnected_on_a_fatal_cause() {
    let mut rig = Rig::synced();
    rig.feed(lost());
    rig.feed(Input::RetryDue);
    rig.feed(refused(Code::DeviceRevoked));
    assert_eq!(rig.state(), LinkState::Disconnected);
    assert_eq!(fatal(&rig).as_deref(), Some("device_revoked"));
}

#[test]
fn disconnect_and_shutdown_hold_from_every_state() {
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
    let makers: [&dyn Fn() -> Rig; 7] = [
        &Rig::new,
        &Rig::dialing,
        &opening,
        &Rig::greeted,
        &Rig::open,
        &Rig::synced,
        &waiting,
    ];
    for make in makers {
        for (input, cause) in [
            (Input::Disconnect, Cause::User),
            (Input::Shutdown, Cause::Shutdown),
        ] {
            let mut rig = make();
            rig.feed(input);
            assert_eq!(rig.state(), LinkState::Disconnected);
            assert_eq!(rig.client.status().cause, Some(cause.clone()));
            assert_eq!(rig.client.poll_timeout(), None);
            assert!(!dials(&rig.feed(Input::RetryDue)));
            let again = dials(&rig.feed(Input::Connect));
            assert_eq!(
                again,
                cause == Cause::User,
                "after a shutdown nothing starts"
            );
        }
    }
}
