//! A batch of reports: what they change and the outbox's number, in one commit.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::items::Items;
use super::{Connection, TRIES, put_project, put_session};
use crate::domain::{Code, EnvelopeId, NotAReport, Report, ReportBody, ReportKind, WallMs};
use crate::hub::clock::wall;
use crate::hub::events::progress;
use crate::hub::records::{self, OutboxRecord, ProjectRecord, SessionRecord};
use crate::hub::reports::{self, Effect};
use crate::hub::silence;
use crate::hub::state::Hub;
use crate::hub::store::{Expect, Op, StoreError};
use crate::wire::RejectedReport;

impl Hub {
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
        let about = fresh.iter().filter(|r| names_envelope(&r.kind));
        let ids: Vec<EnvelopeId> = about.map(|r| EnvelopeId(r.id)).collect();
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
            match self.commit(ops).await {
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
}

/// Whether a report of this kind is about an envelope.
const fn names_envelope(kind: &ReportKind) -> bool {
    match kind {
        ReportKind::Receipt
        | ReportKind::Status
        | ReportKind::Progress
        | ReportKind::Result
        | ReportKind::Reply => true,
        ReportKind::Session | ReportKind::Project | ReportKind::Note | ReportKind::Other(_) => {
            false
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
    /// `cancel` envelopes that the device has carried out.
    answered: Vec<EnvelopeId>,
    /// Those whose run went a step.
    stepped: Vec<EnvelopeId>,
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
            answered: Vec::new(),
            stepped: Vec::new(),
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
                let vouched = self.hub.directory.vouches(&self.c.device);
                self.projects.push(ProjectRecord {
                    approved: known.map_or(vouched, |k| k.approved),
                    info,
                    device: self.c.device.clone(),
                });
            }
            ReportBody::Note(_) => {}
            body => {
                let envelope = EnvelopeId(report.id);
                let device = &self.c.device;
                if self.items.is_control(envelope, device) {
                    if matches!(&body, ReportBody::Receipt(r) if r.stage.is_terminal()) {
                        self.answered.push(envelope);
                    }
                    return Ok(());
                }
                let item = self
                    .items
                    .get_mut(envelope)
                    .filter(|item| item.was_sent(envelope, device))
                    .ok_or(Code::UnknownMessage)?;
                if let ReportBody::Progress(step) = &body
                    && envelope == item.current()
                    && !item.is_over()
                {
                    let step = progress(&step.text);
                    self.items.tell_beside(envelope, step);
                    self.stepped.push(envelope);
                }
                let Some(item) = self.items.get_mut(envelope) else {
                    return Err(Code::UnknownMessage);
                };
                if reports::apply(item, envelope, body, report.at) == Effect::Changed {
                    silence::watch(item, self.now, self.hub.lifecycle.patience());
                    self.items.tell(envelope);
                    if !self.changed.contains(&envelope) {
                        self.changed.push(envelope);
                    }
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
        let (mut ops, mut written) = (Vec::new(), BTreeSet::new());
        for envelope in &self.changed {
            let Some((steps, item)) = self.items.write(&self.c.account, *envelope, self.now) else {
                continue;
            };
            // Attempts that share a record write it once: the last state stands in the first step.
            if written.insert(item.id) {
                ops.extend(steps);
            }
            if item.is_over() {
                ops.push(Op::Retire {
                    mailbox: self.c.mailbox.clone(),
                    id: *envelope,
                });
            }
        }
        let account = &self.c.account;
        for envelope in &self.answered {
            ops.push(Op::Retire {
                mailbox: self.c.mailbox.clone(),
                id: *envelope,
            });
            ops.push(Op::Delete {
                key: records::control_key(account, *envelope),
                expect: Expect::Any,
            });
        }
        for envelope in &self.stepped {
            if let Some((steps, item)) = self.items.beside(account, *envelope, self.now)
                && written.insert(item.id)
            {
                ops.extend(steps);
            }
        }
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
