use super::*;
use crate::domain::{Door, Reply};

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(n)
}

fn item(kind: ItemKind) -> ItemRecord {
    ItemRecord::sample(kind)
}

fn receipt(stage: Stage, at: i64) -> Receipt {
    Receipt {
        stage,
        at: WallMs(at),
        evidence: None,
    }
}

fn status(item: &mut ItemRecord, envelope: u128, status: TaskStatus) -> Effect {
    let body = ReportBody::Status(TaskState::new(status));
    apply(item, id(envelope), body, WallMs(9))
}

fn stages(item: &ItemRecord) -> Vec<Stage> {
    item.receipts.iter().map(|r| r.stage.clone()).collect()
}

#[test]
fn an_ack_makes_a_task_delivered_and_its_receipt_stands_before_later_stages() {
    let mut t = item(ItemKind::Task);
    let claimed = Stage::Claimed {
        door: Door::Headless,
    };
    let body = ReportBody::Receipt(receipt(claimed.clone(), 5));
    assert_eq!(apply(&mut t, id(1), body, WallMs(5)), Effect::Changed);
    assert_eq!(on_device(&mut t, id(1), WallMs(6)), Effect::Changed);
    assert_eq!(on_device(&mut t, id(1), WallMs(7)), Effect::Same);
    assert_eq!(t.state.status, TaskStatus::Delivered);
    assert_eq!(stages(&t), [Stage::Accepted, Stage::OnDevice, claimed]);
}

#[test]
fn a_late_ack_does_not_set_a_running_task_back() {
    let mut t = item(ItemKind::Task);
    status(&mut t, 1, TaskStatus::Running);
    on_device(&mut t, id(1), WallMs(6));
    assert_eq!(t.state.status, TaskStatus::Running);
    assert_eq!(t.attempts[0].started_at, Some(WallMs(9)));
    assert_eq!(status(&mut t, 1, TaskStatus::Queued), Effect::Same);
}

#[test]
fn a_task_that_its_device_gave_back_to_its_queue_runs_no_more() {
    let mut t = item(ItemKind::Task);
    for (said, then) in [
        (TaskStatus::Blocked, TaskStatus::Delivered),
        (TaskStatus::Running, TaskStatus::Delivered),
    ] {
        status(&mut t, 1, said);
        assert_eq!(status(&mut t, 1, then), Effect::Changed);
        assert_eq!(t.state, TaskState::new(TaskStatus::Delivered));
    }
    status(&mut t, 1, TaskStatus::Completed);
    assert_eq!(status(&mut t, 1, TaskStatus::Delivered), Effect::Same);
}

#[test]
fn terminal_is_final_except_for_the_hubs_own_guess() {
    let mut t = item(ItemKind::Task);
    status(&mut t, 1, TaskStatus::Completed);
    assert_eq!(status(&mut t, 1, TaskStatus::Failed), Effect::Same);
    assert_eq!(t.state.status, TaskStatus::Completed);
    assert!(t.is_over());

    let mut t = item(ItemKind::Task);
    status(&mut t, 1, TaskStatus::Interrupted);
    assert_eq!(status(&mut t, 1, TaskStatus::Completed), Effect::Changed);
    assert_eq!(t.state.status, TaskStatus::Completed);
    let done = stages(&t).iter().filter(|s| **s == Stage::Done).count();
    assert_eq!(done, 1);
}

#[test]
fn an_older_attempt_changes_nothing() {
    let mut t = item(ItemKind::Task);
    let mut second = t.attempts[0].clone();
    (second.attempt, second.envelope) = (2, id(2));
    t.attempts.push(second);
    let before = t.clone();
    assert_eq!(status(&mut t, 1, TaskStatus::Completed), Effect::Same);
    let result = ReportBody::Result(TaskResult::default());
    assert_eq!(
        apply(&mut t, id(1), result.clone(), WallMs(9)),
        Effect::Same
    );
    assert_eq!(on_device(&mut t, id(1), WallMs(9)), Effect::Same);
    assert_eq!(t, before);
    assert_eq!(apply(&mut t, id(2), result, WallMs(9)), Effect::Changed);
}

#[test]
fn a_result_is_taken_once_also_after_the_status() {
    let mut t = item(ItemKind::Task);
    status(&mut t, 1, TaskStatus::Completed);
    let result = |text: &str| {
        ReportBody::Result(TaskResult {
            text: text.into(),
            ..TaskResult::default()
        })
    };
    assert_eq!(
        apply(&mut t, id(1), result("a"), WallMs(9)),
        Effect::Changed
    );
    assert_eq!(apply(&mut t, id(1), result("b"), WallMs(9)), Effect::Same);
    assert_eq!(t.result.map(|r| r.text), Some("a".into()));
}

#[test]
fn a_receipt_is_there_once_and_none_follows_on_a_terminal_one() {
    let mut m = item(ItemKind::Message);
    let mut add = |stage, at| {
        let r = ReportBody::Receipt(receipt(stage, at));
        apply(&mut m, id(1), r, WallMs(at))
    };
    assert_eq!(add(Stage::Seen, 3), Effect::Changed);
    assert_eq!(add(Stage::Seen, 4), Effect::Same);
    assert_eq!(add(Stage::Done, 5), Effect::Changed);
    assert_eq!(add(Stage::Expired, 6), Effect::Same);
    assert!(m.is_over());
    assert_eq!(expire(&mut m, WallMs(9)), Effect::Same);
}

#[test]
fn terminal_receipts_end_a_task() {
    for (stage, want) in [
        (Stage::Expired, TaskStatus::Expired),
        (Stage::Unsupported, TaskStatus::Unsupported),
        (
            Stage::Undeliverable {
                reason: "gone".into(),
            },
            TaskStatus::Rejected,
        ),
    ] {
        let mut t = item(ItemKind::Task);
        apply(
            &mut t,
            id(1),
            ReportBody::Receipt(receipt(stage, 5)),
            WallMs(5),
        );
        assert_eq!(t.state.status, want);
        assert_eq!(t.attempts[0].ended_at, Some(WallMs(5)));
    }
}

#[test]
fn receipts_and_replies_are_bounded_and_the_terminal_one_still_fits() {
    let mut m = item(ItemKind::Message);
    for at in 2..500 {
        let held = Stage::Held {
            reason: format!("{at}"),
        };
        apply(
            &mut m,
            id(1),
            ReportBody::Receipt(receipt(held, at)),
            WallMs(at),
        );
        let reply = Reply {
            content: "x".into(),
            session_id: None,
            at: WallMs(at),
            id: id(u128::from(at.unsigned_abs())),
        };
        apply(&mut m, id(1), ReportBody::Reply(reply.clone()), WallMs(at));
        assert_eq!(
            apply(&mut m, id(1), ReportBody::Reply(reply), WallMs(at)),
            Effect::Same
        );
    }
    assert_eq!(
        (m.receipts.len(), m.replies.len()),
        (MAX_RECEIPTS, MAX_REPLIES)
    );
    let done = ReportBody::Receipt(receipt(Stage::Done, 600));
    assert_eq!(apply(&mut m, id(1), done, WallMs(600)), Effect::Changed);
}

fn ends(item: &mut ItemRecord, envelope: u128, status: TaskStatus, reason: &str) -> Effect {
    let body = ReportBody::Status(TaskState::because(status, reason));
    apply(item, id(envelope), body, WallMs(9))
}

fn attempt_again(item: &mut ItemRecord, envelope: u128) {
    let mut next = item.attempts[0].clone();
    (next.attempt, next.envelope) = (item.attempts.len() as u32 + 1, id(envelope));
    (next.status, next.reason) = (None, None);
    item.attempts.push(next);
    item.state = TaskState::new(TaskStatus::Queued);
    item.receipts = vec![receipt(Stage::Accepted, 1)];
}

#[test]
fn the_third_crash_makes_a_task_dead_and_its_own_late_result_still_counts() {
    let mut t = item(ItemKind::Task);
    for (n, (status, reason)) in [
        (TaskStatus::Interrupted, "daemon_died"),
        (TaskStatus::Failed, "no_result"),
        (TaskStatus::Interrupted, "killed"),
    ]
    .into_iter()
    .enumerate()
    {
        if n > 0 {
            assert_ne!(t.state.status, TaskStatus::Dead);
            attempt_again(&mut t, n as u128 + 1);
        }
        ends(&mut t, n as u128 + 1, status, reason);
    }
    assert_eq!(t.state, TaskState::because(TaskStatus::Dead, "killed"));
    assert_eq!(t.attempts[2].status, Some(TaskStatus::Interrupted));
    let done = ReportBody::Receipt(receipt(Stage::Done, 9));
    apply(&mut t, id(3), done, WallMs(9));
    assert_eq!(t.state.status, TaskStatus::Dead);
    assert_eq!(status(&mut t, 3, TaskStatus::Completed), Effect::Changed);
    assert_eq!(t.state.status, TaskStatus::Completed);
}

#[test]
fn a_planned_stop_and_a_silent_device_are_no_crashes() {
    let mut t = item(ItemKind::Task);
    for n in 1..=4 {
        if n > 1 {
            attempt_again(&mut t, n);
        }
        if n % 2 == 0 {
            ends(&mut t, n, TaskStatus::Interrupted, "daemon_stopped");
        } else {
            presume_silent(&mut t, WallMs(9));
        }
        assert_eq!(t.state.status, TaskStatus::Interrupted);
    }
    // What the device itself calls dead is final.
    attempt_again(&mut t, 9);
    status(&mut t, 9, TaskStatus::Dead);
    assert_eq!(status(&mut t, 9, TaskStatus::Completed), Effect::Same);
}

#[test]
fn the_devices_word_replaces_what_the_hub_concluded_and_only_for_the_same_attempt() {
    let mut t = item(ItemKind::Task);
    on_device(&mut t, id(1), WallMs(2));
    status(&mut t, 1, TaskStatus::Running);
    assert_eq!(presume_silent(&mut t, WallMs(50)), Effect::Changed);
    assert_eq!(t.state, TaskState::because(TaskStatus::Interrupted, SILENT));
    assert!(t.is_over() && stages(&t).contains(&Stage::Done));
    assert_eq!(presume_silent(&mut t, WallMs(60)), Effect::Same);
    let mut retried = t.clone();

    assert_eq!(status(&mut t, 1, TaskStatus::Completed), Effect::Changed);
    assert_eq!(t.state, TaskState::new(TaskStatus::Completed));
    assert!(!t.presumed);
    let done: Vec<_> = t
        .receipts
        .iter()
        .filter(|r| r.stage == Stage::Done)
        .collect();
    assert_eq!(
        (done.len(), done[0].at, &done[0].evidence),
        (1, WallMs(9), &None)
    );
    assert_eq!(status(&mut t, 1, TaskStatus::Failed), Effect::Same);

    attempt_again(&mut retried, 2);
    retried.presumed = false;
    let before = retried.clone();
    assert_eq!(status(&mut retried, 1, TaskStatus::Completed), Effect::Same);
    assert_eq!(retried, before);
}

#[test]
fn an_expiry_by_the_hub_yields_to_a_device_that_had_it_after_all() {
    let mut t = item(ItemKind::Task);
    assert_eq!(expire(&mut t, WallMs(1000)), Effect::Changed);
    assert_eq!(t.state.status, TaskStatus::Expired);
    assert_eq!(status(&mut t, 1, TaskStatus::Running), Effect::Changed);
    assert!(!t.is_over() && stages(&t) == [Stage::Accepted]);

    let mut m = item(ItemKind::Message);
    expire(&mut m, WallMs(1000));
    assert!(m.is_over());
    let done = ReportBody::Receipt(receipt(Stage::Done, 5));
    assert_eq!(apply(&mut m, id(1), done, WallMs(5)), Effect::Changed);
    assert_eq!(stages(&m), [Stage::Accepted, Stage::Done]);
}

#[test]
fn a_message_of_a_silent_device_ends_but_one_that_was_handed_over_keeps_its_last_stage() {
    let mut m = item(ItemKind::Message);
    on_device(&mut m, id(1), WallMs(2));
    presume_silent(&mut m, WallMs(50));
    let reason = SILENT.to_owned();
    assert_eq!(stages(&m).last(), Some(&Stage::Undeliverable { reason }));
    let mut m = item(ItemKind::Message);
    apply(
        &mut m,
        id(1),
        ReportBody::Receipt(receipt(Stage::HandedOver, 3)),
        WallMs(3),
    );
    assert_eq!(presume_silent(&mut m, WallMs(50)), Effect::Changed);
    assert_eq!(stages(&m).last(), Some(&Stage::HandedOver));
    assert!(m.presumed && !m.is_over());
    let seen = ReportBody::Receipt(receipt(Stage::Seen, 60));
    assert_eq!(apply(&mut m, id(1), seen, WallMs(60)), Effect::Changed);
    assert!(!m.presumed);
}
