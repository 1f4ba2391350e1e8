use super::*;
use crate::auth::{HubKeys, crypto};
use crate::core::server::ServerConfig;
use crate::hub::Lifecycle;
use crate::hub::limits::Rate;
use crate::hub::store::{Commit, MemoryStore, Op};
use crate::hub::used::UsedTokens;
use crate::wire::event::Told;

const EVENTS: usize = 1000;

async fn hub(dir: &tempfile::TempDir) -> Arc<Hub> {
    crypto::install();
    let keys = HubKeys::open(&dir.path().join("keys")).unwrap();
    let store = AnyStore::Memory(MemoryStore::default());
    let hub = Hub::open(
        store,
        keys,
        Rate::default(),
        ServerConfig::default(),
        Lifecycle::default(),
        UsedTokens::open(&dir.path().join("used"), true, wall()).unwrap(),
    );
    let mut hub = hub.await.unwrap();
    hub.events.patience = Duration::from_millis(20);
    Arc::new(hub)
}

fn watching(account: &AccountId) -> Watching {
    let filter = Filter {
        types: Told::TYPES.to_vec(),
        ..Filter::default()
    };
    Watching {
        account: account.clone(),
        filter,
        task: None,
        sees: (true, true),
        token: Uuid::from_u128(1),
        token_until: WallMs(i64::MAX),
    }
}

fn steps(account: &AccountId, range: std::ops::Range<usize>) -> Vec<Op> {
    let step = |n| Op::Note {
        log: LogId::of(account),
        about: EnvelopeId::from_u128(1),
        at: WallMs(5),
        json: format!(r#"{{"type":"task.progress","device":"d","text":"{n}"}}"#).into(),
    };
    range.map(step).collect()
}

/// Reads until `seen` holds every step, or the stream ends; tells why it ended and where.
async fn read(reader: &mut Reader, seen: &mut Vec<usize>) -> Option<(String, Position)> {
    while seen.len() < EVENTS {
        let (kind, data) = reader.next().await?.body?;
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        match &*kind {
            "open" => {}
            "task.progress" => seen.push(data["text"].as_str().unwrap().parse().unwrap()),
            "end" => {
                let text = |name: &str| data[name].as_str().unwrap().to_owned();
                return Some((text("reason"), text("position").parse().unwrap()));
            }
            other => panic!("{other}"),
        }
    }
    None
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_let_go_with_a_word_and_goes_on_from_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(&dir).await;
    let account = AccountId::new("default").unwrap();
    // Some before, some while the stream stands.
    hub.store
        .commit(steps(&account, 0..EVENTS / 2))
        .await
        .unwrap();
    let slot = hub.streams.enter(Uuid::from_u128(1)).unwrap();
    let mut reader = open(Arc::clone(&hub), slot, watching(&account), Begin::Oldest);
    let rest = steps(&account, EVENTS / 2..EVENTS);
    hub.store.commit(rest).await.unwrap();
    // Let go: its place among the streams is free although its reader is still there.
    while !hub.streams.0.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut seen = Vec::new();
    let (mut reason, mut place) = read(&mut reader, &mut seen).await.unwrap();
    assert_eq!(reason, "slow_reader");
    assert!((1..=QUEUE).contains(&seen.len()), "{}", seen.len());
    assert_eq!(place.seq.0 as usize, seen.len());
    while seen.len() < EVENTS {
        let slot = hub.streams.enter(Uuid::from_u128(1)).unwrap();
        let begin = Begin::After(place);
        let mut reader = open(Arc::clone(&hub), slot, watching(&account), begin);
        // On a busy machine it may be let go again: it comes back again.
        if let Some(end) = read(&mut reader, &mut seen).await {
            (reason, place) = end;
            assert_eq!(reason, "slow_reader");
        }
    }
    assert!(seen.into_iter().eq(0..EVENTS));
}

#[tokio::test]
async fn a_place_whose_events_made_room_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(&dir).await;
    let account = AccountId::new("default").unwrap();
    let log = LogId::of(&account);
    let none = head(&hub.store, &log).await.unwrap();
    assert_eq!(none, START);
    assert_eq!(
        check(&hub.store, &log, none, none).await.unwrap(),
        Ok(START)
    );
    hub.store.commit(steps(&account, 0..10)).await.unwrap();
    let now = head(&hub.store, &log).await.unwrap();
    let at = |seq| Position {
        seq: Seq(seq),
        ..now
    };
    let check = async |p| check(&hub.store, &log, p, now).await.unwrap();
    // The place of an empty log is before the first event, as long as that is there.
    let first = Position {
        epoch: now.epoch,
        ..START
    };
    assert_eq!(check(START).await, Ok(first));
    assert_eq!(check(at(4)).await, Ok(at(4)));
    let trim = Op::Trim {
        log: log.clone(),
        seq: Seq(4),
    };
    hub.store.commit(vec![trim]).await.unwrap();
    assert_eq!(check(at(4)).await, Err(ResetReason::Gone));
    assert_eq!(check(START).await, Err(ResetReason::Gone));
    assert_eq!(check(at(5)).await, Ok(at(5)));
    assert_eq!(check(at(11)).await, Err(ResetReason::OtherEpoch));
}
