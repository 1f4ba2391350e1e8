//! Random event sequences over several sessions: the laws of claims hold after every step.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Action {
    Arrive {
        session: u128,
        lane: u8,
        length: usize,
    },
    Hook {
        session: u128,
        event: u8,
        transcript: bool,
    },
    Sign {
        claim: usize,
        sign: u8,
        wait: i64,
    },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0..3_u128, 0..3_u8, 1..60_usize).prop_map(|(session, lane, length)| Action::Arrive {
            session,
            lane,
            length
        }),
        (0..3_u128, 0..4_u8, any::<bool>()).prop_map(|(session, event, transcript)| {
            Action::Hook {
                session,
                event,
                transcript,
            }
        }),
        (any::<usize>(), 0..13_u8, 0..70_000_i64).prop_map(|(claim, sign, wait)| Action::Sign {
            claim,
            sign,
            wait
        }),
    ]
}

fn sign_of(n: u8, now: WallMs) -> Sign {
    match n {
        0 | 1 => Sign::HandedOver { busy: n == 0 },
        2 | 3 => Sign::EvidenceSeen { turn_ended: n == 2 },
        4 => Sign::EnqueueSeen,
        5 => Sign::TurnBoundaryWithoutNonce,
        6 => Sign::OutputDiscarded,
        7 => Sign::ProcessGone,
        8 => Sign::LeaseDue(Quiet::Busy),
        9 => Sign::LeaseDue(Quiet::IdleSince(now.plus(-20_000))),
        10 => Sign::LeaseDue(Quiet::IdleSince(now.plus(20_000))),
        11 => Sign::TurnEnded,
        _ => Sign::Confirmed,
    }
}

const LANES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::Urgent];

/// The smallest daemon that uses claims as the contract says.
#[derive(Default)]
struct World {
    now: i64,
    next: u128,
    /// Per session, in order of arrival.
    queues: BTreeMap<u128, BTreeMap<EnvelopeId, Queued>>,
    all: BTreeMap<EnvelopeId, (u128, Queued)>,
    claims: Vec<Claim>,
    stages: BTreeMap<EnvelopeId, Vec<Stage>>,
}

impl World {
    fn act(&mut self, action: &Action) {
        match action {
            Action::Arrive {
                session,
                lane,
                length,
            } => {
                self.next += 1;
                let q = queued(self.next, LANES[usize::from(*lane)], *length);
                self.all.insert(q.id, (*session, q));
                self.queues.entry(*session).or_default().insert(q.id, q);
            }
            Action::Hook {
                session,
                event,
                transcript,
            } => self.hook(*session, *event, *transcript),
            Action::Sign { claim, sign, wait } => {
                self.now += wait;
                let Some(len) = std::num::NonZeroUsize::new(self.claims.len()) else {
                    return;
                };
                let index = *claim % len;
                let now = WallMs(self.now);
                let before = self.claims[index].state;
                let effect = self.claims[index].on(sign_of(*sign, now), now);
                let claim = self.claims[index].clone();
                if effect.requeue {
                    assert!(
                        !matches!(before, ClaimState::Seen | ClaimState::Done),
                        "seen, then repeated"
                    );
                    if before == ClaimState::HandedOver && claim.transcript.is_none() {
                        assert_eq!(*sign, 6, "repeated without proof");
                    }
                }
                self.apply(&claim, &effect);
            }
        }
    }

    fn hook(&mut self, session: u128, event: u8, transcript: bool) {
        let open = self
            .claims
            .iter()
            .filter(|c| c.session == SessionId::from_u128(session) && c.state.is_open())
            .flat_map(|c| c.lanes.iter().copied())
            .collect();
        let queue: Vec<_> = self
            .queues
            .entry(session)
            .or_default()
            .values()
            .copied()
            .collect();
        let event = match event {
            0 => Boundary::Tool,
            1 => Boundary::Prompt,
            n => Boundary::Stop {
                active: n == 3,
                continuations: 0,
            },
        };
        let batch = select(&queue, SessionView::default(), &open, event, 100);
        assert_eq!(batch.rest + batch.take.len(), queue.len());
        if batch.take.is_empty() {
            return;
        }
        for (id, _) in &batch.take {
            self.queues.entry(session).or_default().remove(id);
        }
        let parts = ClaimParts {
            id: ClaimId::from_u128(self.claims.len() as u128),
            door: Door::Hooks,
            session: SessionId::from_u128(session),
            batch: batch.take,
            transcript: transcript.then(String::new),
            offset: 0,
        };
        let (claim, effect) = Claim::open(parts, true, WallMs(self.now));
        self.apply(&claim, &effect);
        self.claims.push(claim);
    }

    fn apply(&mut self, claim: &Claim, effect: &Effect) {
        for id in &claim.envelopes {
            let told = self.stages.entry(*id).or_default();
            told.extend(effect.receipts.iter().cloned());
            if effect.requeue {
                told.clear();
                let (session, q) = self.all[id];
                let twice = self.queues.entry(session).or_default().insert(*id, q);
                assert!(twice.is_none(), "queued and claimed at once");
            }
        }
    }

    fn check(&self) {
        for (id, (session, q)) in &self.all {
            let in_queue = usize::from(self.queues[session].contains_key(id));
            let in_claims = self
                .claims
                .iter()
                .filter(|c| c.state != ClaimState::Returned && c.envelopes.contains(id))
                .count();
            assert_eq!(in_queue + in_claims, 1, "{id} is in no or in two places");
            let lane_claims = self
                .claims
                .iter()
                .filter(|c| c.session == SessionId::from_u128(*session))
                .filter(|c| c.state.is_open() && c.lanes.contains(&q.lane))
                .count();
            assert!(lane_claims <= 1, "two open claims in one lane");
            let rank = |s: &Stage| match s {
                Stage::Claimed { .. } => 0,
                Stage::HandedOver => 1,
                Stage::Seen => 2,
                Stage::Done => 3,
                other => panic!("{other:?} is no stage of a claim"),
            };
            if let Some(told) = self.stages.get(id) {
                let up = told.windows(2).all(|w| rank(&w[0]) < rank(&w[1]));
                assert!(up, "receipts go upwards: {told:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_envelope_is_in_one_place_and_what_was_seen_is_never_repeated(
        actions in prop::collection::vec(action(), 1..120),
    ) {
        let mut world = World::default();
        for action in &actions {
            world.act(action);
            world.check();
        }
    }

    #[test]
    fn an_open_claim_always_ends(
        transcript in any::<bool>(),
        signs in prop::collection::vec((0..13_u8, 0..70_000_i64), 0..30),
    ) {
        let mut c = claim(Door::Inbox, transcript);
        let mut now = NOW;
        for (sign, wait) in signs {
            now = now.plus(wait);
            c.on(sign_of(sign, now), now);
        }
        // The session then falls silent for good: its lease comes due twice at most.
        let idle = now;
        for _ in 0..2 {
            now = now.max(c.lease_until);
            c.on(Sign::LeaseDue(Quiet::IdleSince(idle)), now);
        }
        prop_assert!(!c.state.is_open());
    }
}
