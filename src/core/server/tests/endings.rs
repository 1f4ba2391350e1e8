use super::*;

#[test]
fn frames_at_the_wrong_time_are_a_protocol_error() {
    let ack = DeviceFrame::Ack { seq: Seq(0) };
    assert!(protocol(&Rig::new(4, 1_000).frame(&ack)));
    assert!(protocol(&Rig::admitting(4, None).frame(&ack)));
    assert!(protocol(&Rig::admitting(4, None).frame(&report(1))));
    assert!(protocol(&Rig::admitting(4, None).frame(&hello(None))));
    assert!(protocol(&Rig::open(4).frame(&hello(None))));
}

#[test]
fn texts_that_are_no_frames_close_with_their_code() {
    for bad in [
        "{",
        "",
        "[1]",
        r#"{"type":"ack","seq":-1}"#,
        r#"{"type":"ack"}"#,
    ] {
        assert_eq!(
            closes(&Rig::open(4).feed(Input::Text(bad.into()))),
            Some((CloseCode::Protocol, "malformed_json".into())),
            "{bad}"
        );
    }
    assert_eq!(
        closes(&Rig::open(4).feed(Input::Text("x".repeat((1 << 20) + 1)))),
        Some((CloseCode::TooLarge, "too_large".into()))
    );
    let mut rig = Rig::open(4);
    assert_eq!(rig.feed(Input::Text(r#"{"type":"hologram"}"#.into())), []);
    assert_eq!(rig.server.status().unknown_frames, 1);
}

#[test]
fn a_device_that_says_no_hello_is_closed() {
    let out = Rig::new(4, 1_000).pass(10_000);
    assert_eq!(
        closes(&out),
        Some((CloseCode::Heartbeat, "heartbeat_lost".into()))
    );
    let out = Rig::admitting(4, None).pass(10_000);
    assert_eq!(
        closes(&out),
        Some((CloseCode::GoingAway, "store_unavailable".into()))
    );
}

#[test]
fn a_refused_hello_is_told_and_closed() {
    let out = Rig::admitting(4, None).feed(Input::Refused {
        code: "key_held_elsewhere".into(),
        message: "laptop-2 holds this key".into(),
        close: CloseCode::Superseded,
    });
    assert_eq!(
        closes(&out),
        Some((CloseCode::Superseded, "key_held_elsewhere".into()))
    );
}

#[test]
fn a_silent_device_is_pinged_twice_and_closed() {
    let mut rig = Rig::open(4);
    let out = rig.pass(44_999);
    assert_eq!(out, [Output::Ping, Output::Ping]);
    assert_eq!(
        closes(&rig.pass(1)),
        Some((CloseCode::Heartbeat, "heartbeat_lost".into()))
    );
    let mut rig = Rig::open(4);
    for _ in 0..10 {
        rig.pass(30_000);
        rig.feed(Input::Heard);
    }
    assert!(!rig.server.is_closed());
}

/// Lets time pass on a connection whose device answers pings.
fn alive(rig: &mut Rig, seconds: u64) -> Vec<Output> {
    let mut out = Vec::new();
    for _ in 0..seconds / 10 {
        out.extend(rig.pass(10_000));
        rig.feed(Input::Heard);
    }
    out.retain(|o| *o != Output::Ping);
    out
}

#[test]
fn a_credential_is_asked_for_again_and_its_end_closes() {
    let mut rig = Rig::open(4);
    let out = alive(&mut rig, 890);
    assert_eq!(out, [Output::Send(HubFrame::Reauth { within_s: 60 })]);
    assert_eq!(
        closes(&alive(&mut rig, 10)),
        Some((CloseCode::Unauthenticated, "token_expired".into()))
    );
}

#[test]
fn a_renewed_credential_holds_as_long_again_and_a_bad_one_closes() {
    let auth = DeviceFrame::Auth {
        token: "jwt".into(),
    };
    let mut rig = Rig::open(4);
    alive(&mut rig, 600);
    assert_eq!(rig.frame(&auth), [Output::VerifyToken("jwt".into())]);
    rig.feed(Input::TokenAccepted);
    assert_eq!(alive(&mut rig, 830), []);
    rig.frame(&auth);
    let out = rig.feed(Input::TokenRefused {
        code: "token_invalid".into(),
    });
    assert_eq!(
        closes(&out),
        Some((CloseCode::Unauthenticated, "token_invalid".into()))
    );
}

#[test]
fn a_verdict_on_its_way_is_waited_for_at_the_end_of_the_credential() {
    let mut rig = Rig::open(4);
    alive(&mut rig, 890);
    rig.frame(&DeviceFrame::Auth {
        token: "jwt".into(),
    });
    assert_eq!(closes(&alive(&mut rig, 10)), None);
    rig.feed(Input::TokenAccepted);
    assert_eq!(closes(&alive(&mut rig, 100)), None);
}

#[test]
fn superseded_revoked_and_drained_connections_are_told_why() {
    let mut rig = Rig::open(4);
    assert_eq!(
        closes(&rig.feed(Input::Superseded)),
        Some((CloseCode::Superseded, "superseded".into()))
    );
    assert_eq!(rig.feed(Input::Revoked), [], "nothing follows on a close");
    assert_eq!(
        closes(&Rig::open(4).feed(Input::Revoked)),
        Some((CloseCode::Forbidden, "device_revoked".into()))
    );
    let out = Rig::open(4).feed(Input::Drain { after_ms: 2_500 });
    assert!(matches!(
        out.as_slice(),
        [
            Output::Send(HubFrame::Error { retry_after_s: Some(3), .. }),
            Output::Close { code: CloseCode::Restart, reason }
        ] if reason == "retry_after_ms=2500"
    ));
}

#[test]
fn free_slots_reach_the_shell() {
    let out = Rig::open(4).frame(&DeviceFrame::Capacity { free: 3 });
    assert_eq!(out, [Output::Capacity(3)]);
}
