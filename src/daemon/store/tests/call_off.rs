//! What was called off, attempts, and starts that came to nothing.

use super::*;
use crate::domain::ReportBody;

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(n)
}

fn cancel(n: u128, body: serde_json::Value, made_at: i64) -> Envelope {
    Envelope {
        kind: EnvelopeKind::Cancel,
        body,
        created_at: WallMs(made_at),
        ..message(n)
    }
}

fn attempt(n: u128, task_id: u128, attempt: u32, made_at: i64) -> Envelope {
    Envelope {
        body: json!({ "task_id": id(task_id), "task": "do it" }),
        attempt: Some(attempt),
        created_at: WallMs(made_at),
        ..task(n)
    }
}

impl Fixture {
    async fn state(&self, n: u128) -> EnvelopeState {
        self.store.envelope(id(n)).await.unwrap().unwrap().state
    }

    /// What was reported about an envelope: stages and statuses.
    async fn told(&self, n: u128) -> Vec<String> {
        let rows = self.store.reports_after(0, 100).await.unwrap();
        rows.iter()
            .filter(|r| r.id == id(n).0)
            .map(|r| match r.read().unwrap() {
                ReportBody::Receipt(r) => format!("{:?}", r.stage),
                ReportBody::Status(s) => format!("{:?}", s.status),
                other => format!("{other:?}"),
            })
            .collect()
    }

    async fn off(&self, seq: u64, cancel: Envelope) {
        let stored = self.store.store_envelope(at(seq), cancel).await;
        assert_eq!(stored, Ok(Stored::New));
    }
}

#[tokio::test]
async fn a_task_that_waits_ends_in_the_commit_of_its_cancel_and_never_starts() {
    let f = fixture();
    f.fill(vec![task(1), task(2)]).await;
    f.store.hold(id(1), "paused", vec![]).await.unwrap();
    f.off(3, cancel(9, json!({"task_id": id(1)}), 5)).await;
    assert_eq!(f.state(1).await, EnvelopeState::Terminal);
    assert_eq!(f.told(1).await, ["Cancelled", "Cancelled"]);
    let late = f.store.start_run(run(1, 1), vec![]).await;
    assert_eq!(late, Err(StoreError::NotQueued(id(1))));
    assert_eq!(f.state(2).await, EnvelopeState::Queued);
}

#[tokio::test]
async fn a_cancel_that_comes_before_its_task_is_not_forgotten_over_a_restart() {
    let f = fixture();
    let body = json!({"task_id": id(1), "attempt": 1});
    f.off(1, cancel(9, body, 5)).await;
    let f = f.reopened().await;
    f.store.store_envelope(at(2), task(1)).await.unwrap();
    assert_eq!(f.state(1).await, EnvelopeState::Terminal);
    assert_eq!(f.told(1).await, ["Cancelled", "Cancelled"]);
    // A hub that lost the answer gets it again.
    f.store.prune_reports(2, vec![]).await.unwrap();
    f.store.store_envelope(at(3), task(1)).await.unwrap();
    assert_eq!(f.told(1).await, ["Cancelled", "Cancelled"]);
}

#[tokio::test]
async fn a_retry_after_a_cancel_is_not_called_off_with_the_attempt_before() {
    for body in [
        json!({"task_id": id(1)}),
        json!({"task_id": id(1), "attempt": 1}),
    ] {
        let f = fixture();
        f.fill(vec![attempt(1, 1, 1, 10)]).await;
        f.off(2, cancel(9, body, 20)).await;
        f.store
            .store_envelope(at(3), attempt(2, 1, 2, 30))
            .await
            .unwrap();
        assert_eq!(f.state(1).await, EnvelopeState::Terminal);
        assert_eq!(f.state(2).await, EnvelopeState::Queued);
    }
}

#[tokio::test]
async fn a_run_that_goes_is_left_to_its_runner_and_its_attempt_never_waits_again() {
    let f = fixture();
    f.fill(vec![task(1)]).await;
    f.store.start_run(run(1, 1), vec![]).await.unwrap();
    let off = cancel(9, json!({"task_id": id(1)}), 5);
    f.off(2, off.clone()).await;
    assert_eq!(f.state(1).await, EnvelopeState::Claimed);
    let meant = f.store.called_off(off).await.unwrap();
    assert_eq!(meant.len(), 1);
    assert_eq!(f.store.is_called_off(id(1)).await, Ok(true));
    let hold = Some("rate_limit".to_owned());
    let back = vec![
        Change::ForgetRun(id(1)),
        Change::Requeue { id: id(1), hold },
    ];
    f.store.apply(back).await.unwrap();
    assert_eq!(f.state(1).await, EnvelopeState::Terminal);
    assert_eq!(f.told(1).await, ["Cancelled", "Cancelled"]);
}

#[tokio::test]
async fn a_message_is_recalled_while_nothing_has_claimed_it_and_goes_its_way_afterwards() {
    let f = fixture();
    f.fill(vec![message(1), message(2)]).await;
    f.store.open_claim(claim(5, &[2]), vec![]).await.unwrap();
    f.off(3, cancel(8, json!({"message_id": id(1)}), 5)).await;
    f.off(4, cancel(9, json!({"message_id": id(2)}), 5)).await;
    assert_eq!(f.told(1).await, ["Cancelled"]);
    assert_eq!(f.state(2).await, EnvelopeState::Claimed);
    assert_eq!(f.told(2).await, [""; 0]);
    // The claim's text proved not to have arrived: now it can be taken back.
    let closed = ClaimRow {
        closed: true,
        ..claim(5, &[2])
    };
    f.store
        .update_claim(closed, vec![id(2)], vec![], vec![])
        .await
        .unwrap();
    assert_eq!(f.told(2).await, ["Cancelled"]);
    assert_eq!(f.state(2).await, EnvelopeState::Terminal);
}

#[tokio::test]
async fn a_newer_attempt_ends_the_older_one_in_whichever_order_they_come() {
    let f = fixture();
    f.fill(vec![attempt(1, 1, 1, 10), attempt(2, 1, 2, 20)])
        .await;
    assert_eq!(f.state(1).await, EnvelopeState::Terminal);
    assert_eq!(f.state(2).await, EnvelopeState::Queued);
    let f = fixture();
    f.fill(vec![attempt(2, 1, 2, 20), attempt(1, 1, 1, 10)])
        .await;
    assert_eq!(f.state(1).await, EnvelopeState::Terminal);
    assert_eq!(f.waiting().await, [2]);
}

#[tokio::test]
async fn two_attempts_of_a_task_never_run_at_once() {
    let f = fixture();
    f.fill(vec![attempt(1, 1, 1, 10)]).await;
    f.store.start_run(run(1, 1), vec![]).await.unwrap();
    f.store
        .store_envelope(at(2), attempt(2, 1, 2, 20))
        .await
        .unwrap();
    let second = RunRow {
        envelope: id(2),
        ..run(1, 2)
    };
    let early = f.store.start_run(second.clone(), vec![]).await;
    assert!(matches!(early, Err(StoreError::RunExists { .. })));
    assert_eq!(f.state(2).await, EnvelopeState::Queued);
    let over = RunRow {
        finished: true,
        ..run(1, 1)
    };
    let end = vec![Change::UpdateRun(over), Change::Finish(id(1))];
    f.store.apply(end).await.unwrap();
    f.store.start_run(second, vec![]).await.unwrap();
    // Nor beside a live session that has the other one.
    let f = fixture();
    f.fill(vec![attempt(1, 1, 1, 10)]).await;
    f.store.open_claim(claim(5, &[1]), vec![]).await.unwrap();
    f.store
        .store_envelope(at(2), attempt(2, 1, 2, 20))
        .await
        .unwrap();
    let second = RunRow {
        envelope: id(2),
        ..run(1, 2)
    };
    assert!(f.store.start_run(second, vec![]).await.is_err());
}

#[tokio::test]
async fn starts_that_the_daemon_did_not_outlive_are_counted_over_restarts_and_others_are_not() {
    let mut f = fixture();
    f.fill(vec![task(1)]).await;
    let starts = |f: &Fixture| {
        let store = f.store.clone();
        async move { store.envelope(id(1)).await.unwrap().unwrap().starts }
    };
    for n in 1..=3 {
        let again = Change::Requeue {
            id: id(1),
            hold: None,
        };
        f.store.start_run(run(1, 1), vec![]).await.unwrap();
        let unspent = vec![Change::ForgetRun(id(1)), again.clone()];
        f.store.apply(unspent).await.unwrap();
        assert_eq!(starts(&f).await, n - 1, "a start that says nothing");
        f.store.start_run(run(1, 1), vec![]).await.unwrap();
        f = f.reopened().await;
        let lost = vec![Change::LoseRun(id(1)), again];
        f.store.apply(lost).await.unwrap();
        assert_eq!(starts(&f).await, n);
    }
}
