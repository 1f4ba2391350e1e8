use super::*;

fn network() -> Input {
    Input::TransportFailed(DialFailure::Network {
        detail: "refused".into(),
    })
}

fn edge(status: u16, retry_after_s: Option<u64>) -> Input {
    Input::TransportFailed(DialFailure::Edge {
        status,
        retry_after_s,
    })
}

fn proxy(status: u16, retry_after_s: Option<u64>) -> Input {
    Input::TransportFailed(DialFailure::Proxy {
        status,
        retry_after_s,
        detail: "the proxy http://p:1 refused".into(),
    })
}

/// Feeds the failure of each dial in turn and tells the waits that follow.
fn waits(rig: &mut Rig, times: usize, failure: &dyn Fn() -> Input) -> Vec<Retry> {
    (0..times)
        .map(|_| {
            let out = rig.feed(failure());
            rig.feed(Input::RetryDue);
            armed(&out).unwrap()
        })
        .collect()
}

#[test]
fn a_network_drop_is_retried_at_once_three_times_then_exponentially() {
    let mut rig = Rig::dialing();
    let soon = Retry::Soon { within_ms: 1_000 };
    let exponential = |step| Retry::Exponential {
        initial_ms: 2_000,
        max_ms: 120_000,
        step,
    };
    assert_eq!(
        waits(&mut rig, 5, &network),
        [soon, soon, soon, exponential(0), exponential(1)]
    );
}

#[test]
fn too_many_requests_wait_as_named_and_then_longer_each_time() {
    let mut rig = Rig::dialing();
    let waits = waits(&mut rig, 3, &|| edge(429, Some(7)));
    let named = |spread_ms| Retry::Named {
        after_ms: 7_000,
        spread_ms,
    };
    assert_eq!(waits, [named(2_000), named(4_000), named(8_000)]);

    let mut rig = Rig::dialing();
    assert!(matches!(
        armed(&rig.feed(edge(429, None))),
        Some(Retry::Exponential { step: 0, .. })
    ));
    let mut rig = Rig::synced();
    rig.frame(&HubFrame::Error {
        code: "rate_limited".into(),
        message: "slow down".into(),
        retry_after_s: Some(9),
    });
    assert!(matches!(
        armed(&rig.feed(closed(Some(4429), ""))),
        Some(Retry::Named {
            after_ms: 9_000,
            ..
        })
    ));
}

#[test]
fn a_failing_hub_is_retried_linearly() {
    let mut rig = Rig::dialing();
    let linear = |step| Retry::Linear {
        unit_ms: 2_000,
        max_ms: 60_000,
        step,
    };
    assert_eq!(
        waits(&mut rig, 2, &|| edge(502, None)),
        [linear(0), linear(1)]
    );
    assert_eq!(
        armed(&rig.feed(refused(Code::StoreUnavailable))),
        Some(linear(2))
    );
}

#[test]
fn an_edge_block_or_an_unknown_code_is_retried_and_never_final() {
    for status in [403, 404, 426, 302, 200] {
        let mut rig = Rig::dialing();
        assert!(matches!(
            armed(&rig.feed(edge(status, None))),
            Some(Retry::Exponential { .. })
        ));
    }
    let mut rig = Rig::dialing();
    let out = rig.feed(Input::TransportFailed(DialFailure::Refused {
        code: "moon_phase".into(),
        message: "later".into(),
        hub_offset_ms: None,
        retry_after_s: None,
    }));
    assert!(armed(&out).is_some());
}

#[test]
fn a_planned_restart_is_waited_for_inside_the_window_the_hub_named() {
    let mut rig = Rig::synced();
    assert_eq!(
        armed(&rig.feed(closed(Some(1012), "retry_after_ms=2500"))),
        Some(Retry::Named {
            after_ms: 2_500,
            spread_ms: 2_500
        })
    );
    let mut rig = Rig::synced();
    rig.frame(&HubFrame::Error {
        code: "going_away".into(),
        message: "restart".into(),
        retry_after_s: Some(3),
    });
    assert_eq!(
        armed(&rig.feed(closed(Some(1001), ""))),
        Some(Retry::Named {
            after_ms: 3_000,
            spread_ms: 3_000
        })
    );
    let mut rig = Rig::synced();
    let out = rig.feed(closed(Some(1012), "retry_after_ms=99999999999999999999"));
    assert!(armed(&out).is_some(), "an absurd window is no window");
}

#[test]
fn clock_skew_is_redialled_with_the_offset_a_bounded_number_of_times() {
    let skew = |offset| {
        Input::TransportFailed(DialFailure::Refused {
            code: "clock_skew".into(),
            message: "your clock".into(),
            hub_offset_ms: Some(offset),
            retry_after_s: None,
        })
    };
    let mut rig = Rig::dialing();
    let out = rig.feed(skew(-90_000));
    assert!(out.contains(&Output::Dial {
        hub_offset_ms: -90_000
    }));
    assert!(dials(&rig.feed(skew(1))) && dials(&rig.feed(skew(2))));
    let out = rig.feed(skew(3));
    assert!(!dials(&out) && armed(&out).is_none());
    assert_eq!(fatal(&rig).as_deref(), Some("clock_skew"));
}

#[test]
fn an_expired_credential_is_dialled_once_more_with_a_fresh_one() {
    let mut rig = Rig::dialing();
    assert!(dials(&rig.feed(refused(Code::TokenExpired))));
    let out = rig.feed(refused(Code::TokenExpired));
    assert!(!dials(&out) && armed(&out).is_none());
    assert_eq!(fatal(&rig).as_deref(), Some("token_expired"));

    let mut rig = Rig::synced();
    let out = rig.feed(closed(Some(4401), "token_expired"));
    assert!(dials(&out));
    assert_eq!(rig.state(), LinkState::Reconnecting);
    let mut rig = Rig::synced();
    assert!(!dials(&rig.feed(closed(Some(4401), "token_revoked"))));
    assert_eq!(fatal(&rig).as_deref(), Some("token_revoked"));
}

#[test]
fn a_protocol_close_is_retried_with_growing_waits() {
    let mut rig = Rig::synced();
    for step in 0..4 {
        let out = rig.feed(closed(Some(4400), "protocol_error"));
        assert!(
            matches!(armed(&out), Some(Retry::Exponential { step: s, .. }) if s == step),
            "{out:?}"
        );
        rig.feed(Input::RetryDue);
        rig.greet(Some(5), 1);
        rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
        rig.sync();
    }
}

#[test]
fn failures_are_forgotten_only_after_a_minute_of_synced() {
    let mut rig = Rig::synced();
    for n in 0..4 {
        rig.pass(59_999 * u64::from(n == 99));
        let out = rig.feed(lost());
        let soon = matches!(armed(&out), Some(Retry::Soon { .. }));
        assert_eq!(
            soon,
            n < 3,
            "a hub that accepts and drops makes no hot loop"
        );
        rig.feed(Input::RetryDue);
        rig.greet(Some(5), 1);
        rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
        rig.sync();
    }
    assert_eq!(rig.client.status().attempt, 5);
    for _ in 0..6 {
        rig.pass(10_000);
        rig.feed(Input::Heard);
    }
    assert_eq!(rig.client.status().attempt, 0);
    assert!(matches!(armed(&rig.feed(lost())), Some(Retry::Soon { .. })));
}

#[test]
fn frames_out_of_order_close_with_4400_and_are_retried() {
    let deliver = || HubFrame::Deliver {
        seq: Seq(6),
        envelope: Box::new(envelope(6)),
    };
    let hello = || HubFrame::Welcome(welcome(Resume::Continue));
    let synced = || HubFrame::Synced { seq: Seq(5) };
    let cases: [(&dyn Fn() -> Rig, HubFrame); 8] = [
        (&Rig::open, hello()),
        (&Rig::synced, hello()),
        (&Rig::greeted, deliver()),
        (&Rig::greeted, synced()),
        (&Rig::synced, synced()),
        (
            &Rig::synced,
            HubFrame::Deliver {
                seq: Seq(0),
                envelope: Box::new(envelope(6)),
            },
        ),
        (
            &Rig::synced,
            HubFrame::ReportAck {
                n: 1,
                rejected: vec![],
            },
        ),
        (
            &Rig::greeted,
            HubFrame::Welcome(Welcome {
                epoch: InstanceId::from_u128(99),
                ..welcome(Resume::Continue)
            }),
        ),
    ];
    for (make, frame) in cases {
        let mut rig = make();
        let out = rig.frame(&frame);
        assert_eq!(close_code(&out), Some(CloseCode::Protocol), "{frame:?}");
        assert!(armed(&out).is_some());
        assert!(!out.iter().any(|o| matches!(o, Output::Store { .. })));
    }
    let mut rig = Rig::dialing();
    rig.feed(Input::TransportUp);
    let out = rig.frame(&hello());
    assert_eq!(close_code(&out), Some(CloseCode::Protocol), "before hello");
}

#[test]
fn texts_that_are_no_frames_close_and_are_counted() {
    for bad in [
        "",
        "{",
        "[]",
        "{\"type\":\"deliver\",\"seq\":\"x\"}",
        "\u{0}",
    ] {
        let mut rig = Rig::synced();
        let out = rig.feed(Input::Text(bad.into()));
        assert_eq!(close_code(&out), Some(CloseCode::Protocol));
        assert_eq!(rig.client.status().malformed, 1);
    }
    let mut rig = Rig::synced();
    let out = rig.feed(Input::Text("x".repeat((1 << 20) + 1)));
    assert_eq!(close_code(&out), Some(CloseCode::TooLarge));
}

fn unreadable(seq: u64, id: &str) -> Input {
    Input::Text(format!(
        r#"{{"type":"deliver","seq":{seq},"envelope":{{"id":{id},"kind":"task","priority":"yesterday"}}}}"#
    ))
}

#[test]
fn an_unreadable_envelope_with_a_name_is_refused_by_it_acked_and_the_link_goes_on() {
    let mut rig = Rig::synced();
    let id = EnvelopeId::from_u128(6);
    let out = rig.feed(unreadable(6, &format!("\"{id}\"")));
    let [
        Output::Refuse {
            cursor,
            id: refused,
            reason,
        },
    ] = out.as_slice()
    else {
        panic!("{out:?}")
    };
    assert_eq!((cursor.seq, *refused), (Seq(6), Some(id)));
    assert!(!reason.is_empty());
    assert!(matches!(rig.deliver(7).as_slice(), [Output::Store { .. }]));
    assert_eq!(acks(&rig.store(7)), [7]);
    assert_eq!(rig.state(), LinkState::Synced);
    let status = rig.client.status();
    assert_eq!((status.unreadable, status.malformed), (1, 0));
}

#[test]
fn an_unreadable_envelope_without_a_name_closes_three_times_with_growing_waits_and_is_passed_over_then()
 {
    let mut rig = Rig::synced();
    for step in 0..3 {
        let out = rig.feed(unreadable(6, "null"));
        assert_eq!(close_code(&out), Some(CloseCode::Protocol));
        assert!(
            matches!(armed(&out), Some(Retry::Exponential { step: s, .. }) if s == step),
            "no hot loop: {out:?}"
        );
        assert!(
            matches!(rig.client.status().cause, Some(Cause::Lost { detail }) if detail.contains("at 6"))
        );
        rig.feed(Input::RetryDue);
        rig.greet(Some(5), 1);
        rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
    }
    let out = rig.feed(unreadable(6, "7"));
    assert!(
        matches!(out.as_slice(), [Output::Refuse { id: None, .. }]),
        "{out:?}"
    );
    assert_eq!(acks(&rig.store(6)), [6]);
}

#[test]
fn what_a_later_hub_says_is_ignored_and_counted() {
    let mut rig = Rig::synced();
    assert!(
        rig.feed(Input::Text(r#"{"type":"hologram"}"#.into()))
            .is_empty()
    );
    assert_eq!(rig.client.status().unknown_frames, 1);
    let mut strange = envelope(6);
    strange.kind = EnvelopeKind::Other("dream".into());
    let out = rig.frame(&HubFrame::Deliver {
        seq: Seq(6),
        envelope: Box::new(strange),
    });
    assert!(matches!(out.as_slice(), [Output::Store { .. }]));
    assert_eq!(rig.client.status().unknown_kinds, 1);
    assert_eq!(rig.state(), LinkState::Synced);
}

#[test]
fn a_proxy_that_refuses_is_an_edge_and_one_that_cannot_reach_the_hub_is_the_network() {
    let mut rig = Rig::dialing();
    let exponential = waits(&mut rig, 2, &|| edge(403, None));
    for status in [401, 403, 407] {
        let mut rig = Rig::dialing();
        assert_eq!(waits(&mut rig, 2, &|| proxy(status, None)), exponential);
    }
    let mut rig = Rig::dialing();
    let soon = Retry::Soon { within_ms: 1_000 };
    for status in [502, 503, 504] {
        assert_eq!(waits(&mut rig, 1, &|| proxy(status, None)), [soon]);
    }
    let mut rig = Rig::dialing();
    let named = waits(&mut rig, 1, &|| proxy(503, Some(7)));
    assert!(
        matches!(
            named[..],
            [Retry::Named {
                after_ms: 7_000,
                ..
            }]
        ),
        "{named:?}"
    );
}

/// D7 (a): an upgrade that an edge answers with 403 or 426 is an edge's, not the hub's: retried, never final.
#[test]
fn an_upgrade_that_is_answered_with_403_or_426_is_blocked_by_an_edge() {
    for status in [403, 426] {
        let failure = DialFailure::Edge {
            status,
            retry_after_s: None,
        };
        assert_eq!(
            crate::core::retry::classify_dial(&failure),
            crate::core::retry::Failure::Edge
        );
    }
}
