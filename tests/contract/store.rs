//! One suite over every implementation of the hub's store.

use std::sync::Arc;
use std::time::Duration;

use remote_collab::domain::{AccountId, DeviceId, EnvelopeId, Seq, WallMs, limits};
use remote_collab::hub::store::{
    AnyStore, Caps, Commit, Done, Expect, Log, LogId, Mailbox, MailboxId, MemoryStore, Op, Records,
    SqliteStore, StoreError,
};

const LATER: WallMs = WallMs(4_000_000_000_000);
const NOW: WallMs = WallMs(1_800_000_000_000);

struct Bed {
    store: AnyStore,
    _dir: Option<tempfile::TempDir>,
}

fn memory(caps: Caps) -> Bed {
    Bed {
        store: AnyStore::Memory(MemoryStore::with_caps(caps)),
        _dir: None,
    }
}

fn sqlite(caps: Caps) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_with(&dir.path().join("hub.db"), caps).unwrap();
    Bed {
        store: AnyStore::Sqlite(store),
        _dir: Some(dir),
    }
}

fn mailbox(name: &str) -> MailboxId {
    MailboxId::of(
        &AccountId::new("default").unwrap(),
        &DeviceId::new(name).unwrap(),
    )
}

fn id(n: u128) -> EnvelopeId {
    EnvelopeId::from_u128(n)
}

fn append(to: &MailboxId, n: u128) -> Op {
    append_text(to, n, &format!("{{\"n\":{n}}}"))
}

fn append_text(to: &MailboxId, n: u128, text: &str) -> Op {
    Op::Append {
        mailbox: to.clone(),
        id: id(n),
        json: text.into(),
        expires_at: LATER,
    }
}

fn retire(from: &MailboxId, n: u128) -> Op {
    Op::Retire {
        mailbox: from.clone(),
        id: id(n),
    }
}

async fn seq_of(store: &AnyStore, op: Op) -> (Seq, bool) {
    match store.commit(vec![op]).await.unwrap()[0] {
        Done::Appended { seq, duplicate } => (seq, duplicate),
        ref other => panic!("{other:?}"),
    }
}

async fn seqs_after(store: &AnyStore, m: &MailboxId, after: u64) -> Vec<u64> {
    let rows = store
        .read_after(m, Seq(after), 1000, 1 << 30)
        .await
        .unwrap();
    rows.rows.iter().map(|r| r.seq.0).collect()
}

macro_rules! laws {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        mod on_memory { $(#[tokio::test] async fn $name() { super::$name(super::memory).await; })* }
        mod on_sqlite { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::sqlite).await; })* }
    };
}

laws! {
    a_seq_grows_and_a_known_id_changes_nothing;
    a_seq_is_not_given_again_after_its_row_was_dropped;
    nothing_of_a_failed_batch_is_visible;
    an_ack_moves_the_cursor_only_and_never_back;
    rows_come_in_order_within_the_limits;
    a_full_mailbox_refuses_and_takes_again_after_a_retirement;
    an_older_generation_is_fenced_out;
    a_new_life_has_a_new_epoch_and_keeps_the_rows;
    records_compare_and_set;
    records_are_listed_by_prefix_in_both_directions;
    fifty_writers_with_one_key_make_one_record;
    a_subscriber_gets_every_row_with_its_predecessor;
    a_slow_subscriber_is_told_to_read_again;
    due_envelopes_and_old_records_are_found_and_dropped_in_bounds;
    mailboxes_do_not_see_each_other;
    an_event_is_there_with_its_batch_or_not_at_all;
    the_oldest_events_make_room_and_a_number_is_not_given_twice;
    old_events_go_with_time_and_the_newest_stays;
    events_are_read_in_pages_and_by_what_they_are_about;
    a_watcher_gets_every_event_or_is_told_what_it_missed;
}

type Make = fn(Caps) -> Bed;

async fn a_seq_grows_and_a_known_id_changes_nothing(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let (s1, d1) = seq_of(&bed.store, append(&m, 1)).await;
    let (s2, d2) = seq_of(&bed.store, append(&m, 2)).await;
    assert!(s1 < s2 && !d1 && !d2);
    assert_eq!(seq_of(&bed.store, append(&m, 1)).await, (s1, true));
    bed.store.commit(vec![retire(&m, 1)]).await.unwrap();
    assert_eq!(seq_of(&bed.store, append(&m, 1)).await, (s1, true));
    assert_eq!(seqs_after(&bed.store, &m, 0).await, [s2.0]);
}

async fn a_seq_is_not_given_again_after_its_row_was_dropped(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let op = Op::Append {
        mailbox: m.clone(),
        id: id(1),
        json: "{}".into(),
        expires_at: WallMs(1),
    };
    let (s1, _) = seq_of(&bed.store, op).await;
    let forget = Op::Forget {
        mailbox: m.clone(),
        id: id(1),
    };
    bed.store.commit(vec![retire(&m, 1), forget]).await.unwrap();
    let (s2, duplicate) = seq_of(&bed.store, append(&m, 1)).await;
    assert!(s2 > s1 && !duplicate);
}

async fn nothing_of_a_failed_batch_is_visible(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    bed.store
        .commit(vec![append(&m, 1), Op::put("k", "old", Expect::Any)])
        .await
        .unwrap();
    let before = bed.store.position(&m).await.unwrap();
    let mut feed = bed.store.subscribe(&m);
    let failed = bed
        .store
        .commit(vec![
            append(&m, 2),
            retire(&m, 1),
            Op::Ack {
                mailbox: m.clone(),
                seq: Seq(2),
            },
            Op::Raise { mailbox: m.clone() },
            Op::put("k", "new", Expect::Any),
            Op::put("fresh", "x", Expect::Absent),
            Op::put("k", "newer", Expect::Absent),
        ])
        .await;
    assert_eq!(failed, Err(StoreError::Conflict { key: "k".into() }));
    assert_eq!(bed.store.position(&m).await.unwrap(), before);
    assert_eq!(seqs_after(&bed.store, &m, 0).await, [1]);
    assert_eq!(bed.store.get("k").await.unwrap().unwrap().value, "old");
    assert!(bed.store.get("fresh").await.unwrap().is_none());
    assert!(feed.rows.try_recv().is_err());
}

async fn an_ack_moves_the_cursor_only_and_never_back(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    bed.store
        .commit((1..=3).map(|n| append(&m, n)).collect())
        .await
        .unwrap();
    let ack = |seq| {
        vec![Op::Ack {
            mailbox: m.clone(),
            seq: Seq(seq),
        }]
    };
    let acked = |from, to| {
        Ok(vec![Done::Acked {
            from: Seq(from),
            to: Seq(to),
        }])
    };
    assert_eq!(bed.store.commit(ack(2)).await, acked(0, 2));
    assert_eq!(bed.store.commit(ack(1)).await, acked(2, 2));
    assert_eq!(bed.store.commit(ack(99)).await, acked(2, 3));
    assert_eq!(seqs_after(&bed.store, &m, 0).await, [1, 2, 3]);
    assert_eq!(
        bed.store.ids_between(&m, Seq(1), Seq(3)).await.unwrap(),
        [id(2), id(3)]
    );
}

async fn rows_come_in_order_within_the_limits(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let text = "x".repeat(100);
    bed.store
        .commit((1..=5).map(|n| append_text(&m, n, &text)).collect())
        .await
        .unwrap();
    let two = bed.store.read_after(&m, Seq(1), 2, 1 << 20).await.unwrap();
    let seqs: Vec<_> = two.rows.iter().map(|r| r.seq.0).collect();
    assert_eq!((seqs, two.more), (vec![2, 3], true));
    let by_bytes = bed.store.read_after(&m, Seq(0), 9, 250).await.unwrap();
    assert_eq!((by_bytes.rows.len(), by_bytes.more), (2, true));
    let one = bed.store.read_after(&m, Seq(4), 9, 1).await.unwrap();
    assert_eq!((one.rows.len(), one.more), (1, false));
    assert_eq!(&*one.rows[0].json, text);
    let none = bed.store.read_after(&m, Seq(5), 9, 1).await.unwrap();
    assert!(none.rows.is_empty() && !none.more);
}

async fn a_full_mailbox_refuses_and_takes_again_after_a_retirement(make: Make) {
    let bed = make(Caps {
        envelopes: 2,
        bytes: 100,
        ..Caps::default()
    });
    let m = mailbox("a");
    bed.store
        .commit(vec![append(&m, 1), append(&m, 2)])
        .await
        .unwrap();
    let full = bed.store.commit(vec![append(&m, 3)]).await;
    assert_eq!(full, Err(StoreError::MailboxFull));
    assert!(seq_of(&bed.store, append(&m, 2)).await.1);
    bed.store.commit(vec![retire(&m, 1)]).await.unwrap();
    let large = append_text(&m, 4, &"x".repeat(100));
    assert_eq!(
        bed.store.commit(vec![large]).await,
        Err(StoreError::MailboxFull)
    );
    assert!(!seq_of(&bed.store, append(&m, 3)).await.1);
}

async fn an_older_generation_is_fenced_out(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let raise = || vec![Op::Raise { mailbox: m.clone() }];
    let generation = |done: Vec<Done>| match done[0] {
        Done::At(p) => p.generation,
        ref other => panic!("{other:?}"),
    };
    let first = generation(bed.store.commit(raise()).await.unwrap());
    let second = generation(bed.store.commit(raise()).await.unwrap());
    assert!(second > first);
    let fence = |generation| Op::Fence {
        mailbox: m.clone(),
        generation,
    };
    let put = || Op::put("k", "v", Expect::Any);
    assert_eq!(
        bed.store.commit(vec![fence(first), put()]).await,
        Err(StoreError::Fenced)
    );
    assert!(bed.store.get("k").await.unwrap().is_none());
    bed.store.commit(vec![fence(second), put()]).await.unwrap();
}

async fn a_new_life_has_a_new_epoch_and_keeps_the_rows(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let ack = Op::Ack {
        mailbox: m.clone(),
        seq: Seq(1),
    };
    bed.store.commit(vec![append(&m, 1), ack]).await.unwrap();
    let before = bed.store.position(&m).await.unwrap().unwrap();
    bed.store
        .commit(vec![Op::Renew { mailbox: m.clone() }])
        .await
        .unwrap();
    let after = bed.store.position(&m).await.unwrap().unwrap();
    assert_ne!(before.epoch, after.epoch);
    assert_eq!((after.head, after.acked), (before.head, Seq(0)));
    assert_eq!(seqs_after(&bed.store, &m, 0).await, [1]);
}

async fn records_compare_and_set(make: Make) {
    let bed = make(Caps::default());
    let put = |v: &str, e| vec![Op::put("k", v, e)];
    let conflict = || Err(StoreError::Conflict { key: "k".into() });
    let s = &bed.store;
    assert_eq!(s.commit(put("a", Expect::Version(1))).await, conflict());
    s.commit(put("a", Expect::Absent)).await.unwrap();
    assert_eq!(s.commit(put("b", Expect::Absent)).await, conflict());
    let v1 = s.get("k").await.unwrap().unwrap().version;
    s.commit(put("b", Expect::Version(v1))).await.unwrap();
    assert_eq!(s.commit(put("c", Expect::Version(v1))).await, conflict());
    let delete = |expect| {
        vec![Op::Delete {
            key: "k".into(),
            expect,
        }]
    };
    assert_eq!(s.commit(delete(Expect::Version(v1))).await, conflict());
    s.commit(delete(Expect::Any)).await.unwrap();
    s.commit(delete(Expect::Any)).await.unwrap();
    assert!(s.get("k").await.unwrap().is_none());
}

async fn records_are_listed_by_prefix_in_both_directions(make: Make) {
    let bed = make(Caps::default());
    let keys = ["t/a/1", "t/a/2", "t/a/3", "t/ab/1", "t/b/1", "s/x"];
    bed.store
        .commit(keys.iter().map(|k| Op::put(*k, *k, Expect::Any)).collect())
        .await
        .unwrap();
    let list = |from: Option<&str>, limit, newest| {
        let (s, from) = (bed.store.clone(), from.map(str::to_owned));
        async move {
            let found = s.list("t/a/", from, limit, newest).await.unwrap();
            found.into_iter().map(|s| s.key).collect::<Vec<_>>()
        }
    };
    assert_eq!(list(None, 9, false).await, ["t/a/1", "t/a/2", "t/a/3"]);
    assert_eq!(list(Some("t/a/1"), 1, false).await, ["t/a/2"]);
    assert_eq!(list(None, 2, true).await, ["t/a/3", "t/a/2"]);
    assert_eq!(list(Some("t/a/2"), 9, true).await, ["t/a/1"]);
    assert_eq!(bed.store.list_all("t/").await.unwrap().len(), 5);
    let some = bed
        .store
        .get_many(vec!["s/x".into(), "none".into()])
        .await
        .unwrap();
    assert_eq!(some.len(), 1);
}

async fn fifty_writers_with_one_key_make_one_record(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50_u128 {
        let (store, m) = (bed.store.clone(), m.clone());
        tasks.spawn(async move {
            let batch = vec![
                Op::put("once", n.to_string(), Expect::Absent),
                append(&m, n),
            ];
            store.commit(batch).await.is_ok()
        });
    }
    let ok = tasks.join_all().await.into_iter().filter(|ok| *ok).count();
    assert_eq!(ok, 1);
    assert_eq!(seqs_after(&bed.store, &m, 0).await.len(), 1);
}

async fn a_subscriber_gets_every_row_with_its_predecessor(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    bed.store.commit(vec![append(&m, 1)]).await.unwrap();
    let mut feed = bed.store.subscribe(&m);
    bed.store
        .commit(vec![append(&m, 2), append(&m, 1), append(&m, 3)])
        .await
        .unwrap();
    for n in [2_u64, 3] {
        let got = tokio::time::timeout(Duration::from_secs(5), feed.rows.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!((got.prev, got.row.seq), (Seq(n - 1), Seq(n)));
        assert_eq!(&*got.row.json, format!("{{\"n\":{n}}}"));
    }
    assert!(feed.rows.try_recv().is_err());
}

async fn a_slow_subscriber_is_told_to_read_again(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let feed = bed.store.subscribe(&m);
    let all: Vec<Op> = (1..=1000).map(|n| append(&m, n)).collect();
    bed.store.commit(all).await.unwrap();
    assert!(feed.missed.has_changed().unwrap());
    assert_eq!(*feed.missed.borrow(), Seq(1000));
}

async fn due_envelopes_and_old_records_are_found_and_dropped_in_bounds(make: Make) {
    let bed = make(Caps::default());
    let m = mailbox("a");
    let mut batch: Vec<Op> = (1..=3)
        .map(|n| Op::Append {
            mailbox: m.clone(),
            id: id(n),
            json: Arc::from("{}"),
            expires_at: NOW,
        })
        .collect();
    batch.push(append(&m, 4));
    batch.push(Op::Ack {
        mailbox: m.clone(),
        seq: Seq(1),
    });
    for (key, keep_until) in [("a", Some(NOW)), ("b", Some(LATER)), ("c", None)] {
        batch.push(Op::Put {
            key: key.into(),
            value: "v".into(),
            expect: Expect::Any,
            keep_until,
        });
    }
    bed.store.commit(batch).await.unwrap();
    assert!(bed.store.due(NOW.plus(-1), 9).await.unwrap().is_empty());
    assert_eq!(bed.store.due(NOW, 2).await.unwrap().len(), 2);
    let due = bed.store.due(NOW, 9).await.unwrap();
    let acked: Vec<_> = due.iter().map(|d| d.acked).collect();
    assert_eq!(acked, [true, false, false]);
    bed.store
        .commit((1..=3).map(|n| retire(&m, n)).collect())
        .await
        .unwrap();
    assert!(bed.store.due(NOW, 9).await.unwrap().is_empty());

    assert_eq!(bed.store.retain(NOW, 9).await.unwrap(), 1);
    assert!(bed.store.get("a").await.unwrap().is_none());
    assert!(bed.store.get("b").await.unwrap().is_some());
    assert!(
        seq_of(&bed.store, append(&m, 1)).await.1,
        "kept as a known id"
    );
    let month = NOW.plus(limits::FINISHED_KEPT_MS);
    assert_eq!(bed.store.retain(month, 2).await.unwrap(), 2);
    assert_eq!(bed.store.retain(month, 9).await.unwrap(), 1);
    assert_eq!(bed.store.retain(month, 9).await.unwrap(), 0);
    assert_eq!(seqs_after(&bed.store, &m, 0).await, [4]);
}

async fn mailboxes_do_not_see_each_other(make: Make) {
    let bed = make(Caps::default());
    let (a, b) = (mailbox("a"), mailbox("b"));
    let mut feed = bed.store.subscribe(&b);
    bed.store
        .commit(vec![append(&a, 1), append(&b, 1), append(&a, 2)])
        .await
        .unwrap();
    assert_eq!(seqs_after(&bed.store, &b, 0).await.len(), 1);
    assert!(feed.rows.recv().await.is_some());
    assert!(feed.rows.try_recv().is_err());
    let at = |m| {
        let s = bed.store.clone();
        async move { s.position(&m).await.unwrap().unwrap().epoch }
    };
    assert_ne!(at(a).await, at(b).await);
    assert_eq!(bed.store.position(&mailbox("c")).await.unwrap(), None);
}

fn log(account: &str) -> LogId {
    LogId::of(&AccountId::new(account).unwrap())
}

fn note(to: &str, about: u128, n: usize) -> Op {
    Op::Note {
        log: log(to),
        about: id(about),
        at: NOW.plus(i64::try_from(n).unwrap()),
        json: format!("{{\"n\":{n}}}").into(),
    }
}

async fn events(store: &AnyStore, of: &str, after: u64, about: Option<u128>) -> Vec<u64> {
    let of = log(of);
    let page = store.events_after(&of, Seq(after), about.map(id), 100_000, 1 << 30);
    page.await.unwrap().rows.iter().map(|n| n.seq.0).collect()
}

async fn an_event_is_there_with_its_batch_or_not_at_all(make: Make) {
    let bed = make(Caps::default());
    let s = &bed.store;
    assert_eq!(s.log_position(&log("a")).await.unwrap(), None);
    let done = s.commit(vec![note("a", 1, 1), Op::put("k", "v", Expect::Absent)]);
    assert_eq!(done.await.unwrap()[0], Done::Noted { seq: Seq(1) });
    let before = s.log_position(&log("a")).await.unwrap().unwrap();
    assert_eq!((before.head, before.at), (Seq(1), NOW.plus(1)));
    let mut watch = s.watch(&log("a"));
    let trim = Op::Trim {
        log: log("a"),
        seq: Seq(1),
    };
    let failed = vec![
        note("a", 2, 2),
        trim,
        note("b", 2, 2),
        Op::put("k", "w", Expect::Absent),
    ];
    assert!(s.commit(failed).await.is_err());
    assert_eq!(s.log_position(&log("a")).await.unwrap(), Some(before));
    assert_eq!(events(s, "a", 0, None).await, [1]);
    assert!(events(s, "b", 0, None).await.is_empty());
    assert!(watch.try_recv().is_err());
    s.commit(vec![note("b", 9, 1), note("a", 2, 2)])
        .await
        .unwrap();
    assert_eq!(events(s, "a", 0, None).await, [1, 2]);
    assert_eq!(events(s, "b", 0, None).await, [1]);
    let of_b = s.log_position(&log("b")).await.unwrap().unwrap();
    assert_ne!(of_b.epoch, before.epoch);
}

async fn the_oldest_events_make_room_and_a_number_is_not_given_twice(make: Make) {
    let bed = make(Caps {
        events: 100,
        ..Caps::default()
    });
    let s = &bed.store;
    for round in 0..20 {
        let batch = (1..=50).map(|n| note("a", 1, round * 50 + n)).collect();
        s.commit(batch).await.unwrap();
    }
    let left = events(s, "a", 0, None).await;
    assert_eq!(left.last(), Some(&1000));
    assert!((100..200).contains(&left.len()), "{}", left.len());
    assert!(left.windows(2).all(|w| w[1] == w[0] + 1));
    let all = Op::Trim {
        log: log("a"),
        seq: Seq(5000),
    };
    s.commit(vec![all]).await.unwrap();
    assert_eq!(events(s, "a", 0, None).await, [1000]);
    s.commit(vec![note("a", 1, 1)]).await.unwrap();
    assert_eq!(events(s, "a", 0, None).await, [1000, 1001]);
}

async fn old_events_go_with_time_and_the_newest_stays(make: Make) {
    let bed = make(Caps::default());
    let s = &bed.store;
    let batch = (0..10).map(|n| note("a", 1, n)).collect();
    s.commit(batch).await.unwrap();
    let week = NOW.plus(limits::EVENTS_KEPT_MS);
    s.retain(week.plus(-1), 9).await.unwrap();
    assert_eq!(events(s, "a", 0, None).await.len(), 10);
    s.retain(week.plus(4), 9).await.unwrap();
    assert_eq!(events(s, "a", 0, None).await, [6, 7, 8, 9, 10]);
    s.retain(week.plus(1 << 40), 9).await.unwrap();
    assert_eq!(events(s, "a", 0, None).await, [10]);
}

async fn events_are_read_in_pages_and_by_what_they_are_about(make: Make) {
    let bed = make(Caps::default());
    let (s, of) = (&bed.store, log("a"));
    let batch = (1..=9).map(|n| note("a", n as u128 % 3, n)).collect();
    s.commit(batch).await.unwrap();
    assert_eq!(events(s, "a", 0, Some(1)).await, [1, 4, 7]);
    assert_eq!(events(s, "a", 4, Some(1)).await, [7]);
    let page = s.events_after(&of, Seq(2), None, 3, 1 << 20);
    let page = page.await.unwrap();
    assert_eq!((page.rows.len(), page.more), (3, true));
    assert_eq!((page.rows[0].seq, page.rows[0].about), (Seq(3), id(0)));
    assert_eq!(&*page.rows[0].json, "{\"n\":3}");
    let by_bytes = s.events_after(&of, Seq(7), None, 9, 1);
    let by_bytes = by_bytes.await.unwrap();
    assert_eq!((by_bytes.rows.len(), by_bytes.more), (1, true));
    let last = s.events_after(&of, Seq(8), None, 1, 1);
    assert!(!last.await.unwrap().more);
}

async fn a_watcher_gets_every_event_or_is_told_what_it_missed(make: Make) {
    let bed = make(Caps::default());
    let s = &bed.store;
    let mut watch = s.watch(&log("a"));
    let mut other = s.watch(&log("b"));
    s.commit(vec![note("a", 1, 1), note("a", 2, 2)])
        .await
        .unwrap();
    for n in [1_u64, 2] {
        let got = tokio::time::timeout(Duration::from_secs(5), watch.recv());
        let got = got.await.unwrap().unwrap();
        assert_eq!((got.seq, got.about), (Seq(n), id(n.into())));
    }
    assert!(other.try_recv().is_err());
    let many = (0..5000).map(|n| note("a", 1, n)).collect();
    s.commit(many).await.unwrap();
    let lagged = tokio::time::timeout(Duration::from_secs(5), watch.recv());
    assert!(matches!(
        lagged.await.unwrap(),
        Err(tokio::sync::broadcast::error::RecvError::Lagged(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_committed_is_there_after_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hub.db");
    let m = mailbox("a");
    let before = {
        let store = AnyStore::Sqlite(SqliteStore::open(&path).unwrap());
        store
            .commit(vec![
                append(&m, 1),
                Op::put("k", "v", Expect::Any),
                note("a", 1, 1),
            ])
            .await
            .unwrap();
        let before = (
            store.position(&m).await.unwrap(),
            store.log_position(&log("a")).await.unwrap(),
        );
        store.close().await;
        assert_eq!(
            store.commit(vec![append(&m, 2)]).await,
            Err(StoreError::Closed)
        );
        before
    };
    let store = AnyStore::Sqlite(SqliteStore::open(&path).unwrap());
    assert_eq!(store.position(&m).await.unwrap(), before.0);
    assert_eq!(store.log_position(&log("a")).await.unwrap(), before.1);
    assert_eq!(events(&store, "a", 0, None).await, [1]);
    assert_eq!(store.get("k").await.unwrap().unwrap().value, "v");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_broken_file_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hub.db");
    let text = "not a database at all ".repeat(100);
    std::fs::write(&path, &text).unwrap();
    assert!(matches!(
        SqliteStore::open(&path),
        Err(StoreError::Foreign(_))
    ));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert!(SqliteStore::open(&dir.path().join("none/hub.db")).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_held_by_another_process_means_stored_or_refused_and_nothing_between() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hub.db");
    let store = AnyStore::Sqlite(SqliteStore::open(&path).unwrap());
    let (held, release) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let holder = std::thread::spawn({
        let (held, release) = (held.0, release.1);
        move || {
            let other = rusqlite::Connection::open(path).unwrap();
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            held.send(()).unwrap();
            release.recv().unwrap();
            other.execute_batch("ROLLBACK").unwrap();
        }
    });
    held.1.recv().unwrap();
    let m = mailbox("a");
    let refused = store.commit(vec![append(&m, 1)]).await;
    assert_eq!(refused, Err(StoreError::Busy));
    assert_eq!(store.position(&m).await.unwrap(), None);
    release.0.send(()).unwrap();
    holder.join().unwrap();
    assert_eq!(seq_of(&store, append(&m, 1)).await, (Seq(1), false));
}
