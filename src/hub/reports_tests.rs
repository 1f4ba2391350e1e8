use super::*;
use crate::domain::{Address, DeviceId, Door, Priority, Reply, Sender, Trust};
use crate::hub::records::Attempt;

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(n)
}

fn item(kind: ItemKind) -> ItemRecord {
    let attempt = |attempt, envelope| Attempt {
        attempt,
        envelope: id(envelope),
        created_at: WallMs(1),
        started_at: None,
        ended_at: None,
    };
    ItemRecord {
        id: id(1),
        kind,
        device: DeviceId::new("d").unwrap(),
        to: Address::default(),
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        priority: Priority::Normal,
        created_at: WallMs(1),
        expires_at: WallMs(1000),
        state: TaskState::new(TaskStatus::Queued),
        receipts: vec![receipt(Stage::Accepted, 1)],
        attempts: match kind {
            ItemKind::Task => vec![attempt(1, 1)],
            ItemKind::Message => vec![],
        },
        replies: vec![],
        result: None,
        metadata: None,
    }
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
