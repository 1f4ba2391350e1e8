//! What the user, the sender's trust and the device's means say to an envelope.

use super::*;
use crate::delivery::Block;

#[test]
fn unwanted_mail_holds_with_its_reason() {
    let s = session(Activity::Idle);
    let mut muted = policy();
    muted.muted.insert("ci".into());
    let paused = Policy {
        paused: true,
        ..policy()
    };
    let mut off = policy();
    off.features.message_notification = false;
    off.features.remote_task_execution = false;
    for (p, on_message, on_task) in [
        (muted, Reason::SenderMuted, Reason::SenderMuted),
        (paused, Reason::Paused, Reason::Paused),
        (
            off,
            Reason::MessageNotificationOff,
            Reason::RemoteTaskExecutionOff,
        ),
    ] {
        assert_eq!(
            plan(&message(), Target::Session(&s), &p, NOW),
            hold(on_message)
        );
        assert_eq!(plan(&task(), Target::Session(&s), &p, NOW), hold(on_task));
    }
    let quiet = |until| Policy {
        do_not_disturb: Some(until),
        ..policy()
    };
    let until = Some(NOW.plus(5));
    let want = Plan::Hold {
        reason: Reason::DoNotDisturb,
        until,
    };
    assert_eq!(
        plan(&urgent(), Target::Session(&s), &quiet(until), NOW),
        want
    );
    let over = plan(&message(), Target::Session(&s), &quiet(until), NOW.plus(5));
    assert_eq!(over, hooks(At::NextPrompt));
    let open_end = plan(&message(), Target::Session(&s), &quiet(None), NOW);
    assert_eq!(open_end, hold(Reason::DoNotDisturb));
}

#[test]
fn with_task_execution_off_a_message_resumes_no_closed_session() {
    let mut p = policy();
    p.features.remote_task_execution = false;
    let s = session(Activity::Closed);
    assert_eq!(
        plan(&waking(), Target::Session(&s), &p, NOW),
        hold(Reason::RemoteTaskExecutionOff)
    );
}

#[test]
fn trust_decides_whether_a_task_is_refused_asked_about_or_done() {
    let device = Target::Device { sessions: &[] };
    let ask = |trust, p: &Policy, now| plan(&from(trust, task()), device, p, now);
    let reject = |reason| Plan::Reject { reason };
    let waits = |until| Plan::Hold {
        reason: Reason::AwaitingApproval,
        until: Some(until),
    };
    let p = policy();
    assert_eq!(ask(Trust::Inform, &p, NOW), reject(Reason::TrustTooLow));
    assert_eq!(ask(Trust::Suggest, &p, NOW), waits(NOW.plus(900_000)));
    assert_eq!(ask(Trust::Run, &p, NOW), headless(None, Workspace::Same));

    let state = |s| Policy {
        approvals: BTreeMap::from([(EnvelopeId::from_u128(1), s)]),
        ..policy()
    };
    let asked = state(ApprovalState::Asked(WallMs(200_000)));
    assert_eq!(ask(Trust::Suggest, &asked, NOW), waits(WallMs(1_100_000)));
    assert_eq!(
        ask(Trust::Suggest, &asked, WallMs(1_100_000)),
        reject(Reason::ApprovalExpired)
    );
    assert_eq!(
        ask(Trust::Suggest, &state(ApprovalState::Approved), NOW),
        headless(None, Workspace::Same)
    );
    assert_eq!(
        ask(Trust::Suggest, &state(ApprovalState::Denied), NOW),
        reject(Reason::Denied)
    );

    let always = Policy {
        approval: Approval::Always,
        ..policy()
    };
    assert_eq!(ask(Trust::Run, &always, NOW), waits(NOW.plus(900_000)));
    let mut stricter = policy();
    for p in stricter.projects.values_mut() {
        p.approval = Approval::Always;
    }
    assert_eq!(ask(Trust::Run, &stricter, NOW), waits(NOW.plus(900_000)));
}

#[test]
fn a_task_for_a_live_session_needs_the_same_approval() {
    let s = session(Activity::Idle);
    let waits = Plan::Hold {
        reason: Reason::AwaitingApproval,
        until: Some(NOW.plus(900_000)),
    };
    assert_eq!(to_session(&from(Trust::Suggest, task()), &s), waits);
    assert_eq!(
        to_session(&from(Trust::Inform, message()), &s),
        hooks(At::NextPrompt)
    );
}

#[test]
fn runs_wait_for_the_cli_the_model_and_a_free_slot() {
    let device = Target::Device { sessions: &[] };
    let until = Some(NOW.plus(9));
    let missing = Policy {
        claude_missing: true,
        ..policy()
    };
    let blocked = Policy {
        blocked: Some(Block {
            reason: Reason::RateLimit,
            until,
        }),
        ..policy()
    };
    let full = Policy {
        capacity: 0,
        ..policy()
    };
    assert_eq!(
        plan(&task(), device, &missing, NOW),
        hold(Reason::ClaudeNotFound)
    );
    let limited = Plan::Hold {
        reason: Reason::RateLimit,
        until,
    };
    assert_eq!(plan(&task(), device, &blocked, NOW), limited);
    assert_eq!(
        plan(&task(), device, &blocked, NOW.plus(9)),
        headless(None, Workspace::Same)
    );
    assert_eq!(plan(&task(), device, &full, NOW), hold(Reason::NoCapacity));
    let s = session(Activity::Idle);
    let live = plan(&task(), Target::Session(&s), &missing, NOW);
    assert_eq!(live, hooks(At::NextPrompt), "a live session needs no run");
}

#[test]
fn what_no_waiting_would_change_is_refused() {
    let s = session(Activity::Busy);
    let bad = |e: Envelope| Envelope {
        body: serde_json::json!([]),
        ..e
    };
    let far = |e: Envelope| Envelope { hops: 5, ..e };
    let no = |reason| (Plan::Undeliverable { reason }, Plan::Reject { reason });
    for (change, (on_message, on_task)) in [
        (&bad as &dyn Fn(_) -> _, no(Reason::BadBody)),
        (&far, no(Reason::HopsExceeded)),
    ] {
        assert_eq!(to_session(&change(message()), &s), on_message);
        assert_eq!(to_session(&change(task()), &s), on_task);
    }
    let (on_message, on_task) = no(Reason::UnknownSession);
    let unknown = |e| plan(&e, Target::Unknown, &policy(), NOW);
    assert_eq!(unknown(message()), on_message);
    assert_eq!(unknown(task()), on_task);
}

#[test]
fn other_kinds_and_late_mail() {
    let s = session(Activity::Busy);
    for kind in [
        EnvelopeKind::Cancel,
        EnvelopeKind::MemoryChanged,
        EnvelopeKind::Decision,
    ] {
        assert_eq!(to_session(&envelope(kind), &s), Plan::Control);
    }
    let other = envelope(EnvelopeKind::Other("hologram".into()));
    assert_eq!(to_session(&other, &s), Plan::Unsupported);
    let late = |e: Envelope| Envelope {
        expires_at: NOW,
        ..e
    };
    assert_eq!(to_session(&late(message()), &s), Plan::Expired);
    assert_eq!(to_session(&late(task()), &s), Plan::Expired);
}

#[test]
fn plans_tell_their_receipt_and_task_state() {
    let held = hold(Reason::NoCapacity);
    assert_eq!(
        held.stage(),
        Some(Stage::Held {
            reason: "no_capacity".into()
        })
    );
    assert_eq!(
        held.task_state(),
        Some(TaskState::because(TaskStatus::Blocked, "no_capacity"))
    );
    assert_eq!(
        hold(Reason::AwaitingApproval)
            .task_state()
            .map(|s| s.status),
        Some(TaskStatus::AwaitingApproval)
    );
    assert_eq!(hooks(At::TurnEnd).stage(), None);
}
