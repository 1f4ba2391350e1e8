use super::*;
use crate::domain::{Receipt, TaskState};

fn item(kind: ItemKind) -> ItemRecord {
    ItemRecord::sample(kind)
}

fn at(kind: ItemKind, stage: Stage) -> ItemRecord {
    let mut item = item(kind);
    item.receipts.push(Receipt {
        stage,
        at: WallMs(2),
        evidence: None,
    });
    item
}

#[test]
fn called_off_at_once_is_said_only_when_nobody_ever_had_it() {
    for kind in [ItemKind::Task, ItemKind::Message] {
        assert_eq!(decide(&item(kind), true), Decision::AtOnce);
        assert_eq!(decide(&item(kind), false), Decision::Ask);
        assert_eq!(decide(&at(kind, Stage::OnDevice), false), Decision::Ask);
    }
}

#[test]
fn a_device_is_asked_once_per_attempt() {
    let mut task = at(ItemKind::Task, Stage::OnDevice);
    task.cancel = Some(CancelWish {
        envelope: EnvelopeId::from_u128(9),
        of: task.current(),
        at: WallMs(3),
    });
    assert_eq!(decide(&task, false), Decision::Asked);
    let mut next = task.attempts[0].clone();
    next.envelope = EnvelopeId::from_u128(2);
    task.attempts.push(next);
    assert_eq!(decide(&task, false), Decision::Ask);
}

#[test]
fn a_final_end_stays_and_a_presumed_one_may_go_on() {
    for status in [
        TaskStatus::Completed,
        TaskStatus::Failed,
        TaskStatus::Interrupted,
        TaskStatus::Dead,
        TaskStatus::Expired,
    ] {
        let mut task = item(ItemKind::Task);
        task.state = TaskState::new(status);
        assert_eq!(decide(&task, false), Decision::Finished, "{status:?}");
        task.presumed = true;
        assert_eq!(decide(&task, false), Decision::Ask, "{status:?}");
        assert_eq!(decide(&task, true), Decision::Finished, "{status:?}");
    }
    let mut task = item(ItemKind::Task);
    task.state = TaskState::new(TaskStatus::Cancelled);
    assert_eq!(decide(&task, false), Decision::Already);
    let gone = at(ItemKind::Message, Stage::Cancelled);
    assert_eq!(decide(&gone, false), Decision::Already);
    let done = at(ItemKind::Message, Stage::Done);
    assert_eq!(decide(&done, false), Decision::Finished);
}

#[test]
fn a_message_that_a_session_has_is_not_taken_back_and_the_answer_names_who_has_it() {
    let claimed = Stage::Claimed { door: Door::Hooks };
    for stage in [claimed.clone(), Stage::HandedOver, Stage::Seen] {
        let message = at(ItemKind::Message, stage);
        assert_eq!(decide(&message, false), Decision::Taken);
    }
    // A task is called off also while it runs.
    let running = at(ItemKind::Task, claimed.clone());
    assert_eq!(decide(&running, false), Decision::Ask);
    let mut message = at(ItemKind::Message, claimed);
    let session = crate::domain::SessionId::from_u128(7);
    message.receipts[1].evidence = Some(json!({ "session_id": session }));
    let e = taken(&message).0;
    assert_eq!(e.code, "conflict");
    assert_eq!(e.state.as_deref(), Some("claimed"));
    assert!(
        e.title.contains("hooks") && e.title.contains(&session.to_string()),
        "{e}"
    );
}

#[test]
fn a_cancel_names_the_attempt_and_a_recall_the_message() {
    let account = AccountId::new("acme").unwrap();
    let by = item(ItemKind::Task).from;
    let wish = EnvelopeId::from_u128(9);
    let sent = |kind| {
        let ops = ask(&account, &item(kind), by.clone(), wish, WallMs(5));
        let Op::Append { json, .. } = &ops[0] else {
            panic!("{ops:?}");
        };
        serde_json::from_str::<Envelope>(json).unwrap()
    };
    let task = EnvelopeId::from_u128(1);
    let body = sent(ItemKind::Task).cancel().unwrap();
    assert_eq!((body.task_id, body.attempt), (task, Some(1)));
    assert_eq!(sent(ItemKind::Message).recall().unwrap().message_id, task);
}
