//! Ten thousand messages from producers that retry and a thousand that a program takes on the device, through a hub and
//! a daemon that are killed again and again, and a proxy between them that stalls, cuts and half-closes.
//!
//! Kills and faults come at counts of accepted messages, drawn from a seed (`REMOTE_COLLAB_SEED` repeats a run), so that
//! the test has an end. In each stage of five hundred the producers get leave for as many posts: a kill meets requests
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

use crate::support::fault_proxy::FaultProxy;
use crate::support::queue_db;
use crate::support::sites::{
    DeviceSite, HubSite, Machine, PATIENCE, assert_no_secrets, http_client, stages,
};

const MESSAGES: usize = 10_000;
const LANES: usize = 8;
/// Kills of each, hub and daemon; one of the two at the end of every stage.
const KILLS: usize = 10;
const STAGE: usize = MESSAGES / (2 * KILLS);
/// Messages that a program on the device takes and confirms: each ends with a report of its own.
const TAKEN: usize = 1_000;
/// Messages in one claim.
const CLAIM: usize = 25;
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

fn count(stages: &[&str], stage: &str) -> usize {
    stages.iter().filter(|s| **s == stage).count()
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

/// What the proxy does to the link in the middle of a stage.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Stall,
    Cut,
    HalfClose,
}

/// A program on the device that takes messages and confirms them, until it has had its number of them.
struct Taker {
    url: String,
    token: String,
}

impl Taker {
    /// The messages that were confirmed. An answer that is lost with the daemon leaves it open whether its claim was
    /// ended: the messages that come again tell.
    async fn take(
        mut place: watch::Receiver<Option<Self>>,
        confirmed: watch::Sender<usize>,
    ) -> BTreeSet<String> {
        let http = http_client();
        let mut all = BTreeSet::new();
        while all.len() < TAKEN {
            let limit = CLAIM.min(TAKEN - all.len());
            let (claim, confirm) = {
                let there = place.wait_for(Option::is_some).await.unwrap();
                let at = there.as_ref().unwrap();
                let claim = http
                    .get(format!("{}/messages?limit={limit}", at.url))
                    .bearer_auth(&at.token);
                let confirm = http
                    .post(format!("{}/messages/confirm", at.url))
                    .bearer_auth(&at.token);
                (claim, confirm)
            };
            let taken = async {
                let taken: Value = claim.send().await.ok()?.json().await.ok()?;
                let ids: Vec<String> = taken["messages"]
                    .as_array()?
                    .iter()
                    .map(|m| m["id"].as_str().unwrap().to_owned())
                    .collect();
                if ids.is_empty() {
                    return None;
                }
                let answer = confirm.json(&json!({"claim": taken["claim"]})).send().await;
                answer.ok()?.status().is_success().then_some(ids)
            };
            match taken.await {
                Some(ids) => {
                    all.extend(ids);
                    confirmed.send_replace(all.len());
                }
                // Nothing is there, or the daemon is away.
                None => sleep(AGAIN).await,
            }
        }
        all
    }

    fn at(device: &DeviceSite) -> Self {
        let ready = &device.process().ready;
        Self {
            url: ready["local"].as_str().unwrap().to_owned(),
            token: ready["local_token"].as_str().unwrap().to_owned(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_messages_and_a_thousand_answers_arrive_once_in_order_through_kills_and_faults()
 {
    let seed = seed();
    eprintln!("REMOTE_COLLAB_SEED={seed}");
    let started = Instant::now();
    let mut random = Random(seed);
    let mut hub = HubSite::start().await;
    let proxy = FaultProxy::start(&hub.listen).await;
    let machine = Machine::new();
    let mut device = DeviceSite::enrolled_by(machine, &mut hub, &proxy.url(), "laptop").await;
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
    let place = watch::Sender::new(Some(Taker::at(&device)));
    let (confirmed, mut taken_so_far) = watch::channel(0);
    let taker = tokio::spawn(Taker::take(place.subscribe(), confirmed));

    for n in 0..2 * KILLS {
        let begin = n * STAGE;
        producers.leave.add_permits(STAGE);
        let mut reach = async |count: usize| {
            let there = timeout(PATIENCE, accepted.wait_for(|n| *n >= count)).await;
            there.unwrap().unwrap();
        };
        let fault = [Fault::Stall, Fault::Cut, Fault::HalfClose][random.below(3)];
        let at = begin + random.below(STAGE / 2);
        reach(at).await;
        match fault {
            Fault::Stall => proxy.stall(),
            Fault::Cut => proxy.cut(),
            Fault::HalfClose => proxy.half_close(),
        }
        // As far as a lane may be behind its leave.
        reach(begin + STAGE / 2 + random.below(STAGE / 2 - LANES)).await;
        // Alternating: a daemon that is killed forgets its waits, so that these stay short.
        if n % 2 == 0 {
            hub.kill().await;
            hub.serve().await;
        } else {
            place.send_replace(None);
            device.kill().await;
            device.run().await;
            place.send_replace(Some(Taker::at(&device)));
        }
        proxy.resume();
        // Sometimes the next kill meets a link that is not up again.
        if random.below(3) > 0 {
            settled(&device, &hub.http, is_synced).await;
        }
    }
    let mut posted = BTreeMap::new();
    while let Some(ids) = timeout(PATIENCE, lanes.join_next()).await.unwrap() {
        posted.extend(ids.unwrap());
    }
    let posted_in = started.elapsed();
    assert_eq!(posted.len(), MESSAGES);
    timeout(PATIENCE, taken_so_far.wait_for(|n| *n >= TAKEN))
        .await
        .unwrap()
        .unwrap();
    let taken = taker.await.unwrap();
    let db = device.queue_db();
    settled(&device, &hub.http, |s| {
        is_synced(s)
            && s["link"]["unacked"] == 0
            && s["outbox"]["waiting"] == 0
            && queue_db::count(&db) >= i64::try_from(MESSAGES).unwrap()
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
    // The hub was told of each once, in order, and nothing else.
    let ended = ["claimed", "handed_over", "seen", "done"];
    let mut unsettled = 0;
    for (id, content) in &posted {
        let item = hub.get(&format!("/messages/{id}")).await.ok(200);
        let mut told = stages(&item);
        assert_eq!(told[..2], ["accepted", "on_device"], "{content}: {item}");
        if told.get(2) == Some(&"held") {
            told.remove(2);
        }
        if taken.contains(id) {
            // A claim that was lost with the daemon came back before it was taken again.
            assert!(told.ends_with(&ended), "{content}: {item}");
            assert_eq!(count(&told, "done"), 1, "{content}: {item}");
        } else if told.len() > 2 {
            unsettled += 1;
        }
    }
    // Claims whose confirmation was lost with a daemon.
    assert!(
        unsettled <= KILLS * CLAIM,
        "{unsettled} were taken by nobody"
    );
    let (received, fresh) = received(&device);
    eprintln!(
        "{MESSAGES} messages, {TAKEN} taken, {KILLS} kills each, {} connections: posted in {posted_in:.1?}, all reported in {settled_in:.1?}; \
         {} posts repeated; {received} envelopes logged as stored, {} of them not for the first time",
        proxy.opened(),
        producers.repeated.load(Ordering::Relaxed),
        received - fresh,
    );
    assert!(hub.terminate().await.success());
    assert_no_secrets(&[&hub.machine, &device.machine], &secrets);
}
