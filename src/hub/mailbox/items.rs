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
    records: BTreeMap<String, (u64, ItemRecord)>,
}

impl Items {
    pub(super) fn get_mut(&mut self, envelope: EnvelopeId) -> Option<&mut ItemRecord> {
        let key = self.of.get(&envelope)?;
        self.records.get_mut(key).map(|(_, item)| item)
    }

    /// The step that writes the record of this envelope.
    pub(super) fn put(&self, envelope: EnvelopeId, now: WallMs) -> Option<(Op, &ItemRecord)> {
        let key = self.of.get(&envelope)?;
        let (version, item) = self.records.get(key)?;
        Some((put_item(key, *version, item, now), item))
    }
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
            } else if let Some(item) = records::read::<ItemRecord>(&stored) {
                items.of.insert(item.id, stored.key.clone());
                items.records.insert(stored.key, (stored.version, item));
            }
        }
        later.retain(|k| !items.records.contains_key(k));
        if !later.is_empty() {
            for stored in self.store.get_many(later).await? {
                if let Some(item) = records::read::<ItemRecord>(&stored) {
                    items.records.insert(stored.key, (stored.version, item));
                }
            }
        }
        Ok(items)
    }
}

fn put_item(key: &str, version: u64, item: &ItemRecord, now: WallMs) -> Op {
    let keep_until = item.is_over().then(|| now.plus(FINISHED_KEPT_MS));
    records::put(key.to_owned(), item, Expect::Version(version), keep_until)
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
