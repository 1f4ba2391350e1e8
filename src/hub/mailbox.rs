//! The hub's rules over the store: what a hello, an ack, a report and the passing of time do.
//!
//! Each is one batch. Those of a connection begin with a fence on its generation, so that the frames of an older
//! connection change nothing; records are compared and set, and a lost race reads again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::clock::wall;
use super::directory::snapshot;
use super::presence::Notice;
use super::records::{
    self, DeviceRecord, ItemKind, ItemRecord, OutboxRecord, ProjectRecord, SessionRecord,
};
use super::reports::{self, Effect};
use super::state::Hub;
use super::store::{
    Commit, Done, Expect, Feed, Mailbox, MailboxId, Op, Position, Records, StoreError, Stored,
};
use crate::core::server::Admission;
use crate::domain::{
    AccountId, Code, DeviceId, EnvelopeId, InstanceId, NotAReport, Report, ReportBody, Seq, WallMs,
    limits::FINISHED_KEPT_MS,
};
use crate::wire::{CloseCode, Hello, RejectedReport};

/// Tries of a batch whose records others change at the same time.
const TRIES: usize = 8;
/// Envelopes or records that one sweep step looks at.
const SWEEP: u32 = 200;

/// An admitted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) account: AccountId,
    pub(crate) device: DeviceId,
    pub(crate) mailbox: MailboxId,
    pub(crate) ticket: u64,
    generation: u64,
    outbox: InstanceId,
    acked: AtomicU64,
    reported: AtomicU64,
}

/// Why a hello is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) close: CloseCode,
}

impl From<StoreError> for Refusal {
    fn from(e: StoreError) -> Self {
        tracing::warn!(error = %e, "a connection ends because of the store");
        Self {
            code: e.code(),
            message: "the hub's store cannot be used now".to_owned(),
            close: CloseCode::GoingAway,
        }
    }
}

/// The records that some envelopes belong to; two attempts of one task share one.
#[derive(Debug, Default)]
struct Items {
    of: BTreeMap<EnvelopeId, String>,
    records: BTreeMap<String, (u64, ItemRecord)>,
}

impl Items {
    fn get_mut(&mut self, envelope: EnvelopeId) -> Option<&mut ItemRecord> {
        let key = self.of.get(&envelope)?;
        self.records.get_mut(key).map(|(_, item)| item)
    }

    /// The step that writes the record of this envelope.
    fn put(&self, envelope: EnvelopeId, now: WallMs) -> Option<(Op, &ItemRecord)> {
        let key = self.of.get(&envelope)?;
        let (version, item) = self.records.get(key)?;
        Some((put_item(key, *version, item, now), item))
    }
}

impl Hub {
    /// Admits a hello: the newest generation, the cursor's fate, the device's snapshot, in one commit.
    pub(crate) async fn admit(
        &self,
        device: &DeviceRecord,
        hello: &Hello,
        notices: mpsc::Sender<Notice>,
    ) -> Result<(Arc<Connection>, Admission, Feed), Refusal> {
        let ticket = self
            .presence
            .enter(&device.id, hello.instance, hello.capacity, notices)
            .map_err(|_| Refusal {
                code: Code::KeyHeldElsewhere,
                message: format!(
                    "another live daemon holds the key of `{}`: stop that one, or enrol this machine on its own",
                    device.id
                ),
                close: CloseCode::Superseded,
            })?;
        let mut admitted = Err(StoreError::Busy);
        for _ in 0..TRIES {
            admitted = self.admit_entered(device, hello, ticket).await;
            // An older connection that ends at the same time notes its last sign of life.
            if !matches!(admitted, Err(StoreError::Conflict { .. })) {
                break;
            }
        }
        if admitted.is_err() {
            self.presence.leave(&device.id, ticket);
        }
        Ok(admitted?)
    }

    async fn admit_entered(
        &self,
        device: &DeviceRecord,
        hello: &Hello,
        ticket: u64,
    ) -> Result<(Arc<Connection>, Admission, Feed), StoreError> {
        let (account, id) = (&device.account, &device.id);
        let mailbox = MailboxId::of(account, id);
        // Before the head is read, so that no row falls between.
        let feed = self.store.subscribe(&mailbox);
        let now = wall();
        let (outbox_key, device_key) = (
            OutboxRecord::key(account, id),
            DeviceRecord::key(account, id),
        );
        let known = self
            .store
            .get_many(vec![outbox_key.clone(), device_key.clone()])
            .await?;
        let find = |key: &str| known.iter().find(|s| s.key == key);
        let report_n = find(&outbox_key)
            .and_then(records::read::<OutboxRecord>)
            .filter(|o| o.instance == hello.outbox.instance)
            .map_or(0, |o| o.n);
        let stored = find(&device_key).ok_or_else(|| StoreError::Conflict {
            key: device_key.clone(),
        })?;
        let mut record = records::read::<DeviceRecord>(stored).unwrap_or_else(|| device.clone());
        let expect = Expect::Version(stored.version);
        record.os.clone_from(&hello.os);
        record.build.clone_from(&hello.build);
        record.claude_version.clone_from(&hello.claude_version);
        record.instance = Some(hello.instance);
        record.last_seen = Some(now);
        let (projects, sessions) = snapshot(
            id,
            &self.directory.projects_of(id),
            &self.directory.sessions_of(account, id),
            &hello.projects,
            &hello.sessions,
        );
        let raise = Op::Raise {
            mailbox: mailbox.clone(),
        };
        let mut batch = vec![raise, records::put(device_key, &record, expect, None)];
        batch.extend(projects.iter().map(|p| put_project(account, p)));
        batch.extend(sessions.iter().map(|s| put_session(account, s, now)));
        let mut at = position(&self.store.commit(batch).await?)?;
        if let Some(last) = hello.last
            && last.epoch == at.epoch
            && last.seq > at.head
        {
            // The device knows more than this store: it was restored, and its numbers mean something else now.
            let renew = Op::Renew {
                mailbox: mailbox.clone(),
            };
            at = position(&self.store.commit(vec![renew]).await?)?;
        }
        self.directory.put_device(record);
        for p in projects {
            self.directory.put_project(p);
        }
        for s in sessions {
            self.directory.put_session(account, s);
        }
        let admission = Admission {
            epoch: at.epoch,
            head: at.head,
            generation: at.generation,
            now: wall(),
            report_n,
        };
        let connection = Connection {
            account: account.clone(),
            device: id.clone(),
            mailbox,
            ticket,
            generation: at.generation,
            outbox: hello.outbox.instance,
            acked: AtomicU64::new(at.acked.0),
            reported: AtomicU64::new(report_n),
        };
        Ok((Arc::new(connection), admission, feed))
    }

    /// Commits an ack: the cursor, and `on_device` for each envelope that it passes.
    pub(crate) async fn store_ack(&self, c: &Connection, seq: Seq) -> Result<(), StoreError> {
        let from = Seq(c.acked.load(Ordering::Relaxed));
        let ids = self.store.ids_between(&c.mailbox, from, seq).await?;
        for _ in 0..TRIES {
            let now = wall();
            let mut items = self.items(&c.account, &ids).await?;
            let mut batch = vec![
                c.fence(),
                Op::Ack {
                    mailbox: c.mailbox.clone(),
                    seq,
                },
            ];
            for id in &ids {
                // Only the present attempt's envelope changes its record, so each is written once.
                if let Some(item) = items.get_mut(*id)
                    && reports::on_device(item, *id, now) == Effect::Changed
                {
                    batch.extend(items.put(*id, now).map(|(op, _)| op));
                }
            }
            match self.store.commit(batch).await {
                Ok(_) => {
                    c.acked.fetch_max(seq.0, Ordering::Relaxed);
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Err(StoreError::Busy)
    }

    /// Commits reports in order: what they change and the outbox's number in one batch.
    pub(crate) async fn store_reports(
        &self,
        c: &Connection,
        batch: &[Report],
    ) -> Result<(u64, Vec<RejectedReport>), StoreError> {
        let done = c.reported.load(Ordering::Relaxed);
        let fresh: Vec<&Report> = batch.iter().filter(|r| r.n > done).collect();
        let Some(last) = fresh.last().map(|r| r.n) else {
            return Ok((done, Vec::new()));
        };
        let ids: Vec<EnvelopeId> = fresh.iter().map(|r| EnvelopeId(r.id)).collect();
        for _ in 0..TRIES {
            let now = wall();
            let items = self.items(&c.account, &ids).await?;
            let mut plan = Plan::new(self, c, items, now);
            for report in &fresh {
                plan.take(report);
            }
            let outbox = OutboxRecord {
                instance: c.outbox,
                n: last,
            };
            let (steps, rejected, sessions, projects) = plan.finish();
            let mut ops = vec![c.fence()];
            ops.extend(steps);
            let key = OutboxRecord::key(&c.account, &c.device);
            ops.push(records::put(key, &outbox, Expect::Any, None));
            match self.store.commit(ops).await {
                Ok(_) => {
                    c.reported.fetch_max(last, Ordering::Relaxed);
                    for s in sessions {
                        self.directory.put_session(&c.account, s);
                    }
                    for p in projects {
                        self.directory.put_project(p);
                    }
                    return Ok((last, rejected));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Err(StoreError::Busy)
    }

    /// The tasks and messages of these envelopes, by envelope.
    async fn items(&self, account: &AccountId, ids: &[EnvelopeId]) -> Result<Items, StoreError> {
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

    /// One pass over what time ends: expired envelopes, old ids and records. Bounded; what is left waits for the next pass.
    pub(crate) async fn sweep(&self) -> Result<(), StoreError> {
        self.directory
            .forget_sessions(wall().plus(-FINISHED_KEPT_MS));
        for _ in 0..50 {
            let now = wall();
            let due = self.store.due(now, SWEEP).await?;
            let more = due.len() == SWEEP as usize;
            for d in due {
                self.expire(&d.mailbox, d.id, d.acked, now).await?;
            }
            let dropped = self.store.retain(now, SWEEP).await?;
            if !more && dropped < SWEEP as usize {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn expire(
        &self,
        mailbox: &MailboxId,
        id: EnvelopeId,
        acked: bool,
        now: WallMs,
    ) -> Result<(), StoreError> {
        let mut ops = vec![Op::Retire {
            mailbox: mailbox.clone(),
            id,
        }];
        // What the device has is the device's to end.
        let account = mailbox.as_str().split('/').next().unwrap_or_default();
        if !acked && let Ok(account) = AccountId::new(account) {
            let mut items = self.items(&account, &[id]).await?;
            if let Some(item) = items.get_mut(id)
                && id == item.current()
                && reports::expire(item, now) == Effect::Changed
            {
                ops.extend(items.put(id, now).map(|(op, _)| op));
            }
        }
        match self.store.commit(ops).await {
            // A report came first; the next pass looks again.
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Connection {
    fn fence(&self) -> Op {
        Op::Fence {
            mailbox: self.mailbox.clone(),
            generation: self.generation,
        }
    }
}

/// The steps of a batch of reports, gathered in order.
struct Plan<'a> {
    hub: &'a Hub,
    c: &'a Connection,
    now: WallMs,
    items: Items,
    changed: Vec<EnvelopeId>,
    rejected: Vec<RejectedReport>,
    sessions: Vec<SessionRecord>,
    projects: Vec<ProjectRecord>,
}

impl<'a> Plan<'a> {
    fn new(hub: &'a Hub, c: &'a Connection, items: Items, now: WallMs) -> Self {
        Self {
            hub,
            c,
            now,
            items,
            changed: Vec::new(),
            rejected: Vec::new(),
            sessions: Vec::new(),
            projects: Vec::new(),
        }
    }

    fn take(&mut self, report: &Report) {
        if let Err(code) = self.apply(report) {
            self.rejected.push(RejectedReport {
                n: report.n,
                code: code.as_str().to_owned(),
            });
        }
    }

    fn apply(&mut self, report: &Report) -> Result<(), Code> {
        let body = report.read().map_err(|e| match e {
            NotAReport::UnknownKind(_) | NotAReport::Body(_) => Code::InvalidField,
        })?;
        match body {
            ReportBody::Session(info) => self.sessions.push(SessionRecord {
                info,
                device: self.c.device.clone(),
            }),
            ReportBody::Project(info) => {
                let known = self.hub.directory.project(&self.c.device, &info.name);
                self.projects.push(ProjectRecord {
                    approved: known.is_none_or(|k| k.approved),
                    info,
                    device: self.c.device.clone(),
                });
            }
            ReportBody::Note(_) => {}
            body => {
                let envelope = EnvelopeId(report.id);
                let item = self
                    .items
                    .get_mut(envelope)
                    .filter(|item| item.device == self.c.device)
                    .ok_or(Code::UnknownMessage)?;
                if reports::apply(item, envelope, body, report.at) == Effect::Changed
                    && !self.changed.contains(&envelope)
                {
                    self.changed.push(envelope);
                }
            }
        }
        Ok(())
    }

    fn finish(
        self,
    ) -> (
        Vec<Op>,
        Vec<RejectedReport>,
        Vec<SessionRecord>,
        Vec<ProjectRecord>,
    ) {
        let mut ops = Vec::new();
        for envelope in &self.changed {
            let Some((op, item)) = self.items.put(*envelope, self.now) else {
                continue;
            };
            // Attempts that share a record write it once: the last state stands in the first step.
            if ops.contains(&op) {
                continue;
            }
            ops.push(op);
            if item.is_over() {
                ops.push(Op::Retire {
                    mailbox: self.c.mailbox.clone(),
                    id: *envelope,
                });
            }
        }
        let account = &self.c.account;
        for session in &self.sessions {
            let gone = self.hub.directory.succeeded(account, session);
            ops.extend(gone.into_iter().map(|old| Op::Delete {
                key: SessionRecord::key(account, old),
                expect: Expect::Any,
            }));
            ops.push(put_session(account, session, self.now));
        }
        ops.extend(self.projects.iter().map(|p| put_project(account, p)));
        (ops, self.rejected, self.sessions, self.projects)
    }
}

fn put_item(key: &str, version: u64, item: &ItemRecord, now: WallMs) -> Op {
    let keep_until = item.is_over().then(|| now.plus(FINISHED_KEPT_MS));
    records::put(key.to_owned(), item, Expect::Version(version), keep_until)
}

fn alias_prefix(account: &AccountId) -> String {
    format!("alias/{account}/")
}

fn put_project(account: &AccountId, p: &ProjectRecord) -> Op {
    let key = ProjectRecord::key(account, &p.device, &p.info.name);
    records::put(key, p, Expect::Any, None)
}

fn put_session(account: &AccountId, s: &SessionRecord, now: WallMs) -> Op {
    let key = SessionRecord::key(account, s.info.session_id);
    records::put(key, s, Expect::Any, Some(now.plus(FINISHED_KEPT_MS)))
}

fn position(done: &[Done]) -> Result<Position, StoreError> {
    done.iter()
        .find_map(|d| match d {
            Done::At(p) => Some(*p),
            _ => None,
        })
        .ok_or_else(|| StoreError::Io("the store did not tell the mailbox's place".to_owned()))
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
