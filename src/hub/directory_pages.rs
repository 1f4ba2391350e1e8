//! Pages of the directory, by keys that do not change: a walk stays right while devices come, change and go. And its
//! accounts.

use std::ops::Bound;
use std::sync::Arc;

use super::{Directory, State};
use crate::domain::{AccountId, DeviceId, ProjectName, SessionId};
use crate::hub::records::{DeviceRecord, ProjectRecord, SessionRecord};

/// Rows of the account that one call looks at.
const MAX_SCANNED: usize = 2_000;

/// Some rows, and the key to go on behind; `None` at the end.
pub(crate) type Page<T, K> = (Vec<T>, Option<K>);

fn page<'a, T: Clone + 'a, K>(
    rows: impl Iterator<Item = &'a T>,
    fits: impl Fn(&T) -> bool,
    key: impl Fn(&T) -> K,
    limit: usize,
) -> Page<T, K> {
    let mut found = Vec::new();
    for (n, row) in rows.enumerate() {
        if fits(row) {
            found.push(row.clone());
        }
        if found.len() == limit || n + 1 == MAX_SCANNED {
            return (found, Some(key(row)));
        }
    }
    (found, None)
}

fn behind<K>(key: Option<K>) -> (Bound<K>, Bound<K>) {
    (
        key.map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Unbounded,
    )
}

/// Accounts: which there are, and how one goes.
impl Directory {
    pub(crate) fn has_account(&self, account: &AccountId) -> bool {
        self.with(|s| s.accounts.contains(account))
    }

    pub(crate) fn accounts(&self) -> Vec<AccountId> {
        self.with(|s| s.accounts.iter().cloned().collect())
    }

    pub(crate) fn put_account(&self, account: AccountId) {
        self.change(|s| s.accounts.insert(account));
    }

    /// From now on nothing of the account is taken.
    pub(crate) fn drop_account(&self, account: &AccountId) {
        self.change(|s| s.accounts.remove(account));
    }

    /// Forgets what stood in the account.
    pub(crate) fn forget_account(&self, account: &AccountId) {
        self.change(|s| {
            s.sessions.retain(|(a, _), _| a != account);
            s.lineage.retain(|(a, _), _| a != account);
            let State {
                devices, projects, ..
            } = s;
            devices.retain(|_, d| d.account != *account);
            projects.retain(|(d, _), _| devices.contains_key(d));
        });
    }
}

impl Directory {
    pub(crate) fn devices_page(
        &self,
        account: &AccountId,
        after: Option<DeviceId>,
        limit: usize,
        fits: impl Fn(&DeviceRecord) -> bool,
    ) -> Page<Arc<DeviceRecord>, DeviceId> {
        self.with(|s| {
            let all = s.devices.range(behind(after)).map(|(_, d)| d);
            let mine = all.filter(|d| d.account == *account);
            page(mine, |d| fits(d), |d| d.id.clone(), limit)
        })
    }

    pub(crate) fn projects_page(
        &self,
        account: &AccountId,
        after: Option<(DeviceId, ProjectName)>,
        limit: usize,
        fits: impl Fn(&ProjectRecord) -> bool,
    ) -> Page<ProjectRecord, (DeviceId, ProjectName)> {
        self.with(|s| {
            let all = s.projects.range(behind(after)).map(|(_, p)| p);
            let mine = all.filter(|p| s.owns(account, &p.device));
            let key = |p: &ProjectRecord| (p.device.clone(), p.info.name.clone());
            page(mine, fits, key, limit)
        })
    }

    pub(crate) fn sessions_page(
        &self,
        account: &AccountId,
        after: Option<SessionId>,
        limit: usize,
        fits: impl Fn(&SessionRecord) -> bool,
    ) -> Page<SessionRecord, SessionId> {
        self.with(|s: &State| {
            let from = match after {
                Some(id) => Bound::Excluded((account.clone(), id)),
                None => Bound::Included((account.clone(), SessionId::from_u128(0))),
            };
            let mine = s
                .sessions
                .range((from, Bound::Unbounded))
                .take_while(|((a, _), _)| a == account)
                .map(|(_, r)| r);
            page(mine, fits, |r| r.info.session_id, limit)
        })
    }
}
