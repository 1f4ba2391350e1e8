//! A store that lives and dies with the process: tests and simulation.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;
use uuid::Uuid;

use super::feeds::{Feed, Feeds, Pushed};
use super::log::{SLACK, Watchers};
use super::{
    Caps, Commit, Done, Due, Expect, Log, LogId, LogPosition, Mailbox, MailboxId, Noted, NotedPage,
    Op, Position, Records, Rows, StoreError, Stored,
};
use crate::core::server::Row;
use crate::domain::{
    EnvelopeId, Epoch, Seq, WallMs,
    limits::{EVENTS_KEPT_MS, FINISHED_KEPT_MS},
};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    feeds: Feeds,
    watchers: Watchers,
}

#[derive(Debug, Default)]
struct State {
    caps: Caps,
    boxes: BTreeMap<MailboxId, Mail>,
    logs: BTreeMap<LogId, Events>,
    records: BTreeMap<String, Stored>,
}

#[derive(Debug)]
struct Events {
    epoch: Epoch,
    rows: BTreeMap<Seq, Arc<Noted>>,
}

impl Events {
    fn head(&self) -> Option<&Noted> {
        self.rows.last_key_value().map(|(_, noted)| &**noted)
    }

    /// Drops what stands up to `seq`, and gives it.
    fn trim(&mut self, seq: Seq) -> BTreeMap<Seq, Arc<Noted>> {
        let kept = self.rows.split_off(&Seq(seq.0.saturating_add(1)));
        std::mem::replace(&mut self.rows, kept)
    }
}

#[derive(Debug)]
struct Mail {
    scalars: Scalars,
    rows: BTreeMap<Seq, Entry>,
    ids: BTreeMap<EnvelopeId, Seq>,
}

#[derive(Debug, Clone, Copy)]
struct Scalars {
    at: Position,
    count: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    id: EnvelopeId,
    json: Option<Arc<str>>,
    expires_at: WallMs,
}

enum Undo {
    Scalars(MailboxId, Scalars),
    Row(MailboxId, Seq, EnvelopeId),
    Text(MailboxId, Seq, Arc<str>),
    Forgotten(MailboxId, Seq, Entry),
    Record(String, Option<Stored>),
    Noted(LogId, Seq),
    Trimmed(LogId, BTreeMap<Seq, Arc<Noted>>),
}

/// What is handed on after the commit.
#[derive(Default)]
struct Pushes {
    rows: Vec<(MailboxId, Pushed)>,
    events: Vec<(LogId, Noted)>,
}

impl MemoryStore {
    /// An empty store with these limits.
    #[must_use]
    pub fn with_caps(caps: Caps) -> Self {
        let store = Self::default();
        store.lock().caps = caps;
        store
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn mailbox(&mut self, id: &MailboxId) -> &mut Mail {
        self.boxes.entry(id.clone()).or_insert_with(|| Mail {
            scalars: Scalars {
                at: Position {
                    epoch: new_epoch(),
                    head: Seq(0),
                    acked: Seq(0),
                    generation: 0,
                },
                count: 0,
                bytes: 0,
            },
            rows: BTreeMap::new(),
            ids: BTreeMap::new(),
        })
    }

    fn log(&mut self, id: &LogId) -> &mut Events {
        self.logs.entry(id.clone()).or_insert_with(|| Events {
            epoch: new_epoch(),
            rows: BTreeMap::new(),
        })
    }

    fn apply(
        &mut self,
        op: Op,
        undo: &mut Vec<Undo>,
        pushes: &mut Pushes,
    ) -> Result<Done, StoreError> {
        let caps = self.caps;
        match op {
            Op::Append {
                mailbox,
                id,
                json,
                expires_at,
            } => {
                let b = self.mailbox(&mailbox);
                if let Some(seq) = b.ids.get(&id) {
                    return Ok(Done::Appended {
                        seq: *seq,
                        duplicate: true,
                    });
                }
                let size = json.len() as u64;
                if b.scalars.count >= caps.envelopes || b.scalars.bytes + size > caps.bytes {
                    return Err(StoreError::MailboxFull);
                }
                undo.push(Undo::Scalars(mailbox.clone(), b.scalars));
                let prev = b.scalars.at.head;
                let seq = Seq(prev.0 + 1);
                b.scalars.at.head = seq;
                b.scalars.count += 1;
                b.scalars.bytes += size;
                b.ids.insert(id, seq);
                b.rows.insert(
                    seq,
                    Entry {
                        id,
                        json: Some(Arc::clone(&json)),
                        expires_at,
                    },
                );
                undo.push(Undo::Row(mailbox.clone(), seq, id));
                let row = Row { seq, json };
                pushes.rows.push((mailbox, Pushed { prev, row }));
                Ok(Done::Appended {
                    seq,
                    duplicate: false,
                })
            }
            Op::Ack { mailbox, seq } => {
                let b = self.mailbox(&mailbox);
                undo.push(Undo::Scalars(mailbox, b.scalars));
                let from = b.scalars.at.acked;
                let to = seq.min(b.scalars.at.head).max(from);
                b.scalars.at.acked = to;
                Ok(Done::Acked { from, to })
            }
            Op::Raise { mailbox } => {
                let b = self.mailbox(&mailbox);
                undo.push(Undo::Scalars(mailbox, b.scalars));
                b.scalars.at.generation += 1;
                Ok(Done::At(b.scalars.at))
            }
            Op::Fence {
                mailbox,
                generation,
            } => {
                if self.mailbox(&mailbox).scalars.at.generation == generation {
                    Ok(Done::Nothing)
                } else {
                    Err(StoreError::Fenced)
                }
            }
            Op::Renew { mailbox } => {
                let b = self.mailbox(&mailbox);
                undo.push(Undo::Scalars(mailbox, b.scalars));
                b.scalars.at.epoch = new_epoch();
                b.scalars.at.acked = Seq(0);
                Ok(Done::At(b.scalars.at))
            }
            Op::Retire { mailbox, id } => {
                let b = self.mailbox(&mailbox);
                let Some(seq) = b.ids.get(&id).copied() else {
                    return Ok(Done::Nothing);
                };
                let before = b.scalars;
                if let Some(json) = b.rows.get_mut(&seq).and_then(|e| e.json.take()) {
                    b.scalars.count -= 1;
                    b.scalars.bytes -= json.len() as u64;
                    undo.push(Undo::Scalars(mailbox.clone(), before));
                    undo.push(Undo::Text(mailbox, seq, json));
                }
                Ok(Done::Nothing)
            }
            Op::Forget { mailbox, id } => {
                let b = self.mailbox(&mailbox);
                if let Some(seq) = b.ids.get(&id).copied()
                    && b.rows.get(&seq).is_some_and(|e| e.json.is_none())
                    && let Some(entry) = b.rows.remove(&seq)
                {
                    b.ids.remove(&id);
                    undo.push(Undo::Forgotten(mailbox, seq, entry));
                }
                Ok(Done::Nothing)
            }
            Op::Note {
                log,
                about,
                at,
                json,
            } => {
                let events = self.log(&log);
                let seq = Seq(events.head().map_or(0, |n| n.seq.0) + 1);
                let noted = Noted {
                    seq,
                    about,
                    at,
                    json,
                };
                events.rows.insert(seq, Arc::new(noted.clone()));
                undo.push(Undo::Noted(log.clone(), seq));
                if seq.0.is_multiple_of(SLACK) {
                    let gone = events.trim(Seq(seq.0.saturating_sub(caps.events)));
                    undo.push(Undo::Trimmed(log.clone(), gone));
                }
                pushes.events.push((log, noted));
                Ok(Done::Noted { seq })
            }
            Op::Trim { log, seq } => {
                let events = self.log(&log);
                let head = events.head().map_or(0, |n| n.seq.0);
                let gone = events.trim(seq.min(Seq(head.saturating_sub(1))));
                undo.push(Undo::Trimmed(log, gone));
                Ok(Done::Nothing)
            }
            Op::Put {
                key,
                value,
                expect,
                keep_until,
            } => {
                let old = self.expected(&key, expect)?;
                let version = old.as_ref().map_or(0, |s| s.version) + 1;
                undo.push(Undo::Record(key.clone(), old));
                self.records.insert(
                    key.clone(),
                    Stored {
                        key,
                        value,
                        version,
                        keep_until,
                    },
                );
                Ok(Done::Put { version })
            }
            Op::Delete { key, expect } => {
                let old = self.expected(&key, expect)?;
                self.records.remove(&key);
                undo.push(Undo::Record(key, old));
                Ok(Done::Nothing)
            }
        }
    }

    fn expected(&self, key: &str, expect: Expect) -> Result<Option<Stored>, StoreError> {
        let old = self.records.get(key).cloned();
        let holds = match expect {
            Expect::Any => true,
            Expect::Absent => old.is_none(),
            Expect::Version(v) => old.as_ref().is_some_and(|s| s.version == v),
        };
        if holds {
            Ok(old)
        } else {
            Err(StoreError::Conflict {
                key: key.to_owned(),
            })
        }
    }

    fn undo(&mut self, step: Undo) {
        match step {
            Undo::Scalars(id, scalars) => self.mailbox(&id).scalars = scalars,
            Undo::Row(mailbox, seq, id) => {
                let b = self.mailbox(&mailbox);
                b.rows.remove(&seq);
                b.ids.remove(&id);
            }
            Undo::Text(mailbox, seq, json) => {
                if let Some(e) = self.mailbox(&mailbox).rows.get_mut(&seq) {
                    e.json = Some(json);
                }
            }
            Undo::Forgotten(mailbox, seq, entry) => {
                let b = self.mailbox(&mailbox);
                b.ids.insert(entry.id, seq);
                b.rows.insert(seq, entry);
            }
            Undo::Record(key, Some(old)) => {
                self.records.insert(key, old);
            }
            Undo::Noted(log, seq) => {
                self.log(&log).rows.remove(&seq);
            }
            Undo::Trimmed(log, mut gone) => self.log(&log).rows.append(&mut gone),
            Undo::Record(key, None) => {
                self.records.remove(&key);
            }
        }
    }
}

fn new_epoch() -> Epoch {
    crate::domain::InstanceId(Uuid::new_v4())
}

impl Commit for MemoryStore {
    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Done>, StoreError> {
        let mut state = self.lock();
        let (mut undo, mut pushes, mut done) = (Vec::new(), Pushes::default(), Vec::new());
        for op in ops {
            match state.apply(op, &mut undo, &mut pushes) {
                Ok(d) => done.push(d),
                Err(e) => {
                    while let Some(step) = undo.pop() {
                        state.undo(step);
                    }
                    return Err(e);
                }
            }
        }
        // Published under the lock, so that subscribers see the order of the commits.
        for (mailbox, pushed) in &pushes.rows {
            self.feeds.publish(mailbox, pushed);
        }
        for (log, noted) in pushes.events {
            self.watchers.publish(&log, noted);
        }
        Ok(done)
    }
}

impl Mailbox for MemoryStore {
    async fn read_after(
        &self,
        mailbox: &MailboxId,
        after: Seq,
        limit: u32,
        max_bytes: u64,
    ) -> Result<Rows, StoreError> {
        let state = self.lock();
        let mut out = Rows::default();
        let Some(b) = state.boxes.get(mailbox) else {
            return Ok(out);
        };
        let mut bytes = 0;
        for (seq, entry) in b.rows.range((Bound::Excluded(after), Bound::Unbounded)) {
            let Some(json) = &entry.json else { continue };
            bytes += json.len() as u64;
            let full = out.rows.len() >= limit as usize || bytes > max_bytes;
            if full && !out.rows.is_empty() {
                out.more = true;
                break;
            }
            out.rows.push(Row {
                seq: *seq,
                json: Arc::clone(json),
            });
        }
        Ok(out)
    }

    async fn ids_between(
        &self,
        mailbox: &MailboxId,
        from: Seq,
        to: Seq,
    ) -> Result<Vec<EnvelopeId>, StoreError> {
        let state = self.lock();
        let rows = state.boxes.get(mailbox).map(|b| &b.rows);
        Ok(rows
            .into_iter()
            .flat_map(|r| r.iter())
            .filter(|(s, _)| **s > from && **s <= to)
            .map(|(_, e)| e.id)
            .collect())
    }

    async fn position(&self, mailbox: &MailboxId) -> Result<Option<Position>, StoreError> {
        Ok(self.lock().boxes.get(mailbox).map(|b| b.scalars.at))
    }

    fn subscribe(&self, mailbox: &MailboxId) -> Feed {
        self.feeds.subscribe(mailbox)
    }

    async fn due(&self, now: WallMs, limit: u32) -> Result<Vec<Due>, StoreError> {
        let state = self.lock();
        Ok(state
            .boxes
            .iter()
            .flat_map(|(mailbox, b)| b.rows.iter().map(move |(seq, e)| (mailbox, b, seq, e)))
            .filter(|(_, _, _, e)| e.json.is_some() && e.expires_at <= now)
            .take(limit as usize)
            .map(|(mailbox, b, seq, e)| Due {
                mailbox: mailbox.clone(),
                id: e.id,
                acked: *seq <= b.scalars.at.acked,
            })
            .collect())
    }

    async fn retain(&self, now: WallMs, limit: u32) -> Result<usize, StoreError> {
        let mut state = self.lock();
        let mut left = limit as usize;
        let old = now.plus(-EVENTS_KEPT_MS);
        for events in state.logs.values_mut() {
            let head = events.head().map_or(Seq(0), |n| n.seq);
            let gone = events.rows.values();
            let gone = gone.take_while(|n| n.at <= old && n.seq < head).take(left);
            if let Some(last) = gone.last().map(|n| n.seq) {
                left -= events.trim(last).len();
            }
        }
        for b in state.boxes.values_mut() {
            let old: Vec<(Seq, EnvelopeId)> = b
                .rows
                .iter()
                .filter(|(_, e)| e.json.is_none() && e.expires_at.plus(FINISHED_KEPT_MS) <= now)
                .map(|(s, e)| (*s, e.id))
                .take(left)
                .collect();
            left -= old.len();
            for (seq, id) in old {
                b.rows.remove(&seq);
                b.ids.remove(&id);
            }
        }
        let old: Vec<String> = state
            .records
            .values()
            .filter(|s| s.keep_until.is_some_and(|t| t <= now))
            .map(|s| s.key.clone())
            .take(left)
            .collect();
        left -= old.len();
        for key in old {
            state.records.remove(&key);
        }
        Ok(limit as usize - left)
    }
}

impl Log for MemoryStore {
    async fn events_after(
        &self,
        log: &LogId,
        after: Seq,
        about: Option<EnvelopeId>,
        limit: u32,
        max_bytes: u64,
    ) -> Result<NotedPage, StoreError> {
        let state = self.lock();
        let mut page = NotedPage::default();
        let mut bytes = 0;
        let rows = state.logs.get(log).into_iter().flat_map(|e| {
            e.rows
                .range((Bound::Excluded(after), Bound::Unbounded))
                .map(|(_, noted)| noted)
        });
        for noted in rows.filter(|n| about.is_none_or(|id| n.about == id)) {
            bytes += noted.json.len() as u64;
            let full = page.rows.len() >= limit as usize || bytes > max_bytes;
            if full && !page.rows.is_empty() {
                page.more = true;
                break;
            }
            page.rows.push(Noted::clone(noted));
        }
        Ok(page)
    }

    async fn log_position(&self, log: &LogId) -> Result<Option<LogPosition>, StoreError> {
        Ok(self.lock().logs.get(log).map(|e| LogPosition {
            epoch: e.epoch,
            head: e.head().map_or(Seq(0), |n| n.seq),
            at: e.head().map_or(WallMs(0), |n| n.at),
        }))
    }

    fn watch(&self, log: &LogId) -> broadcast::Receiver<Arc<Noted>> {
        self.watchers.watch(log)
    }
}

impl Records for MemoryStore {
    async fn get_many(&self, keys: Vec<String>) -> Result<Vec<Stored>, StoreError> {
        let state = self.lock();
        Ok(keys
            .iter()
            .filter_map(|k| state.records.get(k).cloned())
            .collect())
    }

    async fn list(
        &self,
        prefix: &str,
        from: Option<String>,
        limit: u32,
        newest_first: bool,
    ) -> Result<Vec<Stored>, StoreError> {
        let state = self.lock();
        let all = state
            .records
            .range(prefix.to_owned()..)
            .take_while(|(k, _)| k.starts_with(prefix))
            .map(|(_, s)| s);
        let limit = limit as usize;
        Ok(if newest_first {
            let mut page: Vec<_> = all
                .filter(|s| from.as_ref().is_none_or(|f| s.key < *f))
                .cloned()
                .collect();
            page.reverse();
            page.truncate(limit);
            page
        } else {
            all.filter(|s| from.as_ref().is_none_or(|f| s.key > *f))
                .take(limit)
                .cloned()
                .collect()
        })
    }
}
