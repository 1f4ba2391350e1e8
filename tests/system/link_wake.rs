//! A daemon that slept while something on the way forgot its connection.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::support::queue_db;
use crate::support::sites::{DeviceSite, HubSite, PATIENCE, stages};

/// How long the daemon is stopped: noticed as a sleep, and far below a dead heartbeat.
const ASLEEP: Duration = Duration::from_secs(5);
/// A silent hub is dead after 45 s; who is back before this was woken by something else. With room for a busy machine.
const WELL_BEFORE_DEAD: Duration = Duration::from_secs(20);

/// A box on the way that forgets its flows when it is told to: their bytes vanish, nobody is told.
struct Forgetful {
    url: String,
    forget: watch::Sender<u64>,
}

impl Forgetful {
    async fn before(hub: &HubSite) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (forget, forgotten) = watch::channel(0);
        let to = hub.listen.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (to, mut forgotten) = (to.clone(), forgotten.clone());
                forgotten.borrow_and_update();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(&to).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        Ok(()) = forgotten.changed() => {
                            // Both ends stay open for as long as the test lasts, and nothing is read.
                            std::future::pending::<()>().await;
                        }
                    }
                });
            }
        });
        Self { url, forget }
    }

    fn forget(&self) {
        self.forget.send_modify(|n| *n += 1);
    }
}

/// Lets the device find its hub through another address.
fn lead(device: &DeviceSite, url: &str) {
    let path = device.machine.data().join("daemon/device.json");
    let mut known: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    known["hub"] = url.into();
    std::fs::write(&path, known.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_slept_while_its_flow_was_forgotten_is_synced_again_long_before_the_heartbeat_would_notice()
 {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    let way = Forgetful::before(&hub).await;
    lead(&device, &way.url);
    device.run().await;
    let before = device.synced().await["link"]["generation"].clone();

    device.process().signal(Signal::STOP);
    // Lies in the daemon's buffers when it wakes, and must not pass for a sign of life.
    let early = hub
        .message("before the flow was forgotten", &device.name)
        .await;
    way.forget();
    let late = hub.message("after it", &device.name).await;
    sleep(ASLEEP).await;
    device.process().signal(Signal::CONT);
    let woken = Instant::now();
    device
        .until("a new connection", |s| {
            s["link"]["state"] == "SYNCED" && s["link"]["generation"] != before
        })
        .await;
    let took = woken.elapsed();
    assert!(took < WELL_BEFORE_DEAD, "{took:?}");
    for id in [&early, &late] {
        hub.becomes(&format!("/messages/{id}"), |m| {
            stages(m).contains(&"on_device")
        })
        .await;
    }
    assert_eq!(queue_db::count(&device.queue_db()), 2);
    assert!(took < PATIENCE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_slept_beside_a_live_connection_keeps_it() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    device.run().await;
    let before = device.synced().await["link"]["generation"].clone();
    device.process().signal(Signal::STOP);
    sleep(ASLEEP).await;
    device.process().signal(Signal::CONT);
    let id = hub.message("after the sleep", &device.name).await;
    hub.becomes(&format!("/messages/{id}"), |m| {
        stages(m).contains(&"on_device")
    })
    .await;
    assert_eq!(device.synced().await["link"]["generation"], before);
}
