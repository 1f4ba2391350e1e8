//! The records that envelopes belong to, read and written together.

use std::collections::BTreeMap;

use crate::domain::{AccountId, EnvelopeId, WallMs, limits::FINISHED_KEPT_MS};
use crate::hub::records::{self, ItemKind, ItemRecord};
use crate::hub::state::Hub;
use crate::hub::store::{Expect, Op, Records, StoreError, Stored};

/// The records that some envelopes belong to; two attempts of one task share one.
#[derive(Debug, Default)]
pub(super) struct Items {
    of: BTreeMap<EnvelopeId, String>,
    records: BTreeMap<String, Held>,
}

/// A record as it was read and as it is to be written.
#[derive(Debug)]
struct Held {
    version: u64,
    before: ItemRecord,
    after: ItemRecord,
}

impl Held {
    fn of(stored: &Stored) -> Option<Self> {
        let before: ItemRecord = records::read(stored)?;
        Some(Self {
            version: stored.version,
            after: before.clone(),
            before,
        })
    }
}

impl Items {
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
        Some((write_item(account, before, &held.after, now), &held.after))
    }
}

/// The steps that write a task or a message: the only way in which one is written, so that whatever changes is told in
/// the same commit. `before` is the record as it was read, with its version; `None` for a new one.
pub(crate) fn write_item(
    account: &AccountId,
    before: Option<(u64, &ItemRecord)>,
    after: &ItemRecord,
    now: WallMs,
) -> Vec<Op> {
    let keep_until = after.is_over().then(|| now.plus(FINISHED_KEPT_MS));
    let put = Op::Put {
        key: after.kind.key(account, after.id),
        value: records::text(after),
        expect: before.map_or(Expect::Absent, |(version, _)| Expect::Version(version)),
        keep_until,
    };
    vec![put]
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
                    format!("{}{id}", alias_prefix(account)),
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
/// The stored item of this id, if it is this account's.
pub(crate) async fn item(
    hub: &Hub,
    kind: ItemKind,
    account: &AccountId,
    id: EnvelopeId,
) -> Result<Option<ItemRecord>, StoreError> {
    let stored: Option<Stored> = hub.store.get(kind.key(account, id)).await?;
    Ok(stored.as_ref().and_then(records::read))
}
