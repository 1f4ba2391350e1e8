//! The actor's state, its loop, and what becomes of each envelope that waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::mail::Mail;
use super::registry::{Changed, Registry, Session};
use super::runs::Runs;
use super::{Msg, Parts, View, follow, followed, recover};
use crate::config;
use crate::daemon::clock;
use crate::daemon::projects::Project;
use crate::daemon::store::{Change, StoreError};
use crate::domain::{ClaimId, EnvelopeId, ProjectName, SessionId};
use crate::local::write_private;

mod keep;

/// The file in the daemon's folder that says that everything is held.
const PAUSED: &str = "paused";
/// Rows that are read from the queue at a time.
const BATCH: u32 = 200;
/// Sessions that are read at the start.
const SESSIONS: u32 = 5_000;
/// How long changes of sessions are gathered before they are stored and reported.
const FLUSH: Duration = Duration::from_millis(200);
/// Between looks at transcripts while a claim is open.
const FOLLOW: Duration = Duration::from_millis(400);
/// Between looks at the CLI's own registry.
const SIGHT: Duration = Duration::from_secs(5);
/// After the store failed, the next try.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two readings of the whole queue, should changes be refused one after the other.
const RESYNC_GAP: Duration = Duration::from_millis(200);
/// A plan of everything takes at most one part in this many of the actor's time, so that hooks find it free.
const PLAN_SHARE: u32 = 5;
/// A change of the clocks against each other from which on expiries are told anew, ms.
const CLOCKS_DIFFER_MS: u64 = 500;
/// Closed sessions that are remembered.
const CLOSED_KEPT: usize = 500;
/// How long a closed session is remembered, ms: longer than any message lives.
const CLOSED_KEPT_MS: i64 = 30 * 24 * 3600 * 1000;

/// Where the rest of the daemon sees what is known.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) view: watch::Sender<View>,
    pub(super) capacity: watch::Sender<u32>,
}

/// The dispatcher's state.
#[derive(Debug)]
pub(crate) struct Brain {
    pub(super) parts: Parts,
    pub(super) tx: mpsc::Sender<Msg>,
    pub(super) tracker: TaskTracker,
    publisher: Publisher,
    pub(super) registry: Registry,
    pub(super) mail: BTreeMap<EnvelopeId, Mail>,
    /// Claims that are not final.
    pub(super) claims: BTreeMap<ClaimId, followed::Followed>,
    pub(super) runs: Runs,
    pub(super) paused: bool,
    /// The enabled projects, as last read.
    pub(super) projects: Vec<Project>,
    /// The user's policy for each, narrowed by the project's own file.
    pub(super) policies: BTreeMap<ProjectName, config::Policy>,
    /// The hub's time minus this device's, as the mail's expiry was told last, ms.
    hub_offset_ms: i64,
    last_ord: i64,
    /// Claims of programs, which the local API follows.
    pub(super) foreign: BTreeSet<ClaimId>,
    /// Sessions whose rows are to be stored.
    dirty: BTreeSet<SessionId>,
    /// Sessions as last reported.
    reported: BTreeMap<SessionId, crate::domain::SessionInfo>,
    forgotten: Vec<SessionId>,
    flush_at: Option<Instant>,
    follow_at: Instant,
    sight_at: Instant,
    /// Everything that waits is to be planned anew at this time.
    replan_at: Option<Instant>,
    /// Not before this time, because the last plan of everything was long.
    plan_after: Instant,
    /// The queue is to be read anew at this time: a change was refused.
    resync_at: Option<Instant>,
    resynced: Option<Instant>,
    /// Ends of runs that the store could not take: they have happened and must not be lost.
    unsaved: Vec<Vec<Change>>,
    /// Whether sessions changed since they were shown.
    unshown: bool,
}

impl Brain {
    /// The state as the store knows it, after runs of an earlier daemon were ended.
    pub(super) async fn load(
        parts: Parts,
        tx: mpsc::Sender<Msg>,
        publisher: Publisher,
        tracker: TaskTracker,
    ) -> Result<Self, StoreError> {
        let registry = Registry::load(parts.store.sessions(None, SESSIONS).await?);
        let claims = parts.store.open_claims().await?;
        let now = Instant::now();
        let paused = parts.places.daemon().join(PAUSED).exists();
        let mut brain = Self {
            runs: Runs::new(parts.config.policy.runs.concurrent),
            parts,
            tx,
            tracker,
            publisher,
            registry,
            mail: BTreeMap::new(),
            claims: claims
                .into_iter()
                .filter_map(followed::Followed::load)
                .collect(),
            paused,
            projects: Vec::new(),
            policies: BTreeMap::new(),
            hub_offset_ms: 0,
            last_ord: i64::MIN,
            foreign: BTreeSet::new(),
            dirty: BTreeSet::new(),
            reported: BTreeMap::new(),
            forgotten: Vec::new(),
            flush_at: None,
            follow_at: now,
            sight_at: now,
            replan_at: Some(now),
            plan_after: now,
            resync_at: None,
            resynced: None,
            unsaved: Vec::new(),
            unshown: true,
        };
        brain.read_projects();
        recover::runs(&mut brain).await?;
        recover::spool(&mut brain).await;
        brain.sight().await;
        brain.refresh().await?;
        // The first `hello` tells what is there, not what a new view begins with.
        brain.publish();
        Ok(brain)
    }

    /// The actor's loop, until `cancel`.
    pub(super) async fn run(mut self, mut rx: mpsc::Receiver<Msg>, cancel: CancellationToken) {
        let mut version = self.parts.store.version();
        version.mark_changed();
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                Some(msg) = rx.recv() => self.take(msg).await,
                Ok(()) = version.changed() => self.grown().await,
                () = tokio::time::sleep_until(due) => self.moment().await,
            }
            self.settle().await;
            self.publish();
        }
        self.stop_runs(&mut rx).await;
        self.save_again().await;
        self.flush().await;
    }

    /// What the event asked for: the queue read anew, everything planned anew, each not too often.
    pub(super) async fn settle(&mut self) {
        let now = Instant::now();
        if self.resync_at.is_some_and(|t| t <= now) {
            self.save_again().await;
            self.resync().await;
        }
        if self.replan_at.is_some_and(|t| t <= now) {
            self.replan_at = None;
            self.plan_all().await;
            self.plan_after = Instant::now() + now.elapsed() * (PLAN_SHARE - 1);
        }
    }

    pub(super) fn due(&self) -> Instant {
        let follow = (!self.claims.is_empty()).then_some(self.follow_at);
        let hold = self
            .mail
            .values()
            .filter(|m| !m.taken)
            .filter_map(|m| m.until)
            .min();
        let now = clock::wall();
        let hold = hold.map(|t| {
            let ms = u64::try_from(t.0.saturating_sub(now.0)).unwrap_or(0);
            Instant::now() + Duration::from_millis(ms.clamp(20, 3_600_000))
        });
        let again = [self.flush_at, self.replan_at, self.resync_at];
        [Some(self.sight_at), follow, hold]
            .into_iter()
            .chain(again)
            .flatten()
            .min()
            .unwrap_or(self.sight_at)
    }

    async fn take(&mut self, msg: Msg) {
        match msg {
            Msg::Hook {
                call,
                peer_pid,
                reply,
            } => self.hook(*call, peer_pid, reply).await,
            Msg::Told { session, told } => {
                if let Some(s) = self.registry.get_mut(session) {
                    s.told = told;
                    self.touch(session);
                }
            }
            Msg::Run(msg) => self.run_msg(msg).await,
            Msg::Pause { paused, done } => {
                // Whoever asked may be gone; the pause holds all the same.
                drop(done.send(self.pause(paused)));
            }
            Msg::ProjectsChanged => self.read_projects(),
            // The watchdog may have stopped listening.
            Msg::Ask(done) => {
                done.send(()).ok();
            }
        }
    }

    /// Keeps a pause as a file, so that it outlives a restart.
    fn pause(&mut self, paused: bool) -> std::io::Result<()> {
        let file = self.parts.places.daemon().join(PAUSED);
        if paused {
            write_private(&file, b"")?;
        } else if let Err(e) = std::fs::remove_file(&file)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(e);
        }
        self.paused = paused;
        self.replan();
        Ok(())
    }

    async fn grown(&mut self) {
        if let Err(error) = self.refresh().await {
            tracing::error!(%error, "the queue cannot be read");
        }
    }

    pub(super) async fn moment(&mut self) {
        let now = Instant::now();
        if self.flush_at.is_some_and(|t| t <= now) {
            self.flush().await;
        }
        if !self.claims.is_empty() && self.follow_at <= now {
            self.follow_at = now + FOLLOW;
            self.follow().await;
        }
        if self.sight_at <= now {
            self.sight_at = now + SIGHT;
            self.sight().await;
            self.look_at_foreign().await;
        }
        let wall = clock::wall();
        if self
            .mail
            .values()
            .any(|m| !m.taken && m.until.is_some_and(|t| t <= wall))
        {
            self.replan();
        }
    }

    /// Looks at the CLI's own registry of live sessions.
    pub(super) async fn sight(&mut self) {
        let dir = self.parts.claude_dir.clone();
        self.read_projects();
        let projects = self.projects.clone();
        let seen = tokio::task::spawn_blocking(move || follow::sightings(&dir, &projects)).await;
        // A list that cannot be read says nothing, least of all that a session is over.
        let Ok(Some(seen)) = seen else { return };
        let now = clock::wall();
        let changed = self.registry.sight(&seen, follow::is_alive, now);
        self.changed(changed);
        let old = self.registry.sweep(now.plus(-CLOSED_KEPT_MS), CLOSED_KEPT);
        self.changed(old);
    }

    /// Takes in what the store has that is not here yet.
    pub(super) async fn refresh(&mut self) -> Result<(), StoreError> {
        loop {
            let offset = self.tell_time();
            let rows = self.parts.store.arrived(self.last_ord, BATCH).await?;
            let full = rows.len() >= BATCH as usize;
            let mut new = Vec::new();
            for row in rows {
                self.last_ord = self.last_ord.max(row.ord);
                new.push(row.envelope.id);
                self.mail
                    .entry(row.envelope.id)
                    .or_insert_with(|| Mail::of(row, offset));
            }
            self.supersede(&new).await;
            self.plan_each(new).await;
            if !full {
                return Ok(());
            }
        }
    }

    /// The hub's mail expires by the hub's clock: its times are told anew when one of the clocks was set.
    pub(super) fn tell_time(&mut self) -> i64 {
        let offset = self.parts.store.hub_offset_ms();
        if offset.abs_diff(self.hub_offset_ms) >= CLOCKS_DIFFER_MS {
            self.hub_offset_ms = offset;
            for mail in self.mail.values_mut() {
                mail.tell_time(offset);
            }
        }
        self.hub_offset_ms
    }

    /// Reads everything anew: the store refused a change because somebody else made one first.
    pub(super) async fn resync(&mut self) {
        self.resync_at = (!self.unsaved.is_empty()).then(|| Instant::now() + AGAIN);
        self.resynced = Some(Instant::now());
        self.mail.clear();
        self.last_ord = i64::MIN;
        self.grown().await;
    }

    /// Reads the list of enabled projects, and what each of them narrows.
    pub(super) fn read_projects(&mut self) {
        match self.parts.projects.list() {
            Ok(list) => {
                let config = &self.parts.config;
                let narrowed = |p: &Project| {
                    let file = config::read_project(&p.path, config.policy_of(p.name.as_str()));
                    (p.name.clone(), file.policy)
                };
                let policies = list.iter().map(narrowed).collect();
                if list != self.projects || policies != self.policies {
                    (self.projects, self.policies) = (list, policies);
                    self.replan();
                }
            }
            Err(error) => tracing::error!(%error, "the enabled projects cannot be read"),
        }
    }

    /// Notes what changed in the registry.
    pub(super) fn changed(&mut self, changed: Changed) {
        if changed == Changed::default() {
            return;
        }
        self.unshown = true;
        self.replan();
        self.forgotten.extend(changed.forgotten);
        for id in changed.sessions {
            self.touch(id);
        }
        self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
    }

    pub(super) fn touch(&mut self, id: SessionId) {
        self.unshown = true;
        self.dirty.insert(id);
        self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
    }

    /// Asks for a new plan of everything that waits.
    pub(super) fn replan(&mut self) {
        let at = Instant::now().max(self.plan_after);
        self.replan_at.get_or_insert(at);
    }

    /// Looks at transcripts soon.
    pub(super) fn follow_soon(&mut self, within: Duration) {
        self.follow_at = self.follow_at.min(Instant::now() + within);
    }

    fn publish(&mut self) {
        let (running, free) = (self.runs.running(), self.runs.free());
        self.publisher.capacity.send_if_modified(|old| {
            let new = *old != free;
            *old = free;
            new
        });
        let sessions = std::mem::take(&mut self.unshown).then(|| {
            let mut sessions: Vec<_> = self.registry.iter().map(Session::info).collect();
            sessions.sort_by_key(|s| std::cmp::Reverse(s.active_at));
            sessions
        });
        let paused = self.paused;
        self.publisher.view.send_if_modified(|old| {
            let before = (old.running, old.free, old.paused);
            (old.running, old.free, old.paused) = (running, free, paused);
            let mut new = before != (running, free, paused);
            if let Some(sessions) = sessions.filter(|s| *s != old.sessions) {
                old.sessions = sessions;
                new = true;
            }
            new
        });
    }
}
