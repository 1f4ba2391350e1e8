//! Who and what is known: devices, their projects and sessions, called-back tokens.
//!
//! All of it stands in the store's records; this is the copy that requests are routed by, read once at start and kept
//! in step after each commit (one process writes a store). Routing itself is a pure function over a view of it:
//!
//! | the request names | it goes to |
//! |---|---|
//! | `device` | that device |
//! | `session_id` | the device whose session has, or once had, this id |
//! | `project` | its approved device: of several an online one before one that is away, for a task one with a free run slot before one without, then the one that was active last |
//! | nothing | the account's only device; several → `target_required` |
//!
//! `device` beside one of the others narrows the choice; a session that the hub has not heard of is taken on the word
//! of a named device, which knows its own sessions best. A project is named by its name or by its absolute path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;
use uuid::Uuid;

use super::accounts::DEFAULT;
use super::records::{
    self, AccountRecord, ApprovalRecord, DeviceRecord, ProjectRecord, SessionRecord,
};
use super::store::{AnyStore, StoreError};
use crate::domain::{
    AccountId, Activity, Address, DeviceId, ProjectInfo, ProjectName, SessionId, SessionInfo,
    WallMs,
};

/// How many names an answer lists as known.
const KNOWN_SHOWN: usize = 20;

#[derive(Debug, Default)]
struct State {
    devices: BTreeMap<DeviceId, Arc<DeviceRecord>>,
    projects: BTreeMap<(DeviceId, ProjectName), ProjectRecord>,
    sessions: BTreeMap<(AccountId, SessionId), SessionRecord>,
    /// Earlier ids of sessions.
    lineage: BTreeMap<(AccountId, SessionId), SessionId>,
    /// Called-back tokens, until their time is over anyway.
    revoked: BTreeMap<Uuid, WallMs>,
    /// What a person decided about a device's project; it stands above what the project came with.
    decided: BTreeMap<(DeviceId, ProjectName), bool>,
    accounts: BTreeSet<AccountId>,
    /// Changes when a token is called back.
    revocations: watch::Sender<()>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Directory(RwLock<State>);

/// What a request names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Want {
    pub(crate) session: Option<SessionId>,
    /// A name or an absolute path.
    pub(crate) project: Option<String>,
    pub(crate) device: Option<String>,
}

/// How fit a device is to take something now, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Not connected.
    Away,
    /// Connected, but every run slot is taken.
    Full,
    /// Connected, and able to begin.
    Ready,
}

/// Where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) device: DeviceId,
    pub(crate) to: Address,
}

/// Why it goes nowhere; `known` says what would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRoute {
    Required { known: Vec<String> },
    Unknown { what: String, known: Vec<String> },
}

impl Directory {
    pub(crate) async fn load(store: &AnyStore) -> Result<Self, StoreError> {
        let mut state = State::default();
        for d in store.list_all("device/").await? {
            if let Some(d) = records::read::<DeviceRecord>(&d) {
                state.devices.insert(d.id.clone(), Arc::new(d));
            }
        }
        for d in store.list_all("approval/").await? {
            if let Some(d) = records::read::<ApprovalRecord>(&d) {
                state.decided.insert((d.device, d.project), d.approved);
            }
        }
        for p in store.list_all("project/").await? {
            if let Some(p) = records::read::<ProjectRecord>(&p) {
                state.put_project(p);
            }
        }
        for s in store.list_all("session/").await? {
            if let Some(s) = records::read::<SessionRecord>(&s) {
                state.put_session(s);
            }
        }
        let devices = state.devices.values().map(|d| d.account.clone());
        state.accounts.extend(devices);
        state.accounts.extend(AccountId::new(DEFAULT));
        for a in store.list_all("account/").await? {
            match records::read::<AccountRecord>(&a) {
                Some(a) if a.deleting => drop(state.accounts.remove(&a.account)),
                Some(a) => drop(state.accounts.insert(a.account)),
                None => {}
            }
        }
        for r in store.list_all("revoked/").await? {
            let jti: Option<Uuid> = r.key.strip_prefix("revoked/").and_then(|j| j.parse().ok());
            let until = r.keep_until.unwrap_or(WallMs(i64::MAX));
            state.revoked.extend(jti.map(|jti| (jti, until)));
        }
        Ok(Self(RwLock::new(state)))
    }

    fn with<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn device(&self, id: &DeviceId) -> Option<Arc<DeviceRecord>> {
        self.with(|s| s.devices.get(id).cloned())
    }

    /// Whether projects of this device are approved as it announces them.
    pub(crate) fn vouches(&self, id: &DeviceId) -> bool {
        self.with(|s| s.devices.get(id).is_some_and(|d| d.vouched))
    }

    pub(crate) fn device_with_key(
        &self,
        account: &AccountId,
        public_key: &str,
    ) -> Option<Arc<DeviceRecord>> {
        self.with(|s| {
            s.devices
                .values()
                .find(|d| d.account == *account && d.public_key == public_key)
                .cloned()
        })
    }

    pub(crate) fn devices(&self, account: &AccountId) -> Vec<Arc<DeviceRecord>> {
        self.with(|s| {
            let of = s.devices.values().filter(|d| d.account == *account);
            of.cloned().collect()
        })
    }

    /// The devices of all accounts.
    pub(crate) fn every_device(&self) -> Vec<Arc<DeviceRecord>> {
        self.with(|s| s.devices.values().cloned().collect())
    }

    /// Takes the device's new record; a revocation is for good, also against an older copy that comes later.
    pub(crate) fn put_device(&self, mut device: DeviceRecord) {
        self.change(|s| {
            let known = s.devices.get(&device.id);
            device.revoked_at = device.revoked_at.or(known.and_then(|d| d.revoked_at));
            s.devices.insert(device.id.clone(), Arc::new(device));
        });
    }

    pub(crate) fn projects(&self, account: &AccountId) -> Vec<ProjectRecord> {
        self.with(|s| {
            let of = s.projects.values().filter(|p| s.owns(account, &p.device));
            of.cloned().collect()
        })
    }

    pub(crate) fn project(&self, device: &DeviceId, name: &ProjectName) -> Option<ProjectRecord> {
        self.with(|s| s.projects.get(&(device.clone(), name.clone())).cloned())
    }

    pub(crate) fn projects_of(&self, device: &DeviceId) -> Vec<ProjectRecord> {
        self.with(|s| {
            let of = s.projects.values().filter(|p| p.device == *device);
            of.cloned().collect()
        })
    }

    /// Takes a project's new record; a person's decision about it stands.
    pub(crate) fn put_project(&self, project: ProjectRecord) {
        self.change(|s| s.put_project(project));
    }

    /// Takes a person's decision.
    pub(crate) fn decide(&self, decision: &ApprovalRecord) {
        let key = (decision.device.clone(), decision.project.clone());
        self.change(|s| {
            if let Some(p) = s.projects.get_mut(&key) {
                p.approved = decision.approved;
            }
            s.decided.insert(key, decision.approved);
        });
    }

    pub(crate) fn sessions(&self, account: &AccountId) -> Vec<SessionRecord> {
        self.with(|s| {
            s.sessions
                .iter()
                .filter(|((a, _), _)| a == account)
                .map(|(_, r)| r.clone())
                .collect()
        })
    }

    pub(crate) fn sessions_of(&self, account: &AccountId, device: &DeviceId) -> Vec<SessionRecord> {
        let mut all = self.sessions(account);
        all.retain(|s| s.device == *device);
        all
    }

    /// The session that has this id, or had it before.
    pub(crate) fn session(&self, account: &AccountId, id: SessionId) -> Option<SessionRecord> {
        self.with(|s| s.session(account, id).cloned())
    }

    /// Takes a session's new record; ids that it had before are no sessions of their own any more.
    pub(crate) fn put_session(&self, account: &AccountId, session: SessionRecord) {
        self.change(|s| {
            for old in s.succeeded(account, &session) {
                s.sessions.remove(&(account.clone(), old));
            }
            s.put_session_of(account, session);
        });
    }

    /// The listed sessions that `session` has just taken the place of. One that was resumed under its old id since
    /// then is not among them.
    pub(crate) fn succeeded(&self, account: &AccountId, session: &SessionRecord) -> Vec<SessionId> {
        self.with(|s| s.succeeded(account, session))
    }

    /// Forgets closed sessions without a sign of life since `before`, as the store does.
    pub(crate) fn forget_sessions(&self, before: WallMs) {
        self.change(|s| {
            s.sessions
                .retain(|_, r| r.info.activity != Activity::Closed || r.info.active_at >= before);
            let State {
                sessions, lineage, ..
            } = s;
            lineage.retain(|(account, _), new| sessions.contains_key(&(account.clone(), *new)));
        });
    }

    pub(crate) fn is_revoked(&self, jti: &Uuid) -> bool {
        self.with(|s| s.revoked.contains_key(jti))
    }

    /// Changes when a token is called back.
    pub(crate) fn revocations(&self) -> watch::Receiver<()> {
        self.with(|s| s.revocations.subscribe())
    }

    /// Notes that a token was called back, whose own time ends at `until`.
    pub(crate) fn revoke(&self, jti: Uuid, until: WallMs) {
        self.change(|s| {
            s.revoked.insert(jti, until);
            s.revocations.send_replace(());
        });
    }

    /// Forgets called-back tokens whose own time is over: they hold no more in any case.
    pub(crate) fn forget_revoked(&self, now: WallMs) {
        self.change(|s| s.revoked.retain(|_, until| *until >= now));
    }

    /// Devices that were revoked before.
    pub(crate) fn revoked_devices(&self, before: WallMs) -> Vec<Arc<DeviceRecord>> {
        let gone = |d: &&Arc<DeviceRecord>| d.revoked_at.is_some_and(|at| at <= before);
        self.with(|s| s.devices.values().filter(gone).cloned().collect())
    }

    /// Whether another device of the account serves a project that this one serves, too.
    pub(crate) fn has_stand_in(&self, account: &AccountId, device: &DeviceId) -> bool {
        self.with(|s| {
            let mut of = s.projects.values().filter(|p| p.device == *device);
            of.any(|mine| {
                s.projects.values().any(|p| {
                    let serves = p.info.enabled && p.approved && p.device != *device;
                    serves && p.info.name == mine.info.name && s.owns(account, &p.device)
                })
            })
        })
    }

    /// Where a request goes; `standing` tells how fit a device is.
    pub(crate) fn route(
        &self,
        account: &AccountId,
        want: &Want,
        standing: &dyn Fn(&DeviceId) -> Standing,
    ) -> Result<Route, NoRoute> {
        self.with(|s| s.route(account, want, standing))
    }
}

impl State {
    fn owns(&self, account: &AccountId, device: &DeviceId) -> bool {
        self.devices
            .get(device)
            .is_some_and(|d| d.account == *account)
    }

    fn put_project(&mut self, mut project: ProjectRecord) {
        let key = (project.device.clone(), project.info.name.clone());
        if let Some(decided) = self.decided.get(&key) {
            project.approved = *decided;
        }
        self.projects.insert(key, project);
    }

    fn put_session(&mut self, session: SessionRecord) {
        if let Some(account) = self.devices.get(&session.device).map(|d| d.account.clone()) {
            self.put_session_of(&account, session);
        }
    }

    fn put_session_of(&mut self, account: &AccountId, session: SessionRecord) {
        let id = session.info.session_id;
        for earlier in &session.info.lineage {
            self.lineage.insert((account.clone(), *earlier), id);
        }
        self.sessions.insert((account.clone(), id), session);
    }

    fn succeeded(&self, account: &AccountId, session: &SessionRecord) -> Vec<SessionId> {
        let key = |id: SessionId| (account.clone(), id);
        let of = session.info.lineage.iter().copied().filter(|old| {
            *old != session.info.session_id
                && self.lineage.get(&key(*old)) != Some(&session.info.session_id)
                && self
                    .sessions
                    .get(&key(*old))
                    .is_some_and(|s| s.device == session.device)
        });
        of.collect()
    }

    fn session(&self, account: &AccountId, id: SessionId) -> Option<&SessionRecord> {
        let key = (account.clone(), id);
        // A successor is preferred, so that mail for an old id follows the conversation.
        let successor = self.lineage.get(&key).filter(|s| **s != id);
        successor
            .and_then(|s| self.sessions.get(&(account.clone(), *s)))
            .or_else(|| self.sessions.get(&key))
    }

    fn active_at(&self, device: &DeviceRecord) -> WallMs {
        let sessions = self.sessions.values().filter(|s| s.device == device.id);
        let session = sessions
            .filter(|s| s.info.activity != Activity::Closed)
            .map(|s| s.info.active_at)
            .max();
        session.max(device.last_seen).unwrap_or(device.enrolled_at)
    }

    fn route(
        &self,
        account: &AccountId,
        want: &Want,
        standing: &dyn Fn(&DeviceId) -> Standing,
    ) -> Result<Route, NoRoute> {
        let mine: Vec<&DeviceRecord> = self
            .devices
            .values()
            .map(|d| &**d)
            .filter(|d| d.account == *account && d.revoked_at.is_none())
            .collect();
        let names = || shown(mine.iter().map(|d| d.id.to_string()));
        let named = match &want.device {
            None => None,
            Some(name) => Some(
                mine.iter()
                    .copied()
                    .find(|d| d.id.as_str() == name)
                    .or_else(|| {
                        let mut by_name = mine.iter().copied().filter(|d| d.name == *name);
                        by_name.next().filter(|_| by_name.next().is_none())
                    })
                    .ok_or_else(|| NoRoute::Unknown {
                        what: format!("device `{name}`"),
                        known: names(),
                    })?,
            ),
        };
        let allowed = |d: &DeviceId| named.is_none_or(|n| n.id == *d);

        let project = match &want.project {
            None => None,
            Some(wanted) => {
                let served: Vec<&ProjectRecord> = self
                    .projects
                    .values()
                    .filter(|p| p.info.enabled && p.approved)
                    .filter(|p| mine.iter().any(|d| d.id == p.device))
                    .collect();
                let fits = served
                    .iter()
                    .filter(|p| p.info.name.as_str() == wanted || p.info.path == *wanted)
                    .filter(|p| allowed(&p.device));
                let best = fits.max_by_key(|p| {
                    let device = self.devices.get(&p.device);
                    let active = device.map(|d| self.active_at(d));
                    (standing(&p.device), active)
                });
                let best = best.ok_or_else(|| NoRoute::Unknown {
                    what: format!("project `{wanted}`"),
                    known: shown(served.iter().map(|p| p.info.name.to_string())),
                })?;
                Some((best.device.clone(), best.info.name.clone()))
            }
        };

        if let Some(id) = want.session {
            let known = self
                .session(account, id)
                .filter(|s| mine.iter().any(|d| d.id == s.device) && allowed(&s.device));
            let device = match (known, named, &project) {
                (Some(s), _, _) => s.device.clone(),
                (None, Some(d), _) => d.id.clone(),
                (None, None, Some((device, _))) => device.clone(),
                (None, None, None) => {
                    let mut open: Vec<_> = self
                        .sessions
                        .iter()
                        .filter(|((a, _), s)| a == account && s.info.activity != Activity::Closed)
                        .map(|(_, s)| &s.info)
                        .collect();
                    open.sort_by_key(|s| std::cmp::Reverse(s.active_at));
                    return Err(NoRoute::Unknown {
                        what: format!("session `{id}`"),
                        known: shown(open.iter().map(|s| s.session_id.to_string())),
                    });
                }
            };
            let to = Address {
                project: project.map(|(_, name)| name),
                session_id: Some(id),
            };
            return Ok(Route { device, to });
        }
        if let Some((device, name)) = project {
            let to = Address {
                project: Some(name),
                session_id: None,
            };
            return Ok(Route { device, to });
        }
        let only = match (named, mine.as_slice()) {
            (Some(d), _) => d,
            (None, [only]) => only,
            (None, []) => {
                return Err(NoRoute::Unknown {
                    what: "device: none is enrolled yet".to_owned(),
                    known: Vec::new(),
                });
            }
            (None, _) => return Err(NoRoute::Required { known: names() }),
        };
        Ok(Route {
            device: only.id.clone(),
            to: Address::default(),
        })
    }
}

fn shown(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.take(KNOWN_SHOWN * 4).collect();
    names.dedup();
    names.truncate(KNOWN_SHOWN);
    names
}

/// The difference that a hello's snapshot makes: projects to write (those left out are disabled), sessions to write
/// (live ones left out are closed).
pub(crate) fn snapshot(
    device: &DeviceId,
    vouched: bool,
    known_projects: &[ProjectRecord],
    known_sessions: &[SessionRecord],
    projects: &[ProjectInfo],
    sessions: &[SessionInfo],
) -> (Vec<ProjectRecord>, Vec<SessionRecord>) {
    let mut put_projects: Vec<ProjectRecord> = projects
        .iter()
        .map(|info| ProjectRecord {
            info: info.clone(),
            device: device.clone(),
            approved: known_projects
                .iter()
                .find(|k| k.info.name == info.name)
                .map_or(vouched, |k| k.approved),
        })
        .filter(|p| !known_projects.contains(p))
        .collect();
    put_projects.extend(
        known_projects
            .iter()
            .filter(|k| k.info.enabled && projects.iter().all(|p| p.name != k.info.name))
            .map(|k| {
                let mut gone = k.clone();
                gone.info.enabled = false;
                gone
            }),
    );
    let mut put_sessions: Vec<SessionRecord> = sessions
        .iter()
        .map(|info| SessionRecord {
            info: info.clone(),
            device: device.clone(),
        })
        .filter(|s| !known_sessions.contains(s))
        .collect();
    put_sessions.extend(
        known_sessions
            .iter()
            .filter(|k| k.info.activity != Activity::Closed)
            .filter(|k| sessions.iter().all(|s| s.session_id != k.info.session_id))
            .map(|k| {
                let mut gone = k.clone();
                gone.info.activity = Activity::Closed;
                gone
            }),
    );
    (put_projects, put_sessions)
}

#[path = "directory_pages.rs"]
pub(crate) mod pages;

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
