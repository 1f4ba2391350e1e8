use super::*;

mod properties;

const NOW: WallMs = WallMs(1_000_000);
const SEEN: Sign = Sign::EvidenceSeen { turn_ended: false };
const HANDED_BUSY: Sign = Sign::HandedOver { busy: true };
const HANDED_IDLE: Sign = Sign::HandedOver { busy: false };

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(n)
}

fn claim(door: Door, transcript: bool) -> Claim {
    let parts = ClaimParts {
        id: ClaimId::from_u128(9),
        door,
        session: SessionId::from_u128(7),
        batch: vec![(id(1), Priority::Urgent), (id(2), Priority::Normal)],
        transcript: transcript.then(|| "/t.jsonl".to_owned()),
        offset: 10,
    };
    Claim::open(parts, true, NOW).0
}

/// Feeds signs at `NOW + ms` and gives the last effect.
fn feed(c: &mut Claim, signs: &[(i64, Sign)]) -> Effect {
    let mut last = Effect::default();
    for (ms, sign) in signs {
        last = c.on(*sign, NOW.plus(*ms));
    }
    last
}

fn idle_since(ms: i64) -> Sign {
    Sign::LeaseDue(Quiet::IdleSince(NOW.plus(ms)))
}

#[test]
fn a_claim_reports_each_step_to_the_sender() {
    let parts = ClaimParts {
        id: ClaimId::from_u128(9),
        door: Door::Hooks,
        session: SessionId::from_u128(7),
        batch: vec![(id(1), Priority::Low)],
        transcript: Some("/t".into()),
        offset: 0,
    };
    let (mut c, effect) = Claim::open(parts, false, NOW);
    assert_eq!(effect.receipts, [Stage::Claimed { door: Door::Hooks }]);
    assert_eq!(c.lease_until, NOW.plus(30_000));
    assert_eq!(c.nonce(), "00000000-0000-0000-0000-000000000009");
    assert_eq!(c.on(HANDED_BUSY, NOW).receipts, [Stage::HandedOver]);
    assert_eq!(c.lease_until, NOW.plus(60_000));
    assert_eq!(c.on(SEEN, NOW).receipts, [Stage::Seen]);
    assert!(!c.state.is_open(), "the lane is free once it was seen");
    assert_eq!(c.on(Sign::TurnEnded, NOW).receipts, [Stage::Done]);
    assert!(c.state.is_final());
}

#[test]
fn evidence_found_after_the_turn_is_seen_and_done_at_once() {
    let mut c = claim(Door::Hooks, true);
    c.on(HANDED_BUSY, NOW);
    c.on(Sign::TurnEnded, NOW);
    let effect = c.on(Sign::EvidenceSeen { turn_ended: true }, NOW);
    assert_eq!(effect.receipts, [Stage::Seen, Stage::Done]);
}

#[test]
fn a_turns_end_alone_is_no_evidence() {
    let mut c = claim(Door::Hooks, true);
    let effect = feed(&mut c, &[(0, HANDED_BUSY), (1, Sign::TurnEnded)]);
    assert_eq!(effect, Effect::default());
    assert_eq!(c.state, ClaimState::HandedOver);
    // From now on the session is idle.
    assert_eq!(c.lease_until, NOW.plus(1 + IDLE_EVIDENCE_MS));
}

#[test]
fn a_claim_that_was_never_handed_over_returns_at_its_lease() {
    for sign in [
        Sign::LeaseDue(Quiet::Busy),
        idle_since(0),
        Sign::OutputDiscarded,
        Sign::ProcessGone,
    ] {
        for transcript in [true, false] {
            let mut c = claim(Door::LocalApi, transcript);
            assert!(c.on(sign, NOW).requeue, "{sign:?}");
            assert_eq!(c.state, ClaimState::Returned);
        }
    }
}

#[test]
fn proof_of_non_delivery_returns_the_batch() {
    let mut gone = claim(Door::Inbox, true);
    assert!(feed(&mut gone, &[(0, HANDED_BUSY), (1, Sign::ProcessGone)]).requeue);
    let mut passed = claim(Door::Inbox, true);
    let boundary = Sign::TurnBoundaryWithoutNonce;
    assert!(feed(&mut passed, &[(0, HANDED_BUSY), (1, boundary)]).requeue);
    let mut discarded = claim(Door::Hooks, false);
    let signs = [(0, HANDED_BUSY), (1, Sign::OutputDiscarded)];
    assert!(feed(&mut discarded, &signs).requeue);
}

#[test]
fn an_idle_session_that_shows_nothing_for_five_seconds_did_not_get_it() {
    let mut c = claim(Door::Inbox, true);
    c.on(HANDED_IDLE, NOW);
    assert_eq!(c.lease_until, NOW.plus(5_000));
    assert!(!feed(&mut c, &[(4_999, idle_since(-9_000))]).requeue);
    assert_eq!(c.lease_until, NOW.plus(5_000));
    assert!(feed(&mut c, &[(5_000, idle_since(-9_000))]).requeue);
}

#[test]
fn idleness_is_counted_from_the_turns_end() {
    let mut c = claim(Door::Hooks, true);
    c.on(HANDED_BUSY, NOW);
    assert!(!feed(&mut c, &[(60_000, idle_since(58_000))]).requeue);
    assert_eq!(c.lease_until, NOW.plus(63_000));
    assert!(feed(&mut c, &[(63_000, idle_since(58_000))]).requeue);
}

#[test]
fn a_busy_session_is_waited_for() {
    let mut c = claim(Door::Inbox, true);
    c.on(HANDED_BUSY, NOW);
    for n in 1..20 {
        let effect = feed(&mut c, &[(n * 60_000, Sign::LeaseDue(Quiet::Busy))]);
        assert_eq!(effect, Effect::default());
        assert_eq!(c.lease_until, NOW.plus((n + 1) * 60_000));
    }
    assert_eq!(c.on(SEEN, NOW).receipts, [Stage::Seen]);
}

#[test]
fn without_a_transcript_it_stays_handed_over_and_is_never_repeated() {
    for sign in [
        Sign::LeaseDue(Quiet::Busy),
        idle_since(0),
        Sign::ProcessGone,
    ] {
        let mut c = claim(Door::Inbox, false);
        let effect = feed(&mut c, &[(0, HANDED_BUSY), (90_000, sign)]);
        assert_eq!(effect, Effect::default(), "{sign:?}");
        assert_eq!(c.state, ClaimState::Unconfirmed);
        assert!(!c.state.is_open(), "the lane goes on");
        assert_eq!(c.on(SEEN, NOW).receipts, [Stage::Seen]);
    }
}

#[test]
fn a_text_in_the_clis_queue_survives_the_end_of_the_present_turn() {
    let mut c = claim(Door::Inbox, true);
    let boundary = Sign::TurnBoundaryWithoutNonce;
    let signs = [(0, HANDED_BUSY), (50_000, Sign::EnqueueSeen)];
    feed(&mut c, &signs);
    assert_eq!(c.lease_until, NOW.plus(110_000));
    assert_eq!(feed(&mut c, &[(60_000, boundary)]), Effect::default());
    assert!(feed(&mut c, &[(90_000, boundary)]).requeue);
}

#[test]
fn what_was_seen_is_never_repeated() {
    for sign in [
        HANDED_BUSY,
        SEEN,
        Sign::EnqueueSeen,
        Sign::TurnBoundaryWithoutNonce,
        Sign::OutputDiscarded,
        Sign::ProcessGone,
        Sign::LeaseDue(Quiet::Busy),
        idle_since(-100_000),
    ] {
        let mut c = claim(Door::Hooks, true);
        let effect = feed(&mut c, &[(0, HANDED_BUSY), (1, SEEN), (99_999, sign)]);
        assert_eq!(effect, Effect::default(), "{sign:?}");
        assert_eq!(c.state, ClaimState::Seen);
    }
}

#[test]
fn a_program_that_confirms_ends_its_claim() {
    let mut c = claim(Door::LocalApi, false);
    let effect = c.on(Sign::Confirmed, NOW);
    assert_eq!(effect.receipts, [Stage::HandedOver, Stage::Done]);
    assert_eq!(c.on(Sign::LeaseDue(Quiet::Busy), NOW), Effect::default());
}

#[test]
fn evidence_counts_even_if_the_hand_over_was_not_noted() {
    let mut c = claim(Door::Hooks, true);
    assert_eq!(c.on(SEEN, NOW).receipts, [Stage::HandedOver, Stage::Seen]);
}

#[test]
fn a_claim_survives_its_store() {
    let c = claim(Door::Hooks, true);
    let text = serde_json::to_string(&c).unwrap();
    assert_eq!(serde_json::from_str::<Claim>(&text).unwrap(), c);
}

// ---- selection

const PROMPT: Boundary = Boundary::Prompt;
const STOP: Boundary = Boundary::Stop {
    active: false,
    continuations: 0,
};

fn queued(n: u128, lane: Priority, length: usize) -> Queued {
    Queued {
        id: id(n),
        lane,
        by_id: false,
        length,
    }
}

fn mixed() -> Vec<Queued> {
    use Priority::{Low, Normal, Urgent};
    [Low, Normal, Urgent, Normal, Urgent]
        .into_iter()
        .zip(1..)
        .map(|(lane, n)| queued(n, lane, 10))
        .collect()
}

fn taken(queue: &[Queued], event: Boundary, budget: usize) -> (Vec<u128>, usize) {
    let s = select(
        queue,
        SessionView::default(),
        &BTreeSet::new(),
        event,
        budget,
    );
    (
        s.take.iter().map(|(id, _)| id.0.as_u128()).collect(),
        s.rest,
    )
}

#[test]
fn a_tool_boundary_takes_urgent_mail_only() {
    assert_eq!(taken(&mixed(), Boundary::Tool, 100), (vec![3, 5], 3));
}

#[test]
fn prompt_and_stop_take_every_lane_the_pressing_first() {
    for event in [PROMPT, STOP] {
        assert_eq!(taken(&mixed(), event, 100), (vec![3, 5, 2, 4, 1], 0));
    }
}

#[test]
fn the_budget_takes_whole_envelopes_in_order_and_counts_the_rest() {
    assert_eq!(taken(&mixed(), PROMPT, 34), (vec![3, 5, 2], 2));
    let queue = [
        queued(1, Priority::Normal, 30),
        queued(2, Priority::Normal, 90),
        queued(3, Priority::Normal, 1),
        queued(4, Priority::Low, 1),
    ];
    assert_eq!(taken(&queue, PROMPT, 100), (vec![1], 3), "none overtakes");
}

#[test]
fn a_stop_continues_once_and_never_a_continuation() {
    let stop = |active, continuations| Boundary::Stop {
        active,
        continuations,
    };
    let twenty: Vec<_> = (1..=20).map(|n| queued(n, Priority::Normal, 1)).collect();
    assert_eq!(taken(&twenty, stop(false, 0), 100).0.len(), 20);
    assert_eq!(taken(&twenty, stop(true, 0), 100), (vec![], 20));
    assert_eq!(taken(&twenty, stop(true, 1), 100), (vec![], 20));
    assert_eq!(taken(&twenty, stop(false, 3), 100).0.len(), 20);
    let capped = stop(false, MAX_CONTINUATIONS);
    assert_eq!(taken(&twenty, capped, 100), (vec![], 20));
}

#[test]
fn a_lane_with_an_open_claim_gives_nothing() {
    let open = BTreeSet::from([Priority::Urgent]);
    let s = select(&mixed(), SessionView::default(), &open, PROMPT, 100);
    let ids: Vec<_> = s.take.iter().map(|(id, _)| id.0.as_u128()).collect();
    assert_eq!((ids, s.rest), (vec![2, 4, 1], 2));
}

#[test]
fn runs_subagents_and_one_shot_sessions_take_no_mail_of_others() {
    let mut queue = mixed();
    queue[1].by_id = true;
    let one = |view| select(&queue, view, &BTreeSet::new(), PROMPT, 100);
    let own_run = SessionView {
        own_run: true,
        ..SessionView::default()
    };
    let subagent = SessionView {
        subagent: true,
        ..SessionView::default()
    };
    assert_eq!(one(own_run), Selection::default());
    assert_eq!(one(subagent), Selection::default());
    let one_shot = SessionView {
        one_shot: true,
        ..SessionView::default()
    };
    let only = vec![(id(2), Priority::Normal)];
    assert_eq!(
        one(one_shot),
        Selection {
            take: only,
            rest: 0
        }
    );
}
