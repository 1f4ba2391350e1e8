//! The loop itself: one wake-up, one input, then everything the machine wants.

use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::core::client::{Cause, DialFailure, Input, LinkClient, LinkState, Output};
use crate::core::fallback::{Fallback, FallbackConfig, Route};
use crate::daemon::clock::{self, Clock};
use crate::daemon::credentials::Credentials;
use crate::daemon::dial::Event;
use crate::daemon::retry_timer;
use crate::daemon::store::Incoming;
use crate::domain::Ts;
use crate::wire::CloseCode;

use super::lane::{Done, Lane, Work};
use super::transport::Transport;
use super::{Command, LinkParts, LinkStatus};

mod dialing;

use dialing::{Dialing, Opened, ready};

/// How often the clocks are looked at for a sleep of the machine.
const TICK: Duration = Duration::from_secs(1);
/// Time after a wake within which the runtime has looked at its sockets, ms.
const LOOKED_MS: u64 = 500;
/// How long a stop may take: the last frames, the close, the commits under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) struct Shell {
    parts: LinkParts,
    machine: LinkClient,
    clock: Clock,
    /// When a sleep was noticed last.
    woke_at: Ts,
    transport: Option<Transport>,
    dialing: Option<Dialing>,
    retry: Option<Instant>,
    fallback: Fallback,
    /// What was dialled last, and whether `welcome` came over it.
    route: Route,
    welcomed: bool,
    /// The WebSocket dialled beside the polls, and when that is due.
    probing: Option<Dialing>,
    probe_at: Option<Instant>,
    /// What is wrong with the transport although it is up.
    trouble: Option<String>,
    queue: Lane,
    outbox: Lane,
    tasks: JoinSet<()>,
    /// Whether a person moved the device here and the hub has not heard of it.
    taking_over: bool,
    /// When the credentials of the last dial were written.
    enrolled_at: Option<SystemTime>,
    shown: LinkStatus,
    publish: watch::Sender<LinkStatus>,
}

/// What the loop woke up for.
enum Wake {
    Command(Option<Command>),
    Dialed(Result<Opened, DialFailure>),
    Probed(Result<Opened, DialFailure>),
    ProbeDue,
    Queue(Done),
    Outbox(Done),
    Event(Event),
    OutboxGrew,
    Capacity,
    RetryDue,
    Timeout,
    Tick,
}

impl Shell {
    pub(super) fn new(parts: LinkParts, publish: watch::Sender<LinkStatus>) -> Self {
        Self {
            machine: LinkClient::new(parts.config.clone()),
            fallback: Fallback::new(FallbackConfig {
                again_ms: u64::try_from(parts.poll_interval.as_millis()).unwrap_or(u64::MAX),
                ..FallbackConfig::default()
            }),
            route: Route::WebSocket,
            welcomed: false,
            probing: None,
            probe_at: None,
            trouble: None,
            parts,
            clock: Clock::new(),
            woke_at: Ts::default(),
            transport: None,
            dialing: None,
            retry: None,
            queue: Lane::default(),
            outbox: Lane::default(),
            tasks: JoinSet::new(),
            taking_over: false,
            enrolled_at: None,
            shown: LinkStatus::idle(clock::wall()),
            publish,
        }
    }

    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        stop: CancellationToken,
    ) {
        let mut outbox = self.parts.store.outbox();
        let mut capacity = self.parts.capacity.clone();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while let Some(wake) = stop
            .run_until_cancelled(self.wake(&mut commands, &mut outbox, &mut capacity, &mut tick))
            .await
        {
            self.parts.beat.beat();
            let now = self.clock.now();
            // Before anything else is made of the time that passed.
            if self.clock.slept() {
                tracing::info!("the machine slept; looking whether the hub is still there");
                self.woke_at = now;
                self.machine.handle(Input::Woke, now);
                self.fallback.woke();
                // On polls, in reach of a probe that was put off by another network.
                self.probe_at = self.probe_at.map(|at| at.min(Instant::now() + TICK));
            }
            let mut begun = None;
            match wake {
                Wake::Command(Some(Command::Connect { take_over, done })) => {
                    self.begin_anew();
                    // Whoever is in sync holds the device already.
                    self.taking_over |= take_over && self.machine.state() != LinkState::Synced;
                    self.machine.handle(Input::Connect, now);
                    begun = done;
                }
                Wake::Command(Some(Command::Disconnect)) => {
                    self.machine.handle(Input::Disconnect, now);
                }
                // Every handle is gone: nobody can ask for anything, the link runs on.
                Wake::Command(None) => {}
                Wake::Dialed(dialed) => self.dialed(dialed),
                Wake::Probed(probed) => self.probed(probed),
                Wake::ProbeDue => self.probe(),
                Wake::Queue(done) | Wake::Outbox(done) => self.worked(done),
                Wake::Event(event) => self.event(event),
                Wake::OutboxGrew => {
                    let next_n = *outbox.borrow_and_update();
                    self.machine.handle(Input::OutboxGrew { next_n }, now);
                }
                Wake::Capacity => {
                    let free = *capacity.borrow_and_update();
                    self.machine.handle(Input::Capacity(free), now);
                }
                Wake::RetryDue => {
                    self.retry = None;
                    self.machine.handle(Input::RetryDue, now);
                }
                Wake::Timeout => self.machine.handle_timeout(now),
                Wake::Tick => {
                    // The tick is looked at last, so whatever had come was read before; but right after a sleep timers
                    // fire before the runtime has looked at the sockets.
                    if now.since(self.woke_at) >= LOOKED_MS {
                        self.machine.handle(Input::Drained, now);
                    }
                    if self.has_new_credentials() {
                        tracing::info!("new credentials were found");
                        self.begin_anew();
                        self.machine.handle(Input::Connect, now);
                    }
                }
            }
            self.perform();
            if let Some(begun) = begun {
                // Whoever asked may be gone.
                begun.send(()).ok();
            }
        }
        self.stop().await;
    }

    /// Waits for whatever is next; may be cancelled.
    async fn wake(
        &mut self,
        commands: &mut mpsc::Receiver<Command>,
        outbox: &mut watch::Receiver<u64>,
        capacity: &mut watch::Receiver<u32>,
        tick: &mut Interval,
    ) -> Wake {
        let now = self.clock.now();
        let timeout = self.machine.poll_timeout();
        let timeout = timeout.map(|(at, _)| Instant::now() + Duration::from_millis(at.since(now)));
        let (store, source) = (&self.parts.store, self.parts.source.as_ref());
        let polls = self.route == Route::LongPoll && self.welcomed && self.transport.is_some();
        let probe_at = self.probe_at.filter(|_| polls && self.probing.is_none());
        tokio::select! {
            biased;
            command = commands.recv(), if !commands.is_closed() || !commands.is_empty() => Wake::Command(command),
            dialed = ready(&mut self.dialing) => Wake::Dialed(dialed),
            probed = ready(&mut self.probing) => Wake::Probed(probed),
            () = at(probe_at) => Wake::ProbeDue,
            done = self.queue.done_or_again(store, source) => Wake::Queue(done),
            done = self.outbox.done_or_again(store, source) => Wake::Outbox(done),
            () = at(timeout) => Wake::Timeout,
            () = at(self.retry) => Wake::RetryDue,
            event = next(&mut self.transport) => Wake::Event(event),
            Ok(()) = outbox.changed() => Wake::OutboxGrew,
            Ok(()) = capacity.changed() => Wake::Capacity,
            _ = tick.tick() => Wake::Tick,
        }
    }

    fn dialed(&mut self, dialed: Result<Opened, DialFailure>) {
        self.dialing = None;
        let input = match dialed {
            Ok(opened) => {
                self.install(opened);
                Input::TransportUp
            }
            Err(failure) => {
                if self.route == Route::WebSocket {
                    self.fallback.upgrade_failed(&failure);
                }
                Input::TransportFailed(failure)
            }
        };
        self.machine.handle(input, self.clock.now());
    }

    fn install(&mut self, opened: Opened) {
        // Writers of older transports have ended or end by their own deadlines.
        while self.tasks.try_join_next().is_some() {}
        self.trouble = None;
        self.transport = Some(match opened {
            Opened::Socket(reader, writer) => Transport::new(reader, writer, &mut self.tasks),
            Opened::Poll(poll) => Transport::polling(*poll, &mut self.tasks),
        });
    }

    /// The user spoke: what was learnt about the transports is forgotten, unless one of them is in use.
    fn begin_anew(&mut self) {
        if self.transport.is_none() {
            self.fallback.forget();
        }
    }

    /// Notes the `welcome` of this transport.
    fn note_welcome(&mut self) {
        if !self.welcomed && self.machine.status().generation.is_some() {
            self.welcomed = true;
            self.fallback.welcomed(self.route);
            match self.route {
                Route::WebSocket => self.probe_at = None,
                Route::LongPoll if self.probe_at.is_none() => self.arm_probe(),
                Route::LongPoll => {}
            }
        }
    }

    fn event(&mut self, event: Event) {
        if let Event::Closed { code: None, .. } = &event
            && !self.welcomed
        {
            self.led_nowhere();
        }
        let input = match event {
            Event::Text(text) => Input::Text(text),
            Event::Heard => Input::Heard,
            Event::Pong(number) => Input::Pong(number),
            Event::Trouble(what) => {
                self.trouble = what;
                return;
            }
            Event::Closed { code, detail } => {
                self.transport = None;
                Input::TransportClosed { code, detail }
            }
        };
        self.machine.handle(input, self.clock.now());
        self.note_welcome();
    }

    fn worked(&mut self, done: Done) {
        let now = self.clock.now();
        match &done {
            Done::Failed(error) => self.store_failed(Some(error.to_string())),
            Done::Stored { .. } | Done::Renumbered { .. } | Done::Nothing => {
                self.store_failed(None);
            }
            Done::Hello(_) | Done::Loaded(_) => {}
        }
        match done {
            Done::Stored { last, count, fresh } => {
                tracing::debug!(seq = last.seq.0, count, fresh, "envelopes are durable");
                let (epoch, seq) = (last.epoch, last.seq);
                self.machine.handle(Input::Stored { epoch, seq }, now);
            }
            Done::Hello(mut snapshot) => {
                snapshot.take_over = self.taking_over;
                self.machine.hello(*snapshot, now);
            }
            Done::Loaded(rows) => self.machine.handle(Input::Reports(rows), now),
            Done::Renumbered { next_n } => self.machine.handle(Input::OutboxGrew { next_n }, now),
            Done::Nothing | Done::Failed(_) => {}
        }
    }

    fn store_failed(&mut self, failed: Option<String>) {
        if failed != self.shown.store_error {
            match &failed {
                Some(error) => {
                    tracing::error!(%error, "nothing is acked until the queue can be written");
                }
                None => tracing::info!("the queue can be written again"),
            }
            self.shown.store_error = failed;
        }
    }

    /// Carries out what the machine wants, in order, then starts the lanes and publishes.
    fn perform(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            self.output(output);
        }
        let source = self.parts.source.as_ref();
        self.queue.start(&self.parts.store, source);
        self.outbox.start(&self.parts.store, source);
        self.show();
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Dial { hub_offset_ms } => self.dial(hub_offset_ms),
            Output::SendHello => self.outbox.push(Work::Hello),
            Output::Send(frame) => {
                self.written(|t| t.send(frame));
            }
            Output::Ping(number) => self.written(|t| t.ping(number)),
            Output::Close { code, reason } => {
                // Time-outs of the machine: whatever was under way led nowhere.
                if code == CloseCode::Heartbeat && !self.welcomed {
                    self.led_nowhere();
                } else if self.dialing.is_some()
                    && self.route == Route::WebSocket
                    && code != CloseCode::Normal
                {
                    let detail = reason.clone();
                    self.fallback
                        .upgrade_failed(&DialFailure::Network { detail });
                }
                self.dialing = None;
                self.probing = None;
                if let Some(transport) = self.transport.take() {
                    transport.close(code, reason);
                }
            }
            Output::Store { cursor, envelope } => {
                let envelope = *envelope;
                self.queue
                    .push(Work::Store(vec![Incoming { cursor, envelope }]));
            }
            Output::Refuse { cursor, id, reason } => {
                match id {
                    Some(id) => {
                        tracing::warn!(seq = cursor.seq.0, %id, %reason, "an envelope cannot be read; it is reported undeliverable")
                    }
                    None => {
                        tracing::error!(seq = cursor.seq.0, %reason, "an envelope without a readable id is passed over")
                    }
                }
                self.queue.push(Work::Refuse(cursor, id, reason));
            }
            Output::ResetCursor { epoch } => self.queue.push(Work::Reset(epoch)),
            Output::LoadReports { after_n, limit } => {
                self.outbox.push(Work::Load { after_n, limit });
            }
            Output::PruneReports {
                through_n,
                rejected,
            } => {
                for report in &rejected {
                    tracing::warn!(n = report.n, code = %report.code, "the hub refused a report");
                }
                self.outbox.push(Work::Prune(through_n, rejected));
            }
            Output::RenumberOutbox { after_n } => self.outbox.push(Work::Renumber(after_n)),
            Output::MintToken => self.renew(),
            Output::ArmRetry(retry) => {
                let delay = retry_timer::delay(self.fallback.wait(self.route, retry));
                self.retry = Some(Instant::now() + delay);
                let ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
                self.shown.retry_at = Some(clock::wall().plus(ms));
            }
            Output::CancelRetry => {
                self.retry = None;
                self.shown.retry_at = None;
            }
            Output::State { state, cause } => self.state(state, cause.as_ref()),
            Output::HubClock { hub_now } => {
                self.parts.store.hub_clock(hub_now);
                // Part of `welcome`: the hub has taken the hello.
                if std::mem::take(&mut self.taking_over) {
                    Credentials::forget_take_over(&self.parts.credentials);
                }
                self.shown.hub_offset_ms = hub_now.0.saturating_sub(clock::wall().0);
            }
        }
    }

    fn written(&mut self, write: impl FnOnce(&Transport) -> bool) {
        if let Some(transport) = &self.transport
            && !write(transport)
        {
            self.transport = None;
            let detail = "the hub does not read any more".to_owned();
            let closed = Input::TransportClosed { code: None, detail };
            self.machine.handle(closed, self.clock.now());
        }
    }

    fn state(&mut self, state: LinkState, cause: Option<&Cause>) {
        let name = state.as_str();
        match cause {
            Some(Cause::Fatal { code, message }) => {
                tracing::error!(state = name, %code, %message, "the link is down until somebody acts");
            }
            Some(Cause::Lost { detail }) => tracing::warn!(state = name, %detail, "the link"),
            Some(cause) => tracing::info!(state = name, ?cause, "the link"),
            None => tracing::info!(state = name, "the link"),
        }
    }

    fn show(&mut self) {
        let machine = self.machine.status();
        let ago = self.clock.now().since(machine.since);
        let since = clock::wall().plus(-i64::try_from(ago).unwrap_or(0));
        // The wall clock moves against the other one; the moment itself does not.
        let same = self.shown.state == machine.state.as_str();
        let since = if same { self.shown.since } else { since };
        self.shown.take(&machine, since);
        if self.transport.is_some() && self.shown.cause.is_none() {
            self.shown.cause.clone_from(&self.trouble);
        }
        let up = self.transport.is_some() || self.dialing.is_some();
        self.shown.transport = up.then(|| self.route.as_str());
        self.shown.fallback_cause = self.fallback.cause().map(str::to_owned);
        self.publish.send_if_modified(|told| {
            let changed = *told != self.shown;
            if changed {
                told.clone_from(&self.shown);
            }
            changed
        });
    }

    /// Says `bye`, lets commits under way end, and leaves; bounded.
    async fn stop(mut self) {
        let end = async {
            while !self.queue.is_empty() {
                let done = self.queue.done().await;
                self.worked(done);
                self.perform();
            }
            self.machine.handle(Input::Shutdown, self.clock.now());
            self.perform();
            // What the hub has confirmed is not sent again by the next daemon.
            while !self.outbox.is_empty() {
                let done = self.outbox.done().await;
                self.worked(done);
                self.perform();
            }
            while self.tasks.join_next().await.is_some() {}
        };
        if timeout(STOP_TIMEOUT, end).await.is_err() {
            tracing::warn!("the link was cut: the hub did not close in time");
        }
    }
}

async fn next(transport: &mut Option<Transport>) -> Event {
    match transport {
        Some(transport) => transport.next().await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
