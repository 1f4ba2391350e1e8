//! The records that envelopes belong to, read and written together.

use std::collections::BTreeMap;

use crate::domain::{AccountId, Code, DeviceId, EnvelopeId, WallMs, limits::FINISHED_KEPT_MS};
use crate::hub::events::{event, note, told};
use crate::hub::problem::{ApiError, ApiResult};
use crate::hub::records::{self, ItemKind, ItemRecord, control_key};
use crate::hub::state::Hub;
use crate::hub::store::{Expect, Op, Records, StoreError, Stored};
use crate::hub::webhooks::owed;
use crate::wire::event::Told;

/// The records that some envelopes belong to; two attempts of one task share one.
#[derive(Debug, Default)]
pub(super) struct Items {
    of: BTreeMap<EnvelopeId, String>,
    records: BTreeMap<String, Held>,
    /// `cancel` envelopes, with the device that each was sent to.
    controls: BTreeMap<EnvelopeId, String>,
}

/// A record as it was read and as it is to be written.
#[derive(Debug)]
struct Held {
    version: u64,
    before: ItemRecord,
    after: ItemRecord,
    /// What was told of it so far, up to this state of it.
    told: Vec<Told>,
    seen: ItemRecord,
}

impl Held {
    fn of(stored: &Stored) -> Option<Self> {
        let before: ItemRecord = records::read(stored)?;
        Some(Self {
            version: stored.version,
            after: before.clone(),
            seen: before.clone(),
            before,
            told: Vec::new(),
        })
    }
}

impl Items {
    /// Whether this is a `cancel` that was sent to this device.
    pub(super) fn is_control(&self, envelope: EnvelopeId, device: &DeviceId) -> bool {
        self.controls
            .get(&envelope)
            .is_some_and(|d| d == device.as_str())
    }

    /// The record of this envelope as it was read, with its version, and as it will be.
    pub(super) fn pair(&self, envelope: EnvelopeId) -> Option<(u64, &ItemRecord, &ItemRecord)> {
        let held = self.records.get(self.of.get(&envelope)?)?;
        Some((held.version, &held.before, &held.after))
    }

    pub(super) fn get_mut(&mut self, envelope: EnvelopeId) -> Option<&mut ItemRecord> {
        let key = self.of.get(&envelope)?;
        self.records.get_mut(key).map(|held| &mut held.after)
    }

    /// The steps that write the record of this envelope, by [`write_item`], and the record.
    pub(super) fn write(
        &self,
        account: &AccountId,
        envelope: EnvelopeId,
        now: WallMs,
    ) -> Option<(Vec<Op>, &ItemRecord)> {
        let held = self.records.get(self.of.get(&envelope)?)?;
        let before = Some((held.version, &held.before));
        let mut ops = put_item(account, before, &held.after, now);
        let last = told(Some(&held.seen), &held.after);
        ops.extend(notes(account, &held.after, &held.told, now));
        ops.extend(notes(account, &held.after, &last, now));
        Some((ops, &held.after))
    }

    /// Tells the changes so far one by one, where several of one batch would melt into their sum.
    pub(super) fn tell(&mut self, envelope: EnvelopeId) {
        if let Some(held) = self.held_mut(envelope) {
            held.told.extend(told(Some(&held.seen), &held.after));
            held.seen = held.after.clone();
        }
    }

    /// Tells something that the record does not hold.
    pub(super) fn tell_beside(&mut self, envelope: EnvelopeId, what: Told) {
        if let Some(held) = self.held_mut(envelope) {
            held.told.push(what);
        }
    }

    /// The steps that tell what was said beside the records, of an item that is not written.
    pub(super) fn beside(
        &self,
        account: &AccountId,
        envelope: EnvelopeId,
        now: WallMs,
    ) -> Option<(Vec<Op>, &ItemRecord)> {
        let held = self.records.get(self.of.get(&envelope)?)?;
        Some((notes(account, &held.after, &held.told, now), &held.after))
    }

    fn held_mut(&mut self, envelope: EnvelopeId) -> Option<&mut Held> {
        self.records.get_mut(self.of.get(&envelope)?)
    }
}

fn notes(account: &AccountId, item: &ItemRecord, told: &[Told], now: WallMs) -> Vec<Op> {
    let events = told.iter().map(|what| event(item, what.clone(), now));
    events
        .flat_map(|event| [Some(note(account, &event)), owed(account, item, &event)])
        .flatten()
        .collect()
}

/// The steps that write a task or a message: the only way in which one is written, so that whatever changes is told in
/// the same commit. `before` is the record as it was read, with its version; `None` for a new one.
pub(crate) fn write_item(
    account: &AccountId,
    before: Option<(u64, &ItemRecord)>,
    after: &ItemRecord,
    now: WallMs,
) -> Vec<Op> {
    let told = told(before.map(|(_, item)| item), after);
    let mut ops = put_item(account, before, after, now);
    ops.extend(notes(account, after, &told, now));
    ops
}

fn put_item(
    account: &AccountId,
    before: Option<(u64, &ItemRecord)>,
    after: &ItemRecord,
    now: WallMs,
) -> Vec<Op> {
    let kept = after.is_over() || after.presumed;
    let keep_until = kept.then(|| now.plus(FINISHED_KEPT_MS));
    let put = Op::Put {
        key: after.kind.key(account, after.id),
        value: records::text(after),
        expect: before.map_or(Expect::Absent, |(version, _)| Expect::Version(version)),
        keep_until,
    };
    let mut ops = vec![put];
    let watched = before.and_then(|(_, item)| item.watch);
    if watched != after.watch {
        ops.extend(watched.map(|at| Op::Delete {
            key: after.watch_key(account, at),
            expect: Expect::Any,
        }));
        ops.extend(
            after
                .watch
                .map(|at| Op::put(after.watch_key(account, at), "", Expect::Any)),
        );
    }
    ops
}
impl Hub {
    /// The tasks and messages of these envelopes, by envelope.
    pub(super) async fn items(
        &self,
        account: &AccountId,
        ids: &[EnvelopeId],
    ) -> Result<Items, StoreError> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let keys = ids
            .iter()
            .flat_map(|id| {
                [
                    ItemKind::Task.key(account, *id),
                    ItemKind::Message.key(account, *id),
                    records::alias_key(account, *id),
                ]
            })
            .collect();
        let mut items = Items::default();
        let mut later = Vec::new();
        let aliases = alias_prefix(account);
        for stored in self.store.get_many(keys).await? {
            if let Some(envelope) = stored.key.strip_prefix(&aliases) {
                if let (Ok(envelope), Ok(task)) = (envelope.parse(), stored.value.parse()) {
                    let key = ItemKind::Task.key(account, task);
                    items.of.insert(envelope, key.clone());
                    later.push(key);
                }
            } else if let Some(held) = Held::of(&stored) {
                items.of.insert(held.before.id, stored.key.clone());
                items.records.insert(stored.key, held);
            }
        }
        let strangers = ids.iter().filter(|id| !items.of.contains_key(id));
        let controls: Vec<String> = strangers.map(|id| control_key(account, *id)).collect();
        if !controls.is_empty() {
            for stored in self.store.get_many(controls).await? {
                let envelope = stored.key.rsplit('/').next().and_then(|id| id.parse().ok());
                if let Some(envelope) = envelope {
                    items.controls.insert(envelope, stored.value);
                }
            }
        }
        later.retain(|k| !items.records.contains_key(k));
        if !later.is_empty() {
            for stored in self.store.get_many(later).await? {
                if let Some(held) = Held::of(&stored) {
                    items.records.insert(stored.key, held);
                }
            }
        }
        Ok(items)
    }
}

fn alias_prefix(account: &AccountId) -> String {
    format!("alias/{account}/")
}
/// A task or a message as it stands in the store.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) version: u64,
    pub(crate) item: ItemRecord,
}

/// The stored item of this id, or the 404 of its kind: one that never was and one of another account look the same.
pub(crate) async fn stored_item(
    hub: &Hub,
    kind: ItemKind,
    account: &AccountId,
    id: &str,
) -> ApiResult<Item> {
    let stored: Option<Stored> = match id.parse() {
        Ok(id) => hub.store.get(kind.key(account, id)).await?,
        Err(_) => None,
    };
    let item = stored.as_ref().and_then(|s| {
        let (version, item) = (s.version, records::read(s)?);
        Some(Item { version, item })
    });
    item.ok_or_else(|| {
        let code = match kind {
            ItemKind::Task => Code::UnknownTask,
            ItemKind::Message => Code::UnknownMessage,
        };
        let id: String = id.chars().take(100).collect();
        ApiError::new(code, format!("unknown {} `{id}`", kind.word()))
            .hint("finished ones are kept for 30 days")
    })
}
