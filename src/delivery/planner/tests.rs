use std::collections::BTreeMap;

use super::*;
use crate::delivery::Doors;
use crate::domain::{Address, EnvelopeId, Sender};

const NOW: WallMs = WallMs(1_000_000);
const SHOP: &str = "github.com/acme/shop";

fn project(name: &str) -> ProjectName {
    ProjectName::new(name).unwrap()
}

fn envelope(kind: EnvelopeKind) -> Envelope {
    Envelope {
        id: EnvelopeId::from_u128(1),
        body: match kind {
            EnvelopeKind::Task => serde_json::json!({
                "task_id": EnvelopeId::from_u128(1), "task": "fix it"
            }),
            _ => serde_json::json!({"content": "hi"}),
        },
        kind,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        to: Address::default(),
        priority: Priority::Normal,
        wake: false,
        created_at: WallMs(0),
        expires_at: NOW.plus(3_600_000),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

fn message() -> Envelope {
    envelope(EnvelopeKind::Message)
}

fn waking() -> Envelope {
    Envelope {
        wake: true,
        ..message()
    }
}

fn urgent() -> Envelope {
    Envelope {
        priority: Priority::Urgent,
        ..message()
    }
}

fn task() -> Envelope {
    envelope(EnvelopeKind::Task)
}

fn from(trust: Trust, mut e: Envelope) -> Envelope {
    e.from.trust = trust;
    e
}

fn session(activity: Activity) -> SessionSnapshot {
    SessionSnapshot {
        session_id: SessionId::from_u128(7),
        project: Some(project(SHOP)),
        activity,
        since: WallMs(0),
        owned_by_live_process: activity != Activity::Closed,
        idle_since: None,
        last_active: WallMs(0),
        one_shot: false,
        own_run: false,
        doors: Doors::default(),
    }
}

fn with_doors(inbox: DoorState, doorbell: DoorState, s: SessionSnapshot) -> SessionSnapshot {
    SessionSnapshot {
        doors: Doors { inbox, doorbell },
        ..s
    }
}

fn policy() -> Policy {
    Policy {
        projects: BTreeMap::from([(project(SHOP), ProjectPolicy::default())]),
        ..Policy::default()
    }
}

fn hold(reason: Reason) -> Plan {
    Plan::Hold {
        reason,
        until: None,
    }
}

fn hooks(at: At) -> Plan {
    Plan::Hooks {
        session: SessionId::from_u128(7),
        at,
    }
}

fn headless(resume: Option<u128>, workspace: Workspace) -> Plan {
    Plan::Headless {
        resume: resume.map(SessionId::from_u128),
        project: project(SHOP),
        workspace,
    }
}

fn to_session(e: &Envelope, s: &SessionSnapshot) -> Plan {
    plan(e, Target::Session(s), &policy(), NOW)
}

const SEVEN: SessionId = SessionId::from_u128(7);
const OFF: DoorState = DoorState::Off {
    reason: String::new(),
};

#[test]
fn busy_session_gets_urgent_mail_at_the_next_tool_boundary_or_by_a_proven_inbox() {
    let busy = session(Activity::Busy);
    assert_eq!(to_session(&urgent(), &busy), hooks(At::NextTool));
    let armed = with_doors(DoorState::Armed, DoorState::Proven, busy.clone());
    assert_eq!(to_session(&urgent(), &armed), hooks(At::NextTool));
    let proven = with_doors(DoorState::Proven, OFF, busy);
    let inbox = Plan::Inbox { session: SEVEN };
    assert_eq!(to_session(&urgent(), &proven), inbox);
}

#[test]
fn busy_session_gets_other_mail_at_the_turns_end() {
    let busy = with_doors(
        DoorState::Proven,
        DoorState::Proven,
        session(Activity::Busy),
    );
    let low = Envelope {
        priority: Priority::Low,
        ..message()
    };
    for e in [message(), waking(), low] {
        assert_eq!(to_session(&e, &busy), hooks(At::TurnEnd));
    }
}

#[test]
fn idle_session_is_woken_by_inbox_else_doorbell_else_waits_for_a_prompt() {
    use DoorState::{Armed, Proven};
    let inbox = Plan::Inbox { session: SEVEN };
    let bell = Plan::Doorbell { session: SEVEN };
    for (i, d, want) in [
        (Proven, Armed, inbox.clone()),
        (Proven, OFF, inbox),
        (Armed, Armed, bell.clone()),
        (OFF, Proven, bell.clone()),
        (OFF, Armed, bell),
        (Armed, OFF, hooks(At::NextPrompt)),
        (OFF, OFF, hooks(At::NextPrompt)),
    ] {
        let s = with_doors(i, d, session(Activity::Idle));
        assert_eq!(to_session(&waking(), &s), want);
        assert_eq!(to_session(&message(), &s), hooks(At::NextPrompt));
        assert_eq!(
            to_session(&task(), &s),
            want,
            "a task for a live session wakes it"
        );
    }
}

#[test]
fn a_one_shot_session_is_never_rung() {
    let s = SessionSnapshot {
        one_shot: true,
        ..with_doors(OFF, DoorState::Proven, session(Activity::Idle))
    };
    assert_eq!(to_session(&waking(), &s), hooks(At::NextPrompt));
}

#[test]
fn session_at_a_permission_prompt_holds_everything() {
    let s = session(Activity::Waiting);
    for e in [message(), urgent(), waking(), task()] {
        assert_eq!(to_session(&e, &s), hold(Reason::WaitingPermission));
    }
}

#[test]
fn unknown_session_state_is_treated_as_live_with_hooks_only() {
    let s = with_doors(
        DoorState::Proven,
        DoorState::Proven,
        session(Activity::Unknown),
    );
    assert_eq!(to_session(&urgent(), &s), hooks(At::NextTool));
    for e in [message(), waking(), task()] {
        assert_eq!(to_session(&e, &s), hooks(At::TurnEnd));
    }
}

#[test]
fn closed_session_is_left_alone_until_the_idle_threshold_and_then_resumed() {
    let mut s = session(Activity::Closed);
    s.idle_since = Some(NOW.plus(-59_999));
    let wait = Plan::Hold {
        reason: Reason::IdleThreshold,
        until: Some(NOW.plus(1)),
    };
    assert_eq!(to_session(&waking(), &s), wait);
    assert_eq!(to_session(&task(), &s), wait);
    s.idle_since = Some(NOW.plus(-60_000));
    assert_eq!(
        to_session(&waking(), &s),
        headless(Some(7), Workspace::Same)
    );
    assert_eq!(to_session(&task(), &s), headless(Some(7), Workspace::Same));
}

#[test]
fn a_clock_set_back_holds_for_one_threshold_at_most() {
    let mut s = session(Activity::Closed);
    s.idle_since = Some(NOW.plus(1_000_000_000));
    let want = Plan::Hold {
        reason: Reason::IdleThreshold,
        until: Some(NOW.plus(60_000)),
    };
    assert_eq!(to_session(&waking(), &s), want);
}

#[test]
fn closed_session_gets_mail_that_does_not_wake_at_its_next_start() {
    let s = session(Activity::Closed);
    assert_eq!(to_session(&message(), &s), hold(Reason::SessionClosed));
}

#[test]
fn a_session_that_a_process_owns_is_live_whatever_the_events_said() {
    let mut s = session(Activity::Closed);
    s.owned_by_live_process = true;
    assert_eq!(to_session(&task(), &s), hooks(At::TurnEnd));
    let mut s = session(Activity::Idle);
    s.owned_by_live_process = false;
    assert_eq!(to_session(&task(), &s), hooks(At::NextPrompt));
}

#[test]
fn our_own_run_takes_no_mail() {
    let mut s = session(Activity::Busy);
    s.own_run = true;
    for e in [message(), urgent(), task()] {
        assert_eq!(to_session(&e, &s), hold(Reason::SessionRunning));
    }
}

#[test]
fn message_for_a_project_or_device_goes_to_its_most_recently_active_live_session() {
    let at = |id: u128, activity, last: i64| SessionSnapshot {
        session_id: SessionId::from_u128(id),
        last_active: WallMs(last),
        ..session(activity)
    };
    let one_shot = SessionSnapshot {
        one_shot: true,
        ..at(9, Activity::Busy, 99)
    };
    let own_run = SessionSnapshot {
        own_run: true,
        ..at(8, Activity::Busy, 98)
    };
    let elsewhere = SessionSnapshot {
        project: Some(project("not-enabled")),
        ..at(6, Activity::Busy, 97)
    };
    let sessions = [
        one_shot,
        own_run,
        at(1, Activity::Closed, 50),
        at(2, Activity::Busy, 10),
        at(3, Activity::Busy, 20),
        at(4, Activity::Idle, 15),
    ];
    let name = project(SHOP);
    let of_project = Target::Project {
        name: &name,
        sessions: &sessions,
    };
    let third = |at| Plan::Hooks {
        session: SessionId::from_u128(3),
        at,
    };
    assert_eq!(
        plan(&message(), of_project, &policy(), NOW),
        third(At::TurnEnd)
    );
    let mut all = sessions.to_vec();
    all.push(elsewhere);
    let device = Target::Device { sessions: &all };
    assert_eq!(plan(&message(), device, &policy(), NOW), third(At::TurnEnd));
    let prefers = Policy {
        preferred_session: Some(SessionId::from_u128(2)),
        ..policy()
    };
    let second = Plan::Hooks {
        session: SessionId::from_u128(2),
        at: At::TurnEnd,
    };
    assert_eq!(plan(&message(), device, &prefers, NOW), second);

    let closed = [at(1, Activity::Closed, 50), at(2, Activity::Closed, 60)];
    let device = Target::Device { sessions: &closed };
    assert_eq!(
        plan(&message(), device, &policy(), NOW),
        hold(Reason::SessionClosed)
    );
    assert_eq!(
        plan(&waking(), device, &policy(), NOW),
        headless(Some(2), Workspace::Same)
    );
    let device = Target::Device { sessions: &[] };
    assert_eq!(
        plan(&waking(), device, &policy(), NOW),
        hold(Reason::NoSession)
    );
}

#[test]
fn task_for_a_project_starts_a_new_session_in_its_folder() {
    use {Tree::*, Workspace::*};
    let name = project(SHOP);
    let target = Target::Project {
        name: &name,
        sessions: &[session(Activity::Idle)],
    };
    for (workspace, tree, can_worktree, want) in [
        (Same, Free, false, headless(None, Same)),
        (Same, Free, true, headless(None, Same)),
        (Same, Dirty, true, headless(None, Worktree)),
        (Same, Busy, true, headless(None, Worktree)),
        (Same, Dirty, false, hold(Reason::TreeDirty)),
        (Same, Busy, false, hold(Reason::TreeBusy)),
        (Worktree, Free, true, headless(None, Worktree)),
        (Worktree, Dirty, true, headless(None, Worktree)),
        (Worktree, Free, false, headless(None, Same)),
        (Worktree, Dirty, false, hold(Reason::TreeDirty)),
    ] {
        let shop = ProjectPolicy {
            workspace,
            tree,
            can_worktree,
            ..ProjectPolicy::default()
        };
        let policy = Policy {
            projects: BTreeMap::from([(name.clone(), shop)]),
            ..Policy::default()
        };
        assert_eq!(plan(&task(), target, &policy, NOW), want);
    }
}

#[test]
fn task_for_the_device_goes_to_the_most_recently_active_enabled_project() {
    let device = Target::Device { sessions: &[] };
    assert_eq!(
        plan(&task(), device, &policy(), NOW),
        headless(None, Workspace::Same)
    );
    let mut two = policy();
    two.projects.insert(
        project("b"),
        ProjectPolicy {
            last_active: Some(WallMs(5)),
            ..ProjectPolicy::default()
        },
    );
    let Plan::Headless { project: p, .. } = plan(&task(), device, &two, NOW) else {
        panic!("not a run");
    };
    assert_eq!(p.as_str(), "b");
    let none = Policy::default();
    let reject = Plan::Reject {
        reason: Reason::ProjectNotEnabled,
    };
    assert_eq!(plan(&task(), device, &none, NOW), reject);
}

#[test]
fn work_outside_an_enabled_project_is_rejected_and_mail_waits_or_goes_by_hooks() {
    let mut s = session(Activity::Idle);
    let reject = Plan::Reject {
        reason: Reason::ProjectNotEnabled,
    };
    s.project = Some(project("other"));
    assert_eq!(to_session(&task(), &s), reject);
    assert_eq!(to_session(&message(), &s), hold(Reason::ProjectNotEnabled));
    s.project = None;
    assert_eq!(to_session(&task(), &s), reject);
    assert_eq!(to_session(&message(), &s), hooks(At::NextPrompt));
    s.activity = Activity::Closed;
    s.owned_by_live_process = false;
    assert_eq!(to_session(&waking(), &s), hold(Reason::ProjectNotEnabled));
    let name = project("other");
    let target = Target::Project {
        name: &name,
        sessions: &[],
    };
    assert_eq!(plan(&task(), target, &policy(), NOW), reject);
    assert_eq!(
        plan(&message(), target, &policy(), NOW),
        hold(Reason::ProjectNotEnabled)
    );
}

mod exhaustive;
mod wishes;
