use serde_json::json;

use super::*;
use crate::domain::{Priority, Sender, WallMs};

fn ended(status: TaskStatus) -> ItemRecord {
    let mut task = ItemRecord::sample(ItemKind::Task);
    task.state = TaskState::because(status, "why");
    task
}

fn envelope(attempt: u32) -> Envelope {
    Envelope {
        id: EnvelopeId::from_u128(100 + u128::from(attempt)),
        kind: EnvelopeKind::Task,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Run,
        },
        to: crate::domain::Address::default(),
        priority: Priority::Normal,
        body: json!({}),
        wake: true,
        created_at: WallMs(50),
        expires_at: WallMs(500),
        attempt: Some(attempt),
        hops: 0,
        reply_to: None,
    }
}

#[test]
fn only_what_ended_is_tried_again_and_what_was_done_only_when_somebody_insists() {
    use TaskStatus::{
        AwaitingApproval, Blocked, Cancelled, Completed, Dead, Delivered, Expired, Failed,
        Interrupted, Queued, Rejected, Running, Unsupported,
    };
    for status in [Queued, Delivered, AwaitingApproval, Blocked, Running] {
        assert_eq!(decide(&ended(status), true), Err(No::Open), "{status:?}");
    }
    for status in [
        Interrupted,
        Failed,
        Dead,
        Cancelled,
        Expired,
        Rejected,
        Unsupported,
    ] {
        assert_eq!(decide(&ended(status), false), Ok(()), "{status:?}");
    }
    assert_eq!(decide(&ended(Completed), false), Err(No::Done));
    assert_eq!(decide(&ended(Completed), true), Ok(()));
    let mut often = ended(Failed);
    often.attempts = vec![often.attempts[0].clone(); MAX_TRIES];
    assert_eq!(decide(&often, true), Err(No::TooOften));
}

#[test]
fn a_new_attempt_begins_anew_and_the_old_one_keeps_its_story() {
    let mut old = ended(TaskStatus::Interrupted);
    old.presumed = true;
    old.result = Some(crate::domain::TaskResult::default());
    let device = DeviceId::new("other").unwrap();
    let new = next_attempt(&old, &envelope(2), device.clone());
    assert_eq!(new.current(), EnvelopeId::from_u128(102));
    assert_eq!(new.state, TaskState::new(TaskStatus::Queued));
    assert_eq!(new.receipts.len(), 1);
    assert_eq!((new.expires_at, &new.device), (WallMs(500), &device));
    assert!(!new.presumed && new.result.is_none() && !new.is_over());
    let [first, second] = new.attempts.as_slice() else {
        panic!("{:?}", new.attempts);
    };
    assert_eq!(first.status, Some(TaskStatus::Interrupted));
    assert_eq!(first.reason.as_deref(), Some("why"));
    assert_eq!(first.receipts, old.receipts);
    assert_eq!((second.attempt, second.device.as_ref()), (2, Some(&device)));
    assert!(new.was_sent(EnvelopeId::from_u128(102), &device));
    assert!(!new.was_sent(EnvelopeId::from_u128(102), &old.device));
}
