//! One reader's stream: from its place in the log to the present, then as things happen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use uuid::Uuid;

use super::filter::{Filter, Head};
use crate::domain::{AccountId, EnvelopeId, InstanceId, Seq, WallMs};
use crate::hub::api::views::{MessageView, TaskView};
use crate::hub::clock::wall;
use crate::hub::records::{self, ItemKind, ItemRecord};
use crate::hub::state::Hub;
use crate::hub::store::{AnyStore, Log, LogId, Noted, Records, StoreError};
use crate::wire::event::{EndReason, Position, ResetReason, StreamNotice};

/// Events that may wait for one reader.
const QUEUE: usize = 64;
/// Events and bytes of one read of the log.
const PAGE: u32 = 200;
const PAGE_BYTES: u64 = 1 << 20;
/// Items that a reset shows at most, and records that are looked at for them.
const MAX_SNAPSHOTS: usize = 1_000;
const MAX_SCANNED: usize = 5_000;
/// Streams of one token, and of all.
const PER_TOKEN: usize = 16;
const IN_ALL: usize = 2_048;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// The place after it, if it changes the reader's.
    pub(crate) id: Option<Position>,
    /// `None` for a sign of life.
    pub(crate) body: Option<(String, Arc<str>)>,
}

impl Frame {
    fn notice(notice: &StreamNotice, id: Option<Position>) -> Self {
        Self {
            id,
            body: Some((notice.kind().to_owned(), records::text(notice).into())),
        }
    }
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With what happens from now on; a task's stream shows the task first.
    Now,
    /// With the oldest event that is kept.
    Oldest,
    /// After the last one that it has.
    After(Position),
}

/// What a reader watches.
#[derive(Debug, Clone)]
pub(crate) struct Watching {
    pub(crate) account: AccountId,
    pub(crate) filter: Filter,
    /// The stream of this one task, which ends with it.
    pub(crate) task: Option<EnvelopeId>,
    /// Whether the token may read tasks and messages.
    pub(crate) sees: (bool, bool),
    pub(crate) token: Uuid,
    pub(crate) token_until: WallMs,
}

/// The streams that are open.
#[derive(Debug, Default)]
pub(crate) struct Streams(Arc<Mutex<HashMap<Uuid, usize>>>);

/// A place among the open streams.
#[derive(Debug)]
pub(crate) struct Slot {
    open: Arc<Mutex<HashMap<Uuid, usize>>>,
    token: Uuid,
}

impl Streams {
    /// A place for one more stream of this token, unless there are too many.
    pub(crate) fn enter(&self, token: Uuid) -> Option<Slot> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_token = open.get(&token).copied().unwrap_or(0);
        if of_token >= PER_TOKEN || open.values().sum::<usize>() >= IN_ALL {
            return None;
        }
        open.insert(token, of_token + 1);
        Some(Slot {
            open: Arc::clone(&self.0),
            token,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = open.get_mut(&self.token) {
            *n -= 1;
            if *n == 0 {
                open.remove(&self.token);
            }
        }
    }
}

/// What the reader's side holds: the frames in order, and after them the one that says why they end.
#[derive(Debug)]
pub(crate) struct Reader {
    frames: mpsc::Receiver<Frame>,
    last: Arc<Mutex<Option<Frame>>>,
}

impl Reader {
    /// The next frame; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        match self.frames.recv().await {
            Some(frame) => Some(frame),
            None => self
                .last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        }
    }
}

/// Begins a stream; it runs until its end is told or its reader is gone.
pub(crate) fn open(hub: Arc<Hub>, slot: Slot, watching: Watching, begin: Begin) -> Reader {
    let (out, frames) = mpsc::channel(QUEUE);
    let last = Arc::new(Mutex::new(None));
    let reader = Reader {
        frames,
        last: Arc::clone(&last),
    };
    let tracker = hub.sockets.clone();
    tracker.spawn(async move {
        let log = LogId::of(&watching.account);
        // Watched before anything is read, so that nothing falls between.
        let live = hub.store.watch(&log);
        let mut stream = Stream {
            hub,
            watching,
            log,
            out,
            place: START,
            told: START,
            live,
            over: false,
        };
        let (hub, of) = (Arc::clone(&stream.hub), stream.watching.clone());
        let stop = tokio::select! {
            biased;
            reason = ended(&hub, &of) => Stop::End(reason),
            stop = stream.run(begin) => stop,
        };
        if let Stop::End(reason) = stop {
            let end = StreamNotice::End {
                reason,
                position: stream.told.to_string(),
            };
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Frame::notice(&end, None));
        }
        drop(slot);
    });
    reader
}

/// When the hub stops or the token no longer holds.
async fn ended(hub: &Hub, watching: &Watching) -> EndReason {
    let mut revocations = hub.directory.revocations();
    let life = u64::try_from(watching.token_until.0 - wall().0).unwrap_or(0);
    let until = Instant::now() + Duration::from_millis(life.min(1 << 40));
    loop {
        if hub.directory.is_revoked(&watching.token) {
            return EndReason::TokenRevoked;
        }
        tokio::select! {
            () = hub.draining.cancelled() => return EndReason::GoingAway,
            () = sleep_until(until) => return EndReason::TokenExpired,
            changed = revocations.changed() => {
                if changed.is_err() {
                    return EndReason::GoingAway;
                }
            }
        }
    }
}

/// Before the first event of a log that has none.
const START: Position = Position {
    epoch: InstanceId::from_u128(0),
    seq: Seq(0),
    at: WallMs(0),
};

/// Why a stream stops.
enum Stop {
    /// The reader is gone.
    Gone,
    End(EndReason),
}

impl From<StoreError> for Stop {
    fn from(e: StoreError) -> Self {
        tracing::warn!(error = %e, "an event stream ends because of the store");
        Self::End(EndReason::StoreUnavailable)
    }
}

struct Stream {
    hub: Arc<Hub>,
    watching: Watching,
    log: LogId,
    out: mpsc::Sender<Frame>,
    /// The last event that was looked at.
    place: Position,
    /// The place that the reader knows.
    told: Position,
    live: Receiver<Arc<Noted>>,
    /// Whether the task may be over.
    over: bool,
}

impl Stream {
    async fn run(&mut self, begin: Begin) -> Stop {
        match self.go(begin).await {
            Ok(never) => match never {},
            Err(stop) => stop,
        }
    }

    async fn go(&mut self, begin: Begin) -> Result<std::convert::Infallible, Stop> {
        let head = head(&self.hub.store, &self.log).await?;
        self.begin(begin, head).await?;
        let beat = self.hub.events.heartbeat;
        let mut beats = interval_at(Instant::now() + beat, beat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.catch_up().await?;
            let noted = tokio::select! {
                () = self.out.closed() => return Err(Stop::Gone),
                noted = self.live.recv() => noted,
                _ = beats.tick() => {
                    self.beat().await?;
                    continue;
                }
            };
            match noted {
                Ok(noted) => {
                    self.take(&noted).await?;
                    self.take_waiting().await?;
                }
                // The log holds what the ring has lost.
                Err(RecvError::Lagged(_)) => self.read_on().await?,
                Err(RecvError::Closed) => return Err(Stop::End(EndReason::GoingAway)),
            }
        }
    }

    async fn begin(&mut self, begin: Begin, head: Position) -> Result<(), Stop> {
        match begin {
            Begin::Now => {
                self.place = head;
                match self.watching.task {
                    Some(task) => self.show_task(task).await?,
                    None => self.open().await?,
                }
            }
            Begin::Oldest => {
                self.place = Position {
                    seq: Seq(0),
                    at: WallMs(0),
                    ..head
                };
                self.open().await?;
                self.read_on().await?;
            }
            Begin::After(asked) => match check(&self.hub.store, &self.log, asked, head).await? {
                Ok(place) => {
                    (self.place, self.told) = (place, place);
                    self.read_on().await?;
                    self.over = self.watching.task.is_some();
                }
                Err(reason) => {
                    self.place = head;
                    let reset = StreamNotice::Reset { reason };
                    self.send(Frame::notice(&reset, None)).await?;
                    match self.watching.task {
                        Some(task) => self.show_task(task).await?,
                        None => self.show_all().await?,
                    }
                }
            },
        }
        Ok(())
    }

    /// Ends the stream of a task that is over once everything was told.
    async fn catch_up(&mut self) -> Result<(), Stop> {
        let Some(task) = self.watching.task.filter(|_| self.over) else {
            return Ok(());
        };
        self.over = false;
        let found = self.task(task).await?;
        if found.is_none_or(|item| item.is_over()) {
            // What was written between the terminal status and this look at the record.
            self.read_on().await?;
            return Err(Stop::End(EndReason::Finished));
        }
        Ok(())
    }

    async fn task(&self, id: EnvelopeId) -> Result<Option<ItemRecord>, StoreError> {
        let key = ItemKind::Task.key(&self.watching.account, id);
        let stored = self.hub.store.get(key).await?;
        Ok(stored.as_ref().and_then(records::read))
    }

    async fn open(&mut self) -> Result<(), Stop> {
        let notice = StreamNotice::Open {
            position: self.place.to_string(),
        };
        self.told = self.place;
        self.send(Frame::notice(&notice, Some(self.place))).await
    }

    async fn show_task(&mut self, task: EnvelopeId) -> Result<(), Stop> {
        let found = self.task(task).await?;
        if let Some(item) = found {
            self.over = item.is_over();
            self.show(&item).await?;
        } else {
            self.over = true;
        }
        self.open().await
    }

    /// Shows what is not over, newest first.
    async fn show_all(&mut self) -> Result<(), Stop> {
        let (tasks, messages) = self.watching.sees;
        let kinds = [(ItemKind::Task, tasks), (ItemKind::Message, messages)];
        for (kind, _) in kinds.into_iter().filter(|(_, may)| *may) {
            let prefix = kind.prefix(&self.watching.account);
            let (mut from, mut scanned, mut shown) = (None, 0, 0);
            while scanned < MAX_SCANNED && shown < MAX_SNAPSHOTS {
                let page = self
                    .hub
                    .store
                    .list(&prefix, from.take(), PAGE, true)
                    .await?;
                scanned += page.len();
                let full = page.len() == PAGE as usize;
                from = page.last().map(|s| s.key.clone());
                for stored in &page {
                    if let Some(item) = records::read::<ItemRecord>(stored)
                        && !item.is_over()
                        && self.watching.filter.fits_item(&item)
                    {
                        self.show(&item).await?;
                        shown += 1;
                    }
                }
                if !full {
                    break;
                }
            }
        }
        self.open().await
    }

    async fn show(&self, item: &ItemRecord) -> Result<(), Stop> {
        let (mut task, mut message) = (None, None);
        match item.kind {
            ItemKind::Task => task = serde_json::to_value(TaskView::of(item)).ok(),
            ItemKind::Message => message = serde_json::to_value(MessageView::of(item)).ok(),
        }
        let snapshot = StreamNotice::Snapshot { task, message };
        self.send(Frame::notice(&snapshot, None)).await
    }

    /// Tells what the log holds after this place.
    async fn read_on(&mut self) -> Result<(), Stop> {
        loop {
            let about = self.watching.filter.about;
            let after = self.place.seq;
            let store = &self.hub.store;
            let page = store
                .events_after(&self.log, after, about, PAGE, PAGE_BYTES)
                .await?;
            if self.place.epoch == START.epoch {
                self.place.epoch = head(store, &self.log).await?.epoch;
            }
            for noted in &page.rows {
                self.take(noted).await?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Tells what already waits.
    async fn take_waiting(&mut self) -> Result<(), Stop> {
        loop {
            match self.live.try_recv() {
                Ok(noted) => self.take(&noted).await?,
                Err(TryRecvError::Lagged(_)) => self.read_on().await?,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(()),
            }
        }
    }

    /// Tells one event, if it is news and asked for.
    async fn take(&mut self, noted: &Noted) -> Result<(), Stop> {
        if noted.seq <= self.place.seq {
            return Ok(());
        }
        if self.place.epoch == START.epoch {
            self.place.epoch = head(&self.hub.store, &self.log).await?.epoch;
        }
        self.place.seq = noted.seq;
        self.place.at = noted.at;
        let Some(head) = Head::of(noted) else {
            return Ok(());
        };
        if !self.watching.filter.fits(noted, &head) {
            return Ok(());
        }
        self.over |= head.terminal && head.kind == "task.status";
        let frame = Frame {
            id: Some(self.place),
            body: Some((head.kind, Arc::clone(&noted.json))),
        };
        self.send(frame).await?;
        self.told = self.place;
        Ok(())
    }

    /// A sign of life, which also moves the reader's place past events that were not for it.
    async fn beat(&mut self) -> Result<(), Stop> {
        let id = (self.told != self.place).then_some(self.place);
        self.send(Frame { id, body: None }).await?;
        self.told = self.place;
        Ok(())
    }

    async fn send(&self, frame: Frame) -> Result<(), Stop> {
        match timeout(self.hub.events.patience, self.out.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Stop::Gone),
            Err(_) => Err(Stop::End(EndReason::SlowReader)),
        }
    }
}

async fn head(store: &AnyStore, log: &LogId) -> Result<Position, StoreError> {
    let at = store.log_position(log).await?;
    Ok(at.map_or(START, |at| Position {
        epoch: at.epoch,
        seq: at.head,
        at: at.at,
    }))
}

/// Whether something is to be told about this item after this place: an event, or that the place is gone.
pub(crate) async fn has_more(
    store: &AnyStore,
    account: &AccountId,
    place: Position,
    about: EnvelopeId,
) -> Result<bool, StoreError> {
    let log = LogId::of(account);
    let head = head(store, &log).await?;
    if check(store, &log, place, head).await?.is_err() {
        return Ok(true);
    }
    let next = store
        .events_after(&log, place.seq, Some(about), 1, 1)
        .await?;
    Ok(!next.rows.is_empty())
}

/// Whether a reader can go on from its place.
async fn check(
    store: &AnyStore,
    log: &LogId,
    asked: Position,
    head: Position,
) -> Result<Result<Position, ResetReason>, StoreError> {
    // A place of before the log's first event belongs to every log that has its first event still.
    let born = asked.seq == Seq(0) && asked.epoch == START.epoch;
    if (asked.epoch != head.epoch && !born) || asked.seq > head.seq {
        return Ok(Err(ResetReason::OtherEpoch));
    }
    let before = Seq(asked.seq.0.saturating_sub(1));
    let row = store.events_after(log, before, None, 1, 1).await?;
    let row = row.rows.first();
    Ok(match row {
        // Nothing was ever written.
        None if asked.seq == Seq(0) => Ok(head),
        Some(first) if asked.seq == Seq(0) && first.seq == Seq(1) => Ok(Position {
            epoch: head.epoch,
            ..asked
        }),
        Some(row) if row.seq == asked.seq && row.at == asked.at => Ok(asked),
        Some(row) if row.seq == asked.seq => Err(ResetReason::OtherEpoch),
        _ => Err(ResetReason::Gone),
    })
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
