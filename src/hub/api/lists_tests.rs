use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::hub::store::{AnyStore, Commit, Expect, MemoryStore, Op, SqliteStore};

/// What happens between two pages.
#[derive(Debug, Clone)]
enum Write {
    Insert(u32),
    Change(usize),
    Delete(usize),
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        (0..1000_u32).prop_map(Write::Insert),
        any::<usize>().prop_map(Write::Change),
        any::<usize>().prop_map(Write::Delete),
    ]
}

fn account(name: &str) -> AccountId {
    name.parse().unwrap()
}

fn id(n: u32) -> EnvelopeId {
    EnvelopeId(Uuid::from_u128(u128::from(n + 1) << 80))
}

fn item(n: u32, status: &str) -> ItemRecord {
    let v = json!({
        "id": id(n), "kind": "task", "device": "d", "from": {"name": "ci", "trust": "run"},
        "priority": "normal", "created_at": n + 1, "expires_at": 0,
        "state": {"status": status}, "receipts": [],
    });
    serde_json::from_value(v).unwrap()
}

fn put(account: &AccountId, n: u32, status: &str) -> Op {
    let item = item(n, status);
    Op::put(
        item.kind.key(account, item.id),
        records::text(&item),
        Expect::Any,
    )
}

fn queued(oldest_first: bool) -> Filter {
    Filter {
        status: vec!["queued"],
        oldest_first,
        ..Filter::default()
    }
}

/// The walk over `first` with `writes` between its pages: every item that fitted all the time once, no item twice.
async fn walk(
    store: &AnyStore,
    first: &BTreeSet<u32>,
    writes: &[Vec<Write>],
    filter: &Filter,
    limit: usize,
) {
    let mine = account("default");
    let ops = first.iter().map(|n| put(&mine, *n, "queued"));
    let strangers = (0..20).map(|n| put(&account("other"), n * 50, "queued"));
    store.commit(ops.chain(strangers).collect()).await.unwrap();
    let mut there: BTreeMap<u32, &str> = first.iter().map(|n| (*n, "queued")).collect();
    let mut throughout = first.clone();
    let (mut seen, mut from, mut writes) = (Vec::new(), None, writes.iter());
    for _ in 0..10_000 {
        let (found, next) = page(store, &mine, ItemKind::Task, filter, from, limit)
            .await
            .unwrap();
        assert!(found.len() <= limit);
        seen.extend(found.iter().map(|i| i.id));
        from = next;
        if from.is_none() {
            break;
        }
        for write in writes.next().into_iter().flatten() {
            let nth = |i: &usize| there.keys().nth(i % there.len().max(1)).copied();
            let op = match write {
                Write::Insert(n) if !there.contains_key(n) => {
                    there.insert(*n, "queued");
                    put(&mine, *n, "queued")
                }
                Write::Insert(_) => continue,
                Write::Change(i) => {
                    let Some(n) = nth(i) else { continue };
                    let status = if there[&n] == "queued" {
                        "running"
                    } else {
                        "queued"
                    };
                    there.insert(n, status);
                    throughout.remove(&n);
                    put(&mine, n, status)
                }
                Write::Delete(i) => {
                    let Some(n) = nth(i) else { continue };
                    there.remove(&n);
                    throughout.remove(&n);
                    let key = ItemKind::Task.key(&mine, id(n));
                    let expect = Expect::Any;
                    Op::Delete { key, expect }
                }
            };
            store.commit(vec![op]).await.unwrap();
        }
    }
    assert!(from.is_none(), "the walk does not end");
    let distinct: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), seen.len(), "an item came twice: {seen:?}");
    let missed: Vec<_> = throughout
        .iter()
        .filter(|n| !distinct.contains(&id(**n)))
        .collect();
    assert!(missed.is_empty(), "{missed:?} were there all the time");
    let mut sorted = seen.clone();
    sorted.sort();
    if !filter.oldest_first {
        sorted.reverse();
    }
    assert_eq!(seen, sorted);
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn first() -> impl Strategy<Value = BTreeSet<u32>> {
    prop::collection::btree_set(0..1000_u32, 0..40)
}

fn writes() -> impl Strategy<Value = Vec<Vec<Write>>> {
    prop::collection::vec(prop::collection::vec(write(), 0..5), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_walk_under_writes_meets_what_stays_once_in_memory(
        first in first(), writes in writes(), oldest in any::<bool>(), all in any::<bool>(), limit in 1..6_usize,
    ) {
        let store = AnyStore::Memory(MemoryStore::default());
        let filter = if all { Filter { oldest_first: oldest, ..Filter::default() } } else { queued(oldest) };
        runtime().block_on(walk(&store, &first, &writes, &filter, limit));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_walk_under_writes_meets_what_stays_once_in_sqlite(
        first in first(), writes in writes(), oldest in any::<bool>(), limit in 1..6_usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let store = AnyStore::Sqlite(SqliteStore::open(&dir.path().join("hub.db")).unwrap());
            walk(&store, &first, &writes, &queued(oldest), limit).await;
            store.close().await;
        });
    }
}

#[test]
fn a_filter_that_matches_little_ends_its_call_in_bounds_and_goes_on() {
    runtime().block_on(async {
        let store = AnyStore::Memory(MemoryStore::default());
        let mine = account("default");
        let many = u32::try_from(MAX_SCANNED).unwrap() + 10;
        let ops = (0..many).map(|n| put(&mine, n, if n == 3 { "queued" } else { "running" }));
        store.commit(ops.collect()).await.unwrap();
        let filter = queued(false);
        let first = page(&store, &mine, ItemKind::Task, &filter, None, 50);
        let (found, next) = first.await.unwrap();
        assert!(found.is_empty());
        assert_eq!(next, Some(id(10).to_string()));
        let second = page(&store, &mine, ItemKind::Task, &filter, next, 50);
        let (found, next) = second.await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(next, None);
    });
}

#[test]
fn time_bounds_show_exactly_their_span_in_both_directions() {
    runtime().block_on(async {
        let store = AnyStore::Memory(MemoryStore::default());
        let mine = account("default");
        let ops = (0..50).map(|n| put(&mine, n * 100_000, "queued"));
        store.commit(ops.collect()).await.unwrap();
        for oldest_first in [false, true] {
            let filter = Filter {
                after: Some(WallMs(1_000_001)),
                before: Some(WallMs(2_000_001)),
                oldest_first,
                ..Filter::default()
            };
            let all = page(&store, &mine, ItemKind::Task, &filter, None, 200);
            let (found, next) = all.await.unwrap();
            let mut times: Vec<i64> = found.iter().map(|i| i.created_at.0).collect();
            if !oldest_first {
                times.reverse();
            }
            let expected: Vec<i64> = (10..20).map(|n| n * 100_000 + 1).collect();
            assert_eq!((times, next), (expected, None));
        }
    });
}
