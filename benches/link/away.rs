//! Half-open links, and daemons that slept.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::Figure;
use super::support::fault_proxy::FaultProxy;
use super::support::queue_db;
use super::support::sites::{DeviceSite, HubSite, Machine, http_client};

/// Time between two looks at a daemon.
const LOOK: Duration = Duration::from_millis(50);
const SLEEP: Duration = Duration::from_secs(60);
/// Links that are forgotten, and the time between one and the next: a heartbeat is 20 s.
const FORGOTTEN: u32 = 4;
const APART: Duration = Duration::from_secs(5);
/// Whatever takes longer ends the measurement.
const GIVE_UP: Duration = Duration::from_secs(120);

/// A daemon behind a proxy of its own.
struct Site {
    device: DeviceSite,
    proxy: FaultProxy,
    http: reqwest::Client,
}

impl Site {
    async fn start(hub: &mut HubSite, name: &str) -> Self {
        let proxy = FaultProxy::start(&hub.listen).await;
        let url = proxy.url();
        let mut device = DeviceSite::enrolled_by(Machine::new(), hub, &url, name).await;
        device.run().await;
        device.synced().await;
        Self {
            device,
            proxy,
            http: http_client(),
        }
    }

    async fn state(&self) -> String {
        let request = self.device.local(&self.http, Method::GET, "/status");
        let status: Value = request.send().await.unwrap().json().await.unwrap();
        status["link"]["state"].as_str().unwrap().to_owned()
    }

    async fn until(&self, want: impl Fn(&str, i64) -> bool) -> Duration {
        let begin = Instant::now();
        let db = self.device.queue_db();
        while !want(&self.state().await, queue_db::count(&db)) {
            assert!(begin.elapsed() < GIVE_UP, "it never came");
            sleep(LOOK).await;
        }
        begin.elapsed()
    }
}

pub(super) async fn measure() -> Vec<Figure> {
    let mut hub = HubSite::start().await;
    let mut open = Vec::new();
    for n in 0..FORGOTTEN {
        open.push(Site::start(&mut hub, &format!("half-open-{n}")).await);
    }
    let mut sleepers = Vec::new();
    for n in 0..4 {
        sleepers.push(Site::start(&mut hub, &format!("sleeper-{n}")).await);
    }

    let noticed = join_all(open.iter().zip(0..).map(async |(site, n)| {
        sleep(APART * n).await;
        site.proxy.forget();
        site.until(|state, _| state != "SYNCED").await
    }));
    let woke = async {
        for site in &sleepers {
            site.device.process().signal(Signal::STOP);
        }
        for (n, site) in sleepers.iter().enumerate() {
            if n % 2 == 0 {
                site.proxy.forget();
            }
            hub.message("while you slept", &site.device.name).await;
        }
        sleep(SLEEP).await;
        join_all(sleepers.iter().map(async |site| {
            site.device.process().signal(Signal::CONT);
            site.until(|state, mail| state == "SYNCED" && mail > 0)
                .await
        }))
        .await
    };
    let (noticed, woke) = tokio::join!(noticed, woke);
    let each = |times: &[Duration]| -> Vec<String> {
        times
            .iter()
            .map(|t| format!("{:.2}", t.as_secs_f64()))
            .collect()
    };
    println!(
        "half-open links noticed after, s: {}",
        each(&noticed).join(" ")
    );
    println!(
        "after {} s of SIGSTOP, SYNCED and drained after, s (every other one had been forgotten): {}",
        SLEEP.as_secs(),
        each(&woke).join(" ")
    );
    let worst = |times: &[Duration]| times.iter().max().unwrap().as_secs_f64();
    vec![
        Figure {
            what: "a half-open link is noticed, s",
            value: worst(&noticed),
            bar: 45.0,
        },
        Figure {
            what: "after a sleep of 60 s: SYNCED and drained, s",
            value: worst(&woke),
            bar: 5.0,
        },
    ]
}
