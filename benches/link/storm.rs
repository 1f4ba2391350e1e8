//! Two thousand devices whose hub goes away and comes back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use remote_collab::auth::{DeviceKey, Token, crypto};
use remote_collab::config::DaemonConfig;
use remote_collab::core::client::{
    ClientConfig, DialFailure, HelloSnapshot, Input, LinkClient, LinkState, Output,
};
use remote_collab::core::retry::Retry;
use remote_collab::daemon::clock::{self, Clock};
use remote_collab::daemon::dial::{Dialer, Event, Reader, Writer};
use remote_collab::daemon::retry_timer;
use remote_collab::daemon::way::Way;
use remote_collab::domain::InstanceId;
use remote_collab::hub::{self, AdminCall};
use remote_collab::wire::encode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Figure;
use super::plot;
use super::support::hub_bed::{self, Device};
use super::support::sites::{HubSite, Machine, http_client};

const DEVICES: usize = 2_000;
/// How long the hub stays away after SIGKILL.
const AWAY: Duration = Duration::from_secs(10);
/// The width of a bar, for seconds and for a minute.
const FINE: Duration = Duration::from_millis(250);
const COARSE: Duration = Duration::from_secs(1);
/// The bar of the distance from the policy; chance alone gives 0.03 in one of twenty runs with as many devices.
const FAR: f64 = 0.05;
const GIVE_UP: Duration = Duration::from_secs(180);

/// An attempt to connect.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Instant,
    /// The wait before it, and how long it was.
    waited: Option<(Retry, Duration)>,
}

#[derive(Debug, Default)]
struct Notes {
    attempts: Vec<Attempt>,
    synced: Vec<Instant>,
}

/// What all devices write into.
#[derive(Debug, Default)]
struct Notebook(Mutex<Notes>);

impl Notebook {
    fn with<T>(&self, f: impl FnOnce(&mut Notes) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A device without a queue: the machine, the dialer and the timer are the product's.
struct Simulated {
    machine: LinkClient,
    clock: Clock,
    dialer: Dialer,
    hub: String,
    device: Device,
    transport: Option<(Reader, Writer)>,
    retry: Option<(Instant, Retry, Duration)>,
    /// The wait that has just ended.
    waited: Option<(Retry, Duration)>,
    dialing: Option<BoxFuture<'static, Result<(Reader, Writer), DialFailure>>>,
    instance: InstanceId,
    notes: Arc<Notebook>,
}

impl Simulated {
    fn token(&self, offset_ms: i64) -> Token {
        let at = clock::wall().plus(offset_ms);
        Token::parse(&self.device.jwt_at(at)).unwrap()
    }

    async fn run(mut self, stop: CancellationToken) {
        let now = self.clock.now();
        self.machine.handle(Input::Connect, now);
        loop {
            while let Some(output) = self.machine.poll_output() {
                self.output(output).await;
            }
            let now = self.clock.now();
            let timeout = self
                .machine
                .poll_timeout()
                .map_or(GIVE_UP, |(at, _)| Duration::from_millis(at.since(now)));
            let retry = self.retry.map(|(at, ..)| at);
            let dialing = async {
                match &mut self.dialing {
                    Some(dialing) => dialing.await,
                    None => std::future::pending().await,
                }
            };
            let event = async {
                match &mut self.transport {
                    Some((reader, _)) => reader.next().await,
                    None => std::future::pending().await,
                }
            };
            let due = async {
                match retry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                () = stop.cancelled() => return,
                dialed = dialing => {
                    self.dialing = None;
                    match dialed {
                        Ok(transport) => {
                            self.transport = Some(transport);
                            Input::TransportUp
                        }
                        Err(failure) => Input::TransportFailed(failure),
                    }
                }
                event = event => match event {
                    Event::Text(text) => Input::Text(text),
                    Event::Heard => Input::Heard,
                    Event::Pong(number) => Input::Pong(number),
                    Event::Trouble(_) => continue,
                    Event::Closed { code, detail } => {
                        self.transport = None;
                        Input::TransportClosed { code, detail }
                    }
                },
                () = due => {
                    self.waited = self.retry.take().map(|(_, kind, long)| (kind, long));
                    Input::RetryDue
                }
                () = sleep(timeout) => {
                    self.machine.handle_timeout(self.clock.now());
                    continue;
                }
            };
            self.machine.handle(input, self.clock.now());
        }
    }

    async fn output(&mut self, output: Output) {
        let now = self.clock.now();
        match output {
            Output::Dial { hub_offset_ms } => {
                self.transport = None;
                let (dialer, token) = (self.dialer.clone(), self.token(hub_offset_ms));
                let hub = self.hub.parse().unwrap();
                self.dialing = Some(async move { dialer.dial(&hub, &token).await }.boxed());
                let waited = self.waited.take();
                let at = Instant::now();
                self.notes.with(|n| n.attempts.push(Attempt { at, waited }));
            }
            Output::SendHello => self.machine.hello(self.snapshot(), now),
            // A transport that fails says so when it is read.
            Output::Send(frame) => {
                if let Some((_, writer)) = &mut self.transport {
                    writer.text(encode(&frame)).await.ok();
                }
            }
            Output::Ping(number) => {
                if let Some((_, writer)) = &mut self.transport {
                    writer.ping(number).await.ok();
                }
            }
            Output::Close { .. } => {
                self.dialing = None;
                self.transport = None;
            }
            Output::LoadReports { .. } => self.machine.handle(Input::Reports(Vec::new()), now),
            Output::MintToken => {
                let token = self.token(0).expose().to_owned();
                self.machine.handle(Input::Token(token), now);
            }
            Output::ArmRetry(kind) => {
                let long = retry_timer::delay(kind);
                self.retry = Some((Instant::now() + long, kind, long));
            }
            Output::CancelRetry => self.retry = None,
            Output::State {
                state: LinkState::Synced,
                ..
            } => self.notes.with(|n| n.synced.push(Instant::now())),
            _ => {}
        }
    }

    fn snapshot(&self) -> HelloSnapshot {
        let instance = self.instance;
        HelloSnapshot {
            instance,
            take_over: false,
            last: None,
            outbox_instance: instance,
            next_n: 1,
            build: "bench".to_owned(),
            os: "linux".to_owned(),
            claude_version: None,
            capacity: 2,
            projects: Vec::new(),
            sessions: Vec::new(),
        }
    }
}

/// The wait as a part of what it may be, from 0 to 1, and the name of its class.
fn part(retry: Retry, long: Duration) -> (&'static str, f64) {
    let ms = long.as_secs_f64() * 1e3;
    match retry {
        Retry::Soon { within_ms } => ("soon", ms / within_ms as f64),
        Retry::Exponential {
            initial_ms,
            max_ms,
            step,
        } => {
            let bound = (initial_ms << step.min(20)).min(max_ms);
            ("exponential", ms / bound as f64)
        }
        Retry::Linear {
            unit_ms,
            max_ms,
            step,
        } => {
            let middle = (unit_ms * u64::from(step + 1)).min(max_ms) as f64;
            ("linear", (ms / middle - 0.8) / 0.4)
        }
        Retry::Named {
            after_ms,
            spread_ms,
        } => ("named", (ms - after_ms as f64) / spread_ms as f64),
    }
}

/// Waits until every device was SYNCED since `since`.
async fn all_synced(notes: &Notebook, since: Instant) -> Duration {
    loop {
        let back: Vec<Instant> =
            notes.with(|n| n.synced.iter().copied().filter(|t| *t >= since).collect());
        if back.len() >= DEVICES {
            return *back.iter().max().unwrap() - since;
        }
        assert!(
            since.elapsed() < GIVE_UP,
            "{} of {DEVICES} devices came back",
            back.len()
        );
        sleep(Duration::from_millis(20)).await;
    }
}

/// When the hub went away, when it listened again, and how long it took until all were back.
struct Lost {
    at: Instant,
    listening: Instant,
    back: Duration,
}

/// Shows the attempts since `since`; the largest distance of a class of waits from its policy.
fn show(notes: &Notebook, title: &str, file: &str, bar: Duration, lost: &Lost) -> f64 {
    let since = lost.at;
    let attempts: Vec<Attempt> = notes.with(|n| {
        n.attempts
            .iter()
            .copied()
            .filter(|a| a.at >= since)
            .collect()
    });
    let times: Vec<Duration> = attempts.iter().map(|a| a.at - since).collect();
    let bins = plot::bins(&times, bar);
    println!(
        "\n{title}: {} attempts, all SYNCED after {:.2} s",
        attempts.len(),
        lost.back.as_secs_f64()
    );
    plot::text(&bins, bar);
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    plot::svg(&picture, title, &bins, bar);
    let mut classes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (retry, long) in attempts.iter().filter_map(|a| a.waited) {
        let (class, part) = part(retry, long);
        classes.entry(class).or_default().push(part);
    }
    let mut worst: f64 = 0.0;
    for (class, parts) in classes {
        let count = parts.len();
        let far = plot::distance_from_uniform(parts);
        println!("{class}: {count} waits, {far:.3} from the policy");
        // Of a few waits the distance says nothing.
        if count >= DEVICES / 2 {
            worst = worst.max(far);
        }
    }
    let reached: Vec<Duration> = attempts
        .iter()
        .filter(|a| a.at >= lost.listening)
        .map(|a| a.at - lost.listening)
        .collect();
    let most = plot::bins(&reached, COARSE).into_iter().max().unwrap_or(0);
    println!("the hub, back, met at most {most} of {DEVICES} devices in one second");
    worst
}

/// Enrols every device at a hub in this process, over the folder of the machine's own.
async fn enrol(machine: &Machine) -> Vec<Device> {
    let hub = hub::start(hub_bed::config(&machine.data())).await.unwrap();
    let http = http_client();
    let mut devices = Vec::new();
    for n in 0..DEVICES {
        let call = AdminCall::CreateJoin {
            name: "join".to_owned(),
            account: hub_bed::account("default"),
        };
        let made = hub.admin(&call).await.unwrap();
        let key = DeviceKey::generate().unwrap();
        let body = json!({
            "public_key": key.public().to_string(), "name": format!("d{n}"), "os": "linux", "build": "bench",
        });
        let request = http.post(format!("{}/enroll", hub.url()));
        let request = request.bearer_auth(made["token"].as_str().unwrap());
        let v = hub_bed::read(request.json(&body)).await.ok(200);
        devices.push(Device {
            id: v["device_id"].as_str().unwrap().parse().unwrap(),
            key,
            hub_id: v["hub_id"].as_str().unwrap().to_owned(),
        });
    }
    hub.shutdown().await;
    devices
}

pub(super) async fn measure() -> Vec<Figure> {
    crypto::install();
    let machine = Machine::new();
    let enrolled = enrol(&machine).await;
    let mut hub = HubSite::start_on(machine).await;
    let notes = Arc::new(Notebook::default());
    let stop = CancellationToken::new();
    let dialer = Dialer::new(Way::new(&DaemonConfig::default()).unwrap());
    let mut devices = JoinSet::new();
    let begin = Instant::now();
    for (device, number) in enrolled.into_iter().zip(0..) {
        let simulated = Simulated {
            machine: LinkClient::new(ClientConfig::default()),
            clock: Clock::new(),
            dialer: dialer.clone(),
            hub: hub.url(),
            device,
            transport: None,
            retry: None,
            waited: None,
            dialing: None,
            instance: InstanceId::from_u128(number + 1),
            notes: Arc::clone(&notes),
        };
        devices.spawn(simulated.run(stop.clone()));
    }
    all_synced(&notes, begin).await;

    let planned = Instant::now();
    assert!(hub.terminate().await.success());
    hub.serve().await;
    let lost = Lost {
        at: planned,
        listening: Instant::now(),
        back: all_synced(&notes, planned).await,
    };
    let file = "link-planned-restart.svg";
    let restart = show(&notes, "planned restart", file, FINE, &lost);

    let killed = Instant::now();
    hub.kill().await;
    sleep(AWAY).await;
    hub.serve().await;
    let lost = Lost {
        at: killed,
        listening: Instant::now(),
        back: all_synced(&notes, killed).await,
    };
    let file = "link-killed-hub.svg";
    let title = "hub killed, away for 10 s";
    let kill = show(&notes, title, file, COARSE, &lost);

    stop.cancel();
    while devices.join_next().await.is_some() {}
    vec![
        Figure {
            what: "planned restart: distance of the waits from the policy",
            value: restart,
            bar: FAR,
        },
        Figure {
            what: "killed hub: distance of the waits from the policy",
            value: kill,
            bar: FAR,
        },
    ]
}
