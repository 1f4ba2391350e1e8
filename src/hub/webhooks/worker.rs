//! Makes the calls that are owed: one at a time per item, as far as there is room ([`super::room`]).
//!
//! What is owed stands in the store; the worker holds it in memory, too. The outcome of a call is written only if its
//! record still stands: when it was dropped meanwhile, with its account, nothing of it comes back. A call that panics
//! counts as one that failed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::client::{Call, Caller};
use super::plan::{Outcome, Verdict, judge};
use super::room::Room;
use super::{HookRecord, HookState, PREFIX, Shared, put_state, signature, state_key};
use crate::auth::crypto::random;
use crate::domain::{AccountId, EnvelopeId, WallMs};
use crate::hub::clock::wall;
use crate::hub::records;
use crate::hub::store::{Commit, Expect, Op, Records, StoreError};

/// Time between two looks into the store for what was not told.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Calls that are held in memory; the others are read when there is room.
const HELD: usize = 20_000;
const PAGE: u32 = 500;
/// Wait after a call that broke down, or whose outcome could not be stored, ms.
const BROKEN_WAIT_MS: i64 = 5_000;

/// An item, by the middle of its records' keys: `<account>/<item>`.
type ItemKey = String;

struct Worker {
    hub: Shared,
    caller: Arc<Caller>,
    /// What is owed, in order per item.
    owed: BTreeMap<ItemKey, BTreeMap<String, HookRecord>>,
    busy: HashSet<ItemKey>,
    room: Room,
    calls: JoinSet<After>,
    /// Whose the calls under way are.
    under_way: HashMap<Id, UnderWay>,
}

struct UnderWay {
    item: ItemKey,
    host: String,
    key: String,
}

/// Whether the call, or all of the item's, is still owed.
enum After {
    Done,
    Stopped,
    Again(HookRecord),
}

/// Makes calls until the hub stops.
pub(crate) async fn run(hub: Shared) {
    let config = hub.webhooks.config.clone();
    let caller = tokio::task::spawn_blocking(move || {
        Caller::new(config.resolver.clone(), config.allow_private)
    });
    let inbox = hub
        .webhooks
        .inbox
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let (Ok(caller), Some(inbox)) = (caller.await, inbox) else {
        return;
    };
    let worker = Worker {
        hub,
        caller: Arc::new(caller),
        owed: BTreeMap::new(),
        busy: HashSet::new(),
        room: Room::default(),
        calls: JoinSet::new(),
        under_way: HashMap::new(),
    };
    worker.run(inbox).await;
}

impl Worker {
    async fn run(mut self, mut inbox: mpsc::Receiver<(String, HookRecord)>) {
        let draining = self.hub.draining.clone();
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = self.start_due();
            let wake = next.map(|at| {
                let ms = u64::try_from(at.0 - wall().0).unwrap_or(0);
                Instant::now() + Duration::from_millis(ms)
            });
            tokio::select! {
                // What is under way is cut; it is owed still, and made again after the restart.
                () = draining.cancelled() => return,
                Some((key, record)) = inbox.recv() => self.take_in(key, record),
                Some(ended) = self.calls.join_next_with_id() => match ended {
                    Ok((id, after)) => self.ended(id, |_| after),
                    Err(e) => {
                        tracing::error!(error = %e, "a callback ended badly; it is made again");
                        self.ended(e.id(), |record| After::Again(put_off(record)));
                    }
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
                _ = look.tick() => {
                    if let Err(e) = self.look().await {
                        tracing::warn!(error = %e, "the callbacks cannot be read; tried again");
                    }
                }
            }
            self.count();
        }
    }

    fn held(&self) -> usize {
        self.owed.values().map(BTreeMap::len).sum()
    }

    /// Reads what is owed and not known here, and forgets what went with its account.
    async fn look(&mut self) -> Result<(), StoreError> {
        let (busy, hub) = (&self.busy, &self.hub);
        self.owed
            .retain(|item, _| busy.contains(item) || stands(hub, item));
        let mut from = None;
        while self.held() < HELD {
            let page = self
                .hub
                .store
                .list(PREFIX, from.take(), PAGE, false)
                .await?;
            let full = page.len() == PAGE as usize;
            for stored in &page {
                if let Some(record) = records::read(stored) {
                    self.take_in(stored.key.clone(), record);
                }
            }
            from = page.last().map(|s| s.key.clone());
            if !full {
                break;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, key: String, record: HookRecord) {
        let item = key[PREFIX.len()..].rsplit_once('/');
        if let Some((item, _)) = item {
            let item = item.to_owned();
            // What is under way may have been written anew meanwhile.
            if !self.busy.contains(&item)
                || !self.owed.get(&item).is_some_and(|o| o.contains_key(&key))
            {
                self.owed
                    .entry(item)
                    .or_default()
                    .entry(key)
                    .or_insert(record);
            }
        }
    }

    /// Tells the rest of the hub how much waits.
    fn count(&self) {
        let mut waiting = HashMap::new();
        for (item, calls) in &self.owed {
            *waiting.entry(account(item).to_owned()).or_default() += calls.len();
        }
        let shared = &self.hub.webhooks.waiting;
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    }

    /// Starts what is due and has room; tells when the next is due.
    fn start_due(&mut self) -> Option<WallMs> {
        let now = wall();
        let mut next: Option<WallMs> = None;
        let mut due = Vec::new();
        for (item, calls) in &self.owed {
            let Some((key, record)) = calls.first_key_value() else {
                continue;
            };
            if self.busy.contains(item) {
                continue;
            }
            if record.next_at > now {
                next = Some(next.map_or(record.next_at, |n| n.min(record.next_at)));
                continue;
            }
            due.push((record.next_at, item.clone(), key.clone(), record.clone()));
        }
        due.sort_by_key(|(at, ..)| *at);
        for (_, item, key, record) in due {
            let host = host(&record.url);
            if !self.room.take(account(&item), &host) {
                continue;
            }
            self.busy.insert(item.clone());
            let (hub, caller) = (Arc::clone(&self.hub), Arc::clone(&self.caller));
            let call = UnderWay { item, host, key };
            let (item, key) = (call.item.clone(), call.key.clone());
            let task = self
                .calls
                .spawn(async move { one(&hub, &caller, &item, &key, record).await });
            self.under_way.insert(task.id(), call);
        }
        next
    }

    /// Takes a call back in; `after` is given the record as it was before it.
    fn ended(&mut self, id: Id, after: impl FnOnce(&HookRecord) -> After) {
        let Some(ended) = self.under_way.remove(&id) else {
            return;
        };
        self.busy.remove(&ended.item);
        self.room.give(account(&ended.item), &ended.host);
        let Some(calls) = self.owed.get_mut(&ended.item) else {
            return;
        };
        let Some(record) = calls.get(&ended.key) else {
            return;
        };
        match after(record) {
            After::Again(record) => {
                calls.insert(ended.key, record);
            }
            After::Done => {
                calls.remove(&ended.key);
            }
            // The others of this item find that it stopped when their turn comes.
            After::Stopped => {
                calls.remove(&ended.key);
            }
        }
        if calls.is_empty() {
            self.owed.remove(&ended.item);
        }
    }
}

/// Whether the account of this item, or of this name, is there.
fn stands(hub: &Shared, item: &str) -> bool {
    let account = item.split('/').next().unwrap_or_default();
    AccountId::new(account).is_ok_and(|a| hub.directory.has_account(&a))
}

/// The call as it is owed after it broke down without an outcome.
fn put_off(record: &HookRecord) -> HookRecord {
    HookRecord {
        next_at: wall().plus(BROKEN_WAIT_MS),
        ..record.clone()
    }
}

/// Whose item this is.
fn account(item: &str) -> &str {
    item.split('/').next().unwrap_or_default()
}

fn host(url: &str) -> String {
    let url = url::Url::parse(url).ok();
    url.and_then(|u| Some(u.host_str()?.to_owned()))
        .unwrap_or_default()
}

/// Makes one call and commits what became of it.
async fn one(
    hub: &Shared,
    caller: &Caller,
    item: &str,
    key: &str,
    mut record: HookRecord,
) -> After {
    let Some((account, Ok(id))) = item
        .split_once('/')
        .map(|(account, id)| (account, id.parse::<EnvelopeId>()))
    else {
        return After::Stopped;
    };
    match go(hub, caller, account, id, key, &mut record).await {
        Ok(after) => after,
        Err(e) => {
            // The call may have been made: it is made again, with the same id.
            tracing::warn!(error = %e, "the outcome of a callback was not stored");
            After::Again(put_off(&record))
        }
    }
}

async fn go(
    hub: &Shared,
    caller: &Caller,
    account: &str,
    id: EnvelopeId,
    key: &str,
    record: &mut HookRecord,
) -> Result<After, StoreError> {
    let state_key = state_key(account, id);
    let stored = hub.store.get_many(vec![key.to_owned(), state_key.clone()]);
    let stored = stored.await?;
    let Some(owed) = stored.iter().find(|s| s.key == key) else {
        // Dropped meanwhile, with its account.
        return Ok(After::Stopped);
    };
    let expect = Expect::Version(owed.version);
    let state = stored.iter().find(|s| s.key == state_key);
    let mut state: HookState = state.and_then(records::read).unwrap_or_default();
    let done = Op::Delete {
        key: key.to_owned(),
        expect,
    };
    if state.stopped {
        return told(hub, vec![done], After::Stopped).await;
    }
    let outcome = AssertUnwindSafe(attempt(hub, caller, account, key, record)).catch_unwind();
    let outcome = outcome.await.unwrap_or_else(|_| {
        tracing::error!(%id, "a callback panicked");
        Outcome::Failed {
            why: "the hub failed; its log says how".to_owned(),
            retry_after_s: None,
        }
    });
    record.attempts += 1;
    let now = wall();
    let first = i64::try_from(hub.webhooks.config.first_wait.as_millis()).unwrap_or(i64::MAX);
    let spin = random::<4>().map_or(0, u32::from_le_bytes);
    let verdict = judge(
        &outcome,
        record.attempts,
        record.created_at,
        now,
        first,
        spin,
    );
    state.attempts = record.attempts;
    state.next_at = None;
    state.last_error = match &outcome {
        Outcome::Failed { why, .. } => Some(why.clone()),
        Outcome::Gone => Some("answered 410 Gone: no further call is made".to_owned()),
        Outcome::Delivered => None,
    };
    let (op, after) = match verdict {
        Verdict::Done => {
            state.delivered += 1;
            state.delivered_at = Some(now);
            (done, After::Done)
        }
        Verdict::Stop => {
            state.stopped = true;
            (done, After::Stopped)
        }
        Verdict::GiveUp => {
            tracing::warn!(%id, attempts = record.attempts, "a callback was given up");
            (done, After::Done)
        }
        Verdict::Again { at } => {
            state.next_at = Some(at);
            record.next_at = at;
            let again = records::put(key.to_owned(), record, expect, None);
            (again, After::Again(record.clone()))
        }
    };
    let ops = vec![op, put_state(account, id, &state, now)];
    told(hub, ops, after).await
}

/// Writes what became of a call, unless its record was dropped meanwhile.
async fn told(hub: &Shared, ops: Vec<Op>, after: After) -> Result<After, StoreError> {
    match hub.store.commit(ops).await {
        Ok(_) => Ok(after),
        Err(StoreError::Conflict { .. }) => Ok(After::Stopped),
        Err(e) => Err(e),
    }
}

async fn attempt(
    hub: &Shared,
    caller: &Caller,
    account: &str,
    key: &str,
    record: &HookRecord,
) -> Outcome {
    let secret = hub.webhooks.secret(&record.token);
    if !stands(hub, account) || hub.directory.is_revoked(&record.token) {
        return Outcome::Gone;
    }
    let id = format!("evt_{}", key.rsplit('/').next().unwrap_or_default());
    let timestamp = wall().0 / 1000;
    let signed = secret.and_then(|s| signature(&s, &id, timestamp, &record.body));
    let Some(signature) = signed else {
        return Outcome::Failed {
            why: "the token has no webhook secret to sign with".to_owned(),
            retry_after_s: None,
        };
    };
    let call = Call {
        url: record.url.clone(),
        id,
        timestamp,
        signature,
        body: record.body.clone(),
    };
    caller.call(&call).await
}
