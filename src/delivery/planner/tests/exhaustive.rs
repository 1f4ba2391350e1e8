//! Every combination of the planner's inputs, once: no panic, one writer per session, a reason for every wait.

use super::*;
use crate::delivery::{Block, Features};

const ACTIVITIES: [Activity; 5] = [
    Activity::Busy,
    Activity::Idle,
    Activity::Waiting,
    Activity::Unknown,
    Activity::Closed,
];
const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::Urgent];
const TRUSTS: [Trust; 3] = [Trust::Inform, Trust::Suggest, Trust::Run];
const BOTH: [bool; 2] = [false, true];

fn kinds() -> [EnvelopeKind; 6] {
    [
        EnvelopeKind::Message,
        EnvelopeKind::Task,
        EnvelopeKind::Cancel,
        EnvelopeKind::MemoryChanged,
        EnvelopeKind::Decision,
        EnvelopeKind::Other("x".into()),
    ]
}

fn doors() -> [DoorState; 3] {
    [DoorState::Proven, DoorState::Armed, OFF]
}

fn policies() -> Vec<Policy> {
    let mut all = Vec::new();
    for bits in 0..1_u32 << 8 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        all.push(Policy {
            features: Features {
                memory_injection: true,
                message_notification: on(0),
                remote_task_execution: on(1),
            },
            projects: if on(2) {
                policy().projects
            } else {
                BTreeMap::new()
            },
            paused: on(3),
            claude_missing: on(4),
            capacity: u32::from(on(5)),
            approval: if on(6) {
                Approval::Always
            } else {
                Approval::ByTrust
            },
            blocked: on(7).then_some(Block {
                reason: Reason::RateLimit,
                until: Some(NOW.plus(1)),
            }),
            ..Policy::default()
        });
    }
    all
}

fn sessions() -> Vec<SessionSnapshot> {
    let mut all = Vec::new();
    for activity in ACTIVITIES {
        for owned in BOTH {
            for (one_shot, own_run) in [(false, false), (true, false), (false, true)] {
                for inbox in doors() {
                    for doorbell in doors() {
                        let quiets: &[i64] = match activity {
                            Activity::Closed => &[0, 999_999],
                            _ => &[0],
                        };
                        for quiet in quiets {
                            all.push(SessionSnapshot {
                                owned_by_live_process: owned,
                                one_shot,
                                own_run,
                                idle_since: Some(WallMs(*quiet)),
                                doors: Doors {
                                    inbox: inbox.clone(),
                                    doorbell: doorbell.clone(),
                                },
                                ..session(activity)
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

fn envelopes() -> Vec<Envelope> {
    let mut all = Vec::new();
    for kind in kinds() {
        // What is not for a session is answered by its kind alone.
        if !matches!(kind, EnvelopeKind::Message | EnvelopeKind::Task) {
            all.push(envelope(kind));
            continue;
        }
        for priority in PRIORITIES {
            for trust in TRUSTS {
                for wake in BOTH {
                    let e = from(trust, envelope(kind.clone()));
                    all.push(Envelope {
                        priority,
                        wake,
                        ..e
                    });
                }
            }
        }
    }
    all
}

/// What must hold of every answer.
fn check(e: &Envelope, p: &Policy, all: &[SessionSnapshot], plan: &Plan) {
    let find = |id: &SessionId| {
        all.iter()
            .find(|s| s.session_id == *id)
            .unwrap_or_else(|| panic!("planned for a session that was not offered: {plan:?}"))
    };
    match plan {
        Plan::Headless {
            resume, project, ..
        } => {
            if let Some(id) = resume {
                let s = find(id);
                assert!(
                    !s.owned_by_live_process && s.activity == Activity::Closed,
                    "rule 3: {s:?}"
                );
            }
            assert!(p.projects.contains_key(project), "runs only where enabled");
            assert!(p.features.remote_task_execution && !p.paused && !p.claude_missing);
            assert!(p.capacity > 0 && p.blocked.is_none());
            if e.kind == EnvelopeKind::Task {
                assert!(e.from.trust == Trust::Run && p.approval == Approval::ByTrust);
            }
        }
        Plan::Inbox { session } => {
            assert_eq!(find(session).doors.inbox, DoorState::Proven);
            assert!(find(session).is_live() && !find(session).own_run);
        }
        Plan::Doorbell { session } => {
            let s = find(session);
            assert!(!matches!(s.doors.doorbell, DoorState::Off { .. }));
            assert!(s.is_live() && !s.own_run && !s.one_shot);
        }
        Plan::Hooks { session, .. } => {
            assert!(find(session).is_live() && !find(session).own_run);
        }
        Plan::Hold { until, .. } => {
            assert!(
                until.is_none_or(|t| NOW < t && t <= e.expires_at),
                "a hold ends by itself in the future, or by an event: {plan:?}"
            );
            assert!(plan.stage().is_some());
        }
        Plan::Undeliverable { .. } | Plan::Reject { .. } => {
            assert!(plan.stage().is_some_and(|s| s.is_terminal()));
        }
        Plan::Control => assert!(!matches!(
            e.kind,
            EnvelopeKind::Message | EnvelopeKind::Task | EnvelopeKind::Other(_)
        )),
        Plan::Unsupported => assert!(matches!(e.kind, EnvelopeKind::Other(_))),
        Plan::Expired => panic!("nothing here is late"),
    }
}

#[test]
fn every_combination_has_one_lawful_answer() {
    let (policies, sessions, envelopes) = (policies(), sessions(), envelopes());
    let name = project(SHOP);
    for p in &policies {
        for e in &envelopes {
            for s in &sessions {
                let one = std::slice::from_ref(s);
                check(e, p, one, &plan(e, Target::Session(s), p, NOW));
            }
            // Without a session named, only the choice among sessions is new: a pair of each state will do.
            for s in sessions.iter().step_by(18) {
                let other = SessionSnapshot {
                    session_id: SessionId::from_u128(8),
                    ..session(Activity::Closed)
                };
                let pair = [s.clone(), other];
                let target = Target::Project {
                    name: &name,
                    sessions: &pair,
                };
                check(e, p, &pair, &plan(e, target, p, NOW));
                check(
                    e,
                    p,
                    &pair,
                    &plan(e, Target::Device { sessions: &pair }, p, NOW),
                );
            }
            check(e, p, &[], &plan(e, Target::Unknown, p, NOW));
        }
    }
}

#[test]
fn nothing_waits_for_ever_once_every_wish_allows_it() {
    let mut p = policy();
    p.approvals
        .insert(EnvelopeId::from_u128(1), ApprovalState::Approved);
    for e in envelopes() {
        for s in sessions() {
            let answer = plan(&e, Target::Session(&s), &p, NOW);
            if let Plan::Hold { reason, until } = answer {
                let passes = match reason {
                    Reason::IdleThreshold => until.is_some(),
                    Reason::WaitingPermission => s.activity == Activity::Waiting,
                    Reason::SessionRunning => s.own_run,
                    Reason::SessionClosed => !e.wake && e.kind == EnvelopeKind::Message,
                    _ => false,
                };
                assert!(passes, "{reason} for {e:?} and {s:?}");
            }
        }
    }
}
