//! Three thousand messages from producers that retry, through a hub and a daemon that are killed again and again.
//!
//! The kills come at counts of accepted messages, drawn from a seed (`REMOTE_COLLAB_SEED` repeats a run), so that the
//! test has an end. Between two kills the producers get leave for a bounded number of posts: a kill meets requests
//! under way, and often a daemon that still replays what it missed.
#![allow(clippy::print_stderr, reason = "the seed and the figures of a run")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::queue_db;
use crate::support::sites::{
    DeviceSite, HubSite, PATIENCE, assert_no_secrets, http_client, stages,
};

const MESSAGES: usize = 3_000;
const LANES: usize = 8;
/// Kills of each, hub and daemon.
const KILLS: usize = 5;
/// A producer's wait before it tries again.
const AGAIN: Duration = Duration::from_millis(25);

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

fn seed() -> u64 {
    match std::env::var("REMOTE_COLLAB_SEED") {
        Ok(text) => text.parse().expect("REMOTE_COLLAB_SEED is a number"),
        Err(_) => u64::from(uuid::Uuid::new_v4().as_fields().0),
    }
}

/// What the producers share.
struct Producers {
    url: String,
    token: String,
    device: String,
    leave: Semaphore,
    accepted: watch::Sender<usize>,
    repeated: AtomicUsize,
}

impl Producers {
    /// One producer with a connection of its own: posts its messages one after the other, each until it is accepted.
    async fn lane(self: Arc<Self>, lane: usize) -> BTreeMap<String, String> {
        let http = http_client();
        let mut ids = BTreeMap::new();
        for n in (lane..MESSAGES).step_by(LANES) {
            self.leave.acquire().await.unwrap().forget();
            let content = format!("{lane}/{n:04}");
            let id = self.post(&http, &content).await;
            self.accepted.send_modify(|n| *n += 1);
            assert_eq!(ids.insert(id, content), None, "one id for two messages");
        }
        ids
    }

    async fn post(&self, http: &reqwest::Client, content: &str) -> String {
        let body = json!({ "content": content, "device": self.device });
        let until = Instant::now() + PATIENCE;
        loop {
            let request = http
                .post(format!("{}/messages", self.url))
                .bearer_auth(&self.token)
                .header("idempotency-key", format!("soak-{content}"))
                .json(&body);
            let answer = match request.send().await {
                Ok(response) => (response.status().as_u16(), response.json::<Value>().await),
                // The hub is away, or went away before it answered.
                Err(_) => (0, Ok(Value::Null)),
            };
            match answer {
                (202, Ok(v)) => return v["id"].as_str().unwrap().to_owned(),
                (202 | 0 | 429 | 500.., _) => {}
                (status, body) => panic!("{content}: {status} {body:?}"),
            }
            self.repeated.fetch_add(1, Ordering::Relaxed);
            assert!(Instant::now() < until, "{content} was never accepted");
            sleep(AGAIN).await;
        }
    }
}

/// Polls the daemon's own account of itself.
async fn settled(device: &DeviceSite, http: &reqwest::Client, want: impl Fn(&Value) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let response = device
            .local(http, Method::GET, "/status")
            .send()
            .await
            .unwrap();
        let status: Value = response.json().await.unwrap();
        if want(&status) {
            return;
        }
        assert!(Instant::now() < until, "{status}");
        sleep(AGAIN).await;
    }
}

fn is_synced(status: &Value) -> bool {
    status["link"]["state"] == "SYNCED"
}

/// Envelopes that came over the wire, and how many of them were news, as the daemon's logs tell.
fn received(device: &DeviceSite) -> (usize, usize) {
    let number = |line: &str, key: &str| -> usize {
        let (_, rest) = line.split_once(key).unwrap();
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .map_or(rest, |i| &rest[..i]);
        digits.parse().unwrap()
    };
    let logs = device.machine.written();
    let lines = logs.iter().flat_map(|(_, text)| text.lines());
    lines
        .filter(|l| l.contains("envelopes are durable"))
        .fold((0, 0), |(all, fresh), l| {
            (all + number(l, " count="), fresh + number(l, " fresh="))
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn three_thousand_messages_arrive_once_in_order_though_hub_and_daemon_are_killed_five_times_each()
 {
    let seed = seed();
    eprintln!("REMOTE_COLLAB_SEED={seed}");
    let started = Instant::now();
    let mut random = Random(seed);
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    let mut secrets = hub.secrets.clone();
    secrets.push(device.local_token().to_owned());
    settled(&device, &hub.http, is_synced).await;

    let producers = Arc::new(Producers {
        url: hub.url(),
        token: hub.token.clone(),
        device: device.name.clone(),
        leave: Semaphore::new(0),
        accepted: watch::Sender::new(0),
        repeated: AtomicUsize::new(0),
    });
    let mut accepted = producers.accepted.subscribe();
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        lanes.spawn(Arc::clone(&producers).lane(lane));
    }

    // Pairs in random order: a daemon that is killed forgets its waits, so that these stay short.
    let kills = (0..KILLS).flat_map(|_| {
        if random.below(2) == 0 {
            [true, false]
        } else {
            [false, true]
        }
    });
    let kills: Vec<bool> = kills.collect();
    let stage = MESSAGES / (kills.len() + 1);
    for (n, of_hub) in kills.iter().enumerate() {
        producers.leave.add_permits(stage);
        let at = n * stage + random.below(stage - LANES);
        timeout(PATIENCE, accepted.wait_for(|n| *n >= at))
            .await
            .unwrap()
            .unwrap();
        if *of_hub {
            hub.kill().await;
            hub.serve().await;
        } else {
            device.kill().await;
            device.run().await;
        }
        // Sometimes the next kill meets a link that is not up again.
        if random.below(3) > 0 {
            settled(&device, &hub.http, is_synced).await;
        }
    }
    producers.leave.add_permits(MESSAGES - kills.len() * stage);
    let mut posted = BTreeMap::new();
    while let Some(ids) = timeout(PATIENCE, lanes.join_next()).await.unwrap() {
        posted.extend(ids.unwrap());
    }
    let posted_in = started.elapsed();
    assert_eq!(posted.len(), MESSAGES);
    let db = device.queue_db();
    settled(&device, &hub.http, |s| {
        is_synced(s)
            && s["link"]["unacked"] == 0
            && s["outbox"]["waiting"] == 0
            && queue_db::count(&db) >= 3_000
    })
    .await;
    let settled_in = started.elapsed();
    assert!(device.terminate().await.success());

    let rows = queue_db::messages(&db);
    let ids: BTreeSet<_> = rows.iter().map(|r| r.id.as_str()).collect();
    assert_eq!((rows.len(), ids.len()), (MESSAGES, MESSAGES), "once each");
    assert!(
        rows.windows(2).all(|w| w[0].seq < w[1].seq),
        "in the mailbox's order"
    );
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    for row in &rows {
        assert_eq!(
            posted.get(&row.id),
            Some(&row.content),
            "what was accepted under this id"
        );
        let (lane, n) = row.content.split_once('/').unwrap();
        let before = last.insert(lane, n);
        assert!(
            before.is_none_or(|b| b < n),
            "lane {lane}: {n} after {before:?}"
        );
    }
    for (id, content) in &posted {
        let item = hub.get(&format!("/messages/{id}")).await.ok(200);
        let told = stages(&item);
        assert_eq!(told[..2], ["accepted", "on_device"], "{content}: {item}");
        assert!(
            told.iter().filter(|s| **s == "held").count() <= 1,
            "{content}: {item}"
        );
    }
    let (received, fresh) = received(&device);
    eprintln!(
        "{MESSAGES} messages, {KILLS} kills each: posted in {posted_in:.1?}, all reported in {settled_in:.1?}; \
         {} posts repeated; {received} envelopes logged as stored, {} of them not for the first time",
        producers.repeated.load(Ordering::Relaxed),
        received - fresh,
    );
    assert!(hub.terminate().await.success());
    assert_no_secrets(&[&hub.machine, &device.machine], &secrets);
}
