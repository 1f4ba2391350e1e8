//! A device's connection over its mailbox: the admission of its hello, and its acks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::{TRIES, put_project, put_session};
use crate::core::server::Admission;
use crate::domain::{AccountId, Code, DeviceId, Epoch, InstanceId, Seq};
use crate::hub::clock::wall;
use crate::hub::directory::snapshot;
use crate::hub::presence::{Entered, Notice};
use crate::hub::records::{self, DeviceRecord, OutboxRecord};
use crate::hub::reports::{self, Effect};
use crate::hub::state::Hub;
use crate::hub::store::{
    Commit, Done, Expect, Feed, Mailbox, MailboxId, Op, Position, Records, StoreError,
};
use crate::wire::{CloseCode, Hello};

/// An admitted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) account: AccountId,
    pub(crate) device: DeviceId,
    pub(crate) mailbox: MailboxId,
    pub(crate) ticket: u64,
    pub(crate) generation: u64,
    pub(crate) epoch: Epoch,
    pub(super) outbox: InstanceId,
    acked: AtomicU64,
    pub(super) reported: AtomicU64,
}

/// Why a hello is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) close: CloseCode,
}

/// Why a hello that has its place is not admitted after all.
#[derive(Debug)]
enum Refused {
    Store(StoreError),
    ShutOut,
}

impl From<StoreError> for Refused {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl Refusal {
    fn held(device: &DeviceId) -> Self {
        Self {
            code: Code::KeyHeldElsewhere,
            message: format!(
                "another live daemon holds the key of `{device}`: stop that one, move the device here with `remote-collab login --take-over`, or enrol this machine on its own"
            ),
            close: CloseCode::Superseded,
        }
    }

    fn shut_out(device: &DeviceId) -> Self {
        Self {
            code: Code::KeyHeldElsewhere,
            message: format!(
                "the device `{device}` was moved to another machine or data folder; `remote-collab login --take-over` moves it back here"
            ),
            close: CloseCode::Superseded,
        }
    }
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
impl Hub {
    /// Admits a hello: the newest generation, the cursor's fate, the device's snapshot, in one commit.
    pub(crate) async fn admit(
        &self,
        device: &DeviceRecord,
        hello: &Hello,
        notices: mpsc::Sender<Notice>,
    ) -> Result<(Arc<Connection>, Admission, Feed), Refusal> {
        // One that was shut out takes nobody's place, not even for a moment.
        let known = self.directory.device(&device.id);
        if known.is_some_and(|d| d.shut_out.contains(&hello.instance)) && !hello.take_over {
            return Err(Refusal::shut_out(&device.id));
        }
        let (id, instance) = (&device.id, hello.instance);
        let entered = self
            .presence
            .enter(id, instance, hello.capacity, notices, hello.take_over)
            .map_err(|_| Refusal::held(id))?;
        let mut admitted = Err(Refused::Store(StoreError::Busy));
        for _ in 0..TRIES {
            admitted = self.admit_entered(device, hello, entered).await;
            // An older connection that ends at the same time notes its last sign of life. One that a newer connection took
            // over does not try again: it would only hold that one up.
            let conflict = matches!(admitted, Err(Refused::Store(StoreError::Conflict { .. })));
            if !conflict || !self.presence.holds(id, entered.ticket) {
                break;
            }
        }
        if admitted.is_err() {
            self.presence.leave(id, entered.ticket);
        }
        admitted.map_err(|refused| match refused {
            Refused::Store(e) => e.into(),
            Refused::ShutOut => Refusal::shut_out(id),
        })
    }

    async fn admit_entered(
        &self,
        device: &DeviceRecord,
        hello: &Hello,
        entered: Entered,
    ) -> Result<(Arc<Connection>, Admission, Feed), Refused> {
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
        if hello.take_over {
            record.give_to(hello.instance, entered.shut_out);
            tracing::info!(device = %id, instance = %hello.instance, "a person moved the device here");
        } else if record.shut_out.contains(&hello.instance) {
            return Err(Refused::ShutOut);
        }
        record.os.clone_from(&hello.os);
        record.build.clone_from(&hello.build);
        record.claude_version.clone_from(&hello.claude_version);
        record.instance = Some(hello.instance);
        record.last_seen = Some(now);
        let (projects, sessions) = snapshot(
            id,
            record.vouched,
            &self.directory.projects_of(id),
            &self.directory.sessions_of(account, id),
            &hello.projects,
            &hello.sessions,
        );
        let raise = Op::Raise {
            mailbox: mailbox.clone(),
        };
        let mut batch = vec![raise, records::put(device_key, &record, expect, None)];
        // An older connection may commit reports between the look at its number and the fence: then this looks again, so
        // that the device does not bring them twice.
        let outbox = find(&outbox_key);
        if outbox.is_none() || report_n > 0 {
            let same = OutboxRecord {
                instance: hello.outbox.instance,
                n: report_n,
            };
            let expect = outbox.map_or(Expect::Absent, |s| Expect::Version(s.version));
            batch.push(records::put(outbox_key.clone(), &same, expect, None));
        }
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
        // What the device has by its own word; a cursor of another life tells nothing.
        let known = hello.last.filter(|last| last.epoch == at.epoch);
        let has = known.map_or(at.head, |last| last.seq.min(at.head));
        self.handed.raise(id, has);
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
            ticket: entered.ticket,
            generation: at.generation,
            epoch: at.epoch,
            outbox: hello.outbox.instance,
            acked: AtomicU64::new(at.acked.0),
            reported: AtomicU64::new(report_n),
        };
        // An ack that was lost is not made again: what hello says is one.
        if known.is_some() && has > at.acked {
            self.store_ack(&connection, has).await?;
        }
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
                    let written = items.write(&c.account, *id, now);
                    batch.extend(written.into_iter().flat_map(|w| w.0));
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
}

impl Connection {
    pub(super) fn fence(&self) -> Op {
        Op::Fence {
            mailbox: self.mailbox.clone(),
            generation: self.generation,
        }
    }
}
fn position(done: &[Done]) -> Result<Position, StoreError> {
    done.iter()
        .find_map(|d| match d {
            Done::At(p) => Some(*p),
            _ => None,
        })
        .ok_or_else(|| StoreError::Io("the store did not tell the mailbox's place".to_owned()))
}
