use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::domain::{
    Activity, Address, ClaimId, Door, EnvelopeKind, Priority, ProjectName, Receipt, Report,
    ReportKind, Sender, Seq, SessionId, Stage,
};

mod call_off;
mod file;

const EPOCH: Epoch = Epoch::from_u128(7);

fn at(seq: u64) -> Cursor {
    Cursor {
        epoch: EPOCH,
        seq: Seq(seq),
    }
}

fn message(n: u128) -> Envelope {
    Envelope {
        id: EnvelopeId::from_u128(n),
        kind: EnvelopeKind::Message,
        from: Sender {
            name: "ci".into(),
            trust: crate::domain::Trust::Suggest,
        },
        to: Address::default(),
        priority: Priority::Normal,
        body: json!({ "content": format!("m{n}") }),
        wake: false,
        created_at: WallMs(1),
        expires_at: WallMs(i64::MAX),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

fn task(n: u128) -> Envelope {
    Envelope {
        kind: EnvelopeKind::Task,
        body: json!({ "task_id": EnvelopeId::from_u128(n), "task": "do it" }),
        attempt: Some(1),
        ..message(n)
    }
}

fn done(id: EnvelopeId) -> NewReport {
    NewReport::receipt(
        id,
        Receipt {
            stage: Stage::Done,
            at: WallMs(5),
            evidence: None,
        },
    )
}

fn claim(n: u128, envelopes: &[u128]) -> ClaimRow {
    ClaimRow {
        id: ClaimId::from_u128(n),
        door: Door::Hooks,
        session: Some(SessionId::from_u128(1)),
        envelopes: envelopes
            .iter()
            .map(|n| EnvelopeId::from_u128(*n))
            .collect(),
        transcript: Some("/tmp/t.jsonl".into()),
        offset: 17,
        opened_at: WallMs(10),
        lease_until: WallMs(40),
        state: "claimed".into(),
        closed: false,
        detail: json!({ "turn": 3 }),
    }
}

fn run(n: u128, attempt: u32) -> RunRow {
    RunRow {
        envelope: EnvelopeId::from_u128(n),
        task_id: EnvelopeId::from_u128(n),
        attempt,
        pid: Some(4242),
        proc_start: Some(99),
        session_id: None,
        started_at: WallMs(3),
        state: "running".into(),
        finished: false,
        detail: json!(null),
    }
}

struct Fixture {
    dir: TempDir,
    store: Store,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join(FILE)).unwrap();
    Fixture { dir, store }
}

impl Fixture {
    async fn reopened(self) -> Self {
        self.store.close().await;
        let store = Store::open(&self.dir.path().join(FILE)).unwrap();
        Self {
            dir: self.dir,
            store,
        }
    }

    async fn fill(&self, envelopes: Vec<Envelope>) -> Vec<Stored> {
        let batch = (1..)
            .zip(envelopes)
            .map(|(seq, envelope)| Incoming {
                cursor: at(seq),
                envelope,
            })
            .collect();
        self.store.store(batch).await.unwrap()
    }

    async fn waiting(&self) -> Vec<u128> {
        let rows = self.store.queued(QueueFilter::default(), 100).await;
        let ids = |r: &EnvelopeRow| r.envelope.id.0.as_u128();
        rows.unwrap().iter().map(ids).collect()
    }
}

#[tokio::test]
async fn a_duplicate_moves_the_cursor_and_nothing_else_even_after_a_restart() {
    let f = fixture();
    let store = |seq, n| f.store.store_envelope(at(seq), message(n));
    assert_eq!(store(1, 1).await, Ok(Stored::New));
    assert_eq!(store(2, 1).await, Ok(Stored::Duplicate));
    assert_eq!(*f.store.durable().borrow(), Some(at(2)));
    let info = f.store.info();
    let f = f.reopened().await;
    assert_eq!(f.store.info(), info);
    assert_eq!(f.store.cursor().await, Ok(Some(at(2))));
    assert_eq!(
        f.store.store_envelope(at(3), message(1)).await,
        Ok(Stored::Duplicate)
    );
    assert_eq!(f.waiting().await, [1]);
}

#[tokio::test]
async fn the_cursor_never_goes_back_within_an_epoch_but_a_reset_begins_anew() {
    let f = fixture();
    f.store.store_envelope(at(9), message(1)).await.unwrap();
    f.store.store_envelope(at(4), message(2)).await.unwrap();
    assert_eq!(f.store.cursor().await, Ok(Some(at(9))));
    let other = Epoch::from_u128(8);
    f.store.reset_cursor(other).await.unwrap();
    let anew = Cursor {
        epoch: other,
        seq: Seq(0),
    };
    assert_eq!(f.store.cursor().await, Ok(Some(anew)));
    assert_eq!(*f.store.durable().borrow(), Some(anew));
    assert_eq!(f.waiting().await, [1, 2], "the queue is kept");
}

#[tokio::test]
async fn mail_is_listed_by_lane_and_by_arrival_within_it() {
    let f = fixture();
    let lane = |n, priority| Envelope {
        priority,
        ..message(n)
    };
    f.fill(vec![
        lane(1, Priority::Low),
        lane(2, Priority::Normal),
        lane(3, Priority::Urgent),
        lane(4, Priority::Normal),
        lane(5, Priority::Urgent),
    ])
    .await;
    assert_eq!(f.waiting().await, [3, 5, 2, 4, 1]);
}

#[tokio::test]
async fn filters_narrow_by_session_lineage_project_kind_and_lane() {
    let f = fixture();
    let session = SessionId::from_u128(5);
    let project = ProjectName::new("github.com/a/b").unwrap();
    let mut to_session = message(1);
    to_session.to.session_id = Some(session);
    let mut to_project = task(2);
    to_project.to.project = Some(project.clone());
    f.fill(vec![to_session, to_project, message(3)]).await;
    let ids = |filter| async {
        let rows = f.store.queued(filter, 10).await.unwrap();
        let id = |r: &EnvelopeRow| r.envelope.id.0.as_u128();
        rows.iter().map(id).collect::<Vec<_>>()
    };
    let sessions = vec![SessionId::from_u128(4), session];
    let filter = QueueFilter {
        sessions,
        ..QueueFilter::default()
    };
    assert_eq!(ids(filter).await, [1]);
    let filter = QueueFilter {
        project: Some(project),
        ..QueueFilter::default()
    };
    assert_eq!(ids(filter).await, [2]);
    let filter = QueueFilter {
        kind: Some(EnvelopeKind::Message),
        ..QueueFilter::default()
    };
    assert_eq!(ids(filter).await, [1, 3]);
    assert_eq!(f.store.addressed_sessions().await, Ok(vec![session]));
}

#[tokio::test]
async fn an_unknown_kind_is_stored_as_finished_and_reported_unsupported() {
    let f = fixture();
    let kind = EnvelopeKind::Other("hologram".into());
    f.fill(vec![Envelope { kind, ..message(1) }]).await;
    assert!(f.waiting().await.is_empty());
    let reports = f.store.reports_after(0, 10).await.unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].body["stage"], "unsupported");
}

#[tokio::test]
async fn a_claim_takes_all_its_envelopes_or_none_and_no_report_of_it_stays() {
    let f = fixture();
    f.fill(vec![message(1), message(2)]).await;
    f.store.open_claim(claim(10, &[2]), vec![]).await.unwrap();
    let id = EnvelopeId::from_u128(1);
    let lost = f.store.open_claim(claim(11, &[1, 2]), vec![done(id)]).await;
    assert_eq!(lost, Err(StoreError::NotQueued(EnvelopeId::from_u128(2))));
    assert_eq!(f.waiting().await, [1]);
    assert!(f.store.reports_after(0, 10).await.unwrap().is_empty());
    assert_eq!(f.store.open_claims().await, Ok(vec![claim(10, &[2])]));
}

#[tokio::test]
async fn a_requeued_envelope_comes_back_at_its_old_place() {
    let f = fixture();
    f.fill(vec![message(1), message(2), message(3)]).await;
    f.store.open_claim(claim(9, &[1, 2]), vec![]).await.unwrap();
    assert_eq!(f.waiting().await, [3]);
    let closed = ClaimRow {
        closed: true,
        ..claim(9, &[1, 2])
    };
    let (one, two) = (EnvelopeId::from_u128(1), EnvelopeId::from_u128(2));
    f.store
        .update_claim(closed.clone(), vec![one], vec![two], vec![done(two)])
        .await
        .unwrap();
    assert_eq!(f.waiting().await, [1, 3]);
    assert!(f.store.open_claims().await.unwrap().is_empty());
    let again = f.store.update_claim(closed, vec![], vec![], vec![]).await;
    assert_eq!(again, Err(StoreError::UnknownClaim(ClaimId::from_u128(9))));
}

#[tokio::test]
async fn a_hub_that_forgot_how_it_ended_is_told_once_more() {
    let f = fixture();
    f.fill(vec![message(1)]).await;
    let id = EnvelopeId::from_u128(1);
    f.store.finish(id, vec![done(id)]).await.unwrap();
    f.store.store_envelope(at(2), message(1)).await.unwrap();
    assert_eq!(
        f.store.reports_after(0, 10).await.unwrap().len(),
        1,
        "the first report still waits"
    );
    f.store.prune_reports(1, vec![]).await.unwrap();
    f.store.store_envelope(at(3), message(1)).await.unwrap();
    let reports = f.store.reports_after(0, 10).await.unwrap();
    assert_eq!((reports.len(), reports[0].n), (1, 2));
    assert_eq!(reports[0].body["stage"], "done");
}

#[tokio::test]
async fn report_numbers_are_dense_and_are_not_used_twice_after_a_prune_and_a_restart() {
    let f = fixture();
    let id = EnvelopeId::from_u128(1);
    f.store.append(vec![done(id), done(id)]).await.unwrap();
    let lost = vec![
        Change::Report(done(id)),
        Change::FinishQueued(EnvelopeId::from_u128(404)),
    ];
    assert!(f.store.apply(lost).await.is_err());
    f.store.append(vec![done(id)]).await.unwrap();
    let ns = |r: Vec<Report>| r.iter().map(|r| r.n).collect::<Vec<_>>();
    assert_eq!(ns(f.store.reports_after(0, 10).await.unwrap()), [1, 2, 3]);
    let rejected = vec![RejectedReport {
        n: 2,
        code: "invalid_field".into(),
    }];
    f.store.prune_reports(3, rejected).await.unwrap();
    let f = f.reopened().await;
    assert_eq!(*f.store.outbox().borrow(), 4);
    f.store.append(vec![done(id)]).await.unwrap();
    assert_eq!(ns(f.store.reports_after(0, 10).await.unwrap()), [4]);
    let counts = f.store.counts().await.unwrap();
    assert_eq!((counts.outbox, counts.rejected_reports), (1, 1));
}

#[tokio::test]
async fn an_outbox_that_was_put_back_goes_on_after_the_number_that_the_hub_knows() {
    let f = fixture();
    let id = EnvelopeId::from_u128(1);
    let ns = || async {
        let rows = f.store.reports_after(0, 10).await.unwrap();
        rows.iter().map(|r| r.n).collect::<Vec<_>>()
    };
    assert_eq!(f.store.renumber_outbox(4).await, Ok(5), "an empty one, too");
    f.store.append(vec![done(id), done(id)]).await.unwrap();
    assert_eq!(ns().await, [5, 6]);
    assert_eq!(f.store.renumber_outbox(5).await, Ok(8));
    assert_eq!(ns().await, [6, 7]);
    assert_eq!(*f.store.outbox().borrow(), 8);
}

#[tokio::test]
async fn reports_about_local_envelopes_stay_on_the_device() {
    let f = fixture();
    f.store.post_local(vec![message(1)]).await.unwrap();
    let id = EnvelopeId::from_u128(1);
    f.store.finish(id, vec![done(id)]).await.unwrap();
    assert!(f.store.reports_after(0, 10).await.unwrap().is_empty());
    let kept = f.store.local_reports(id).await.unwrap();
    assert_eq!(kept[0].kind, ReportKind::Receipt);
    assert!(f.store.cursor().await.unwrap().is_none());
}

#[tokio::test]
async fn holding_shows_in_the_counts_until_the_envelope_moves_on() {
    let f = fixture();
    f.fill(vec![message(1), message(2)]).await;
    let id = EnvelopeId::from_u128(1);
    f.store.hold(id, "paused", vec![done(id)]).await.unwrap();
    let counts = f.store.counts().await.unwrap();
    assert_eq!(
        (counts.queued, counts.held),
        (1, vec![("paused".into(), 1)])
    );
    f.store.open_claim(claim(1, &[1]), vec![]).await.unwrap();
    let counts = f.store.counts().await.unwrap();
    assert_eq!((counts.queued, counts.claimed), (1, 1));
    assert!(counts.held.is_empty());
    let lost = f.store.hold(id, "late", vec![]).await;
    assert_eq!(lost, Err(StoreError::NotQueued(id)));
}

#[tokio::test]
async fn an_attempt_has_one_run_and_a_finished_attempt_none() {
    let f = fixture();
    f.fill(vec![task(1), task(2)]).await;
    f.store.start_run(run(1, 1), vec![]).await.unwrap();
    assert_eq!(f.waiting().await, [2]);
    let twice = f.store.start_run(run(1, 1), vec![]).await;
    assert!(matches!(twice, Err(StoreError::RunExists { .. })));
    let id = EnvelopeId::from_u128(2);
    f.store.apply(vec![Change::FinishQueued(id)]).await.unwrap();
    let late = f.store.start_run(run(2, 1), vec![]).await;
    assert_eq!(late, Err(StoreError::NotQueued(id)));
    assert_eq!(f.store.unfinished_runs().await, Ok(vec![run(1, 1)]));
    let finished = RunRow {
        finished: true,
        ..run(1, 1)
    };
    f.store.update_run(finished.clone(), vec![]).await.unwrap();
    assert!(f.store.unfinished_runs().await.unwrap().is_empty());
    assert_eq!(
        f.store.runs_of(EnvelopeId::from_u128(1)).await,
        Ok(vec![finished])
    );
    assert_eq!(
        f.store
            .attempts(EnvelopeId::from_u128(1))
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn a_session_is_found_by_every_id_it_ever_had() {
    let f = fixture();
    let row = SessionRow {
        session_id: SessionId::from_u128(3),
        lineage: vec![SessionId::from_u128(1), SessionId::from_u128(2)],
        pid: Some(7),
        proc_start: Some(8),
        cwd: "/src/b".into(),
        transcript: None,
        project: Some(ProjectName::new("b").unwrap()),
        entrypoint: Some("cli".into()),
        activity: Activity::Idle,
        reason: Some("hook".into()),
        active_at: WallMs(4),
        told_memory: Some("abc".into()),
        detail: json!({}),
    };
    f.store.put_session(row.clone()).await.unwrap();
    for id in 1..=3 {
        let found = f.store.session(SessionId::from_u128(id)).await.unwrap();
        assert_eq!(found.as_ref(), Some(&row));
    }
    assert_eq!(f.store.session(SessionId::from_u128(9)).await, Ok(None));
    let listed = f.store.sessions(row.project.clone(), 10).await.unwrap();
    assert_eq!(listed, vec![row]);
}

#[tokio::test]
async fn a_sweep_deletes_finished_envelopes_but_not_the_memory_of_their_ids() {
    let f = fixture();
    f.fill(vec![message(1), message(2)]).await;
    let id = EnvelopeId::from_u128(1);
    f.store.finish(id, vec![]).await.unwrap();
    let later = |days: i64| now().plus(days * 24 * 3600 * 1000);
    assert_eq!(f.store.sweep(later(2)).await, Ok(false));
    assert_eq!(f.store.envelope(id).await, Ok(None));
    let again = f.store.store_envelope(at(9), message(1)).await;
    assert_eq!(again, Ok(Stored::Duplicate));
    f.store.sweep(later(31)).await.unwrap();
    let again = f.store.store_envelope(at(10), message(1)).await;
    assert_eq!(again, Ok(Stored::New), "the memory is bounded");
    assert_eq!(f.waiting().await, [2, 1], "what waits is never swept");
}

#[tokio::test]
async fn fifty_concurrent_writers_lose_nothing() {
    let f = fixture();
    let mut writers = tokio::task::JoinSet::new();
    for w in 0..50u128 {
        let store = f.store.clone();
        writers.spawn(async move {
            for n in 0..10 {
                let one = vec![message(w * 100 + n)];
                assert_eq!(store.post_local(one).await, Ok(vec![Stored::New]));
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    assert_eq!(f.store.counts().await.unwrap().queued, 500);
}
