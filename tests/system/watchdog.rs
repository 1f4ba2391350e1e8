//! A daemon whose loops hang ends by itself, and one that slept does not.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use remote_collab::config::DaemonConfig;
use remote_collab::core::client::ClientConfig;
use remote_collab::daemon::dial::Dialer;
use remote_collab::daemon::http::HubHttp;
use remote_collab::daemon::link::{Directory, LinkParts, SnapshotSource, link};
use remote_collab::daemon::store::{FILE, Store};
use remote_collab::daemon::watchdog::{Limits, Watchdog};
use remote_collab::daemon::way::Way;
use rustix::process::Signal;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::fake_hub::{DEADLINE, FakeHub};
use crate::support::sites::{DeviceSite, HubSite, PATIENCE};

/// A source that holds up whoever asks it until the test is over.
struct Hanging(Mutex<std::sync::mpsc::Receiver<()>>);

impl SnapshotSource for Hanging {
    fn directory(&self) -> BoxFuture<'static, Directory> {
        // Ends with an error when the test drops the sender.
        self.0.lock().unwrap().recv().ok();
        std::future::ready(Directory::default()).boxed()
    }
}

fn parts(dir: &Path, source: Arc<dyn SnapshotSource>, dog: &Watchdog) -> LinkParts {
    let (_, capacity) = watch::channel(0);
    let way = Way::new(&DaemonConfig::default()).unwrap();
    LinkParts {
        store: Store::open(&dir.join(FILE)).unwrap(),
        http: HubHttp::new(&way, dir.to_owned(), None).unwrap(),
        dialer: Dialer::new(way),
        poll_interval: Duration::from_secs(1),
        credentials: dir.to_owned(),
        hub: None,
        source,
        capacity,
        config: ClientConfig::default(),
        beat: dog.watch("link"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_whose_loop_hangs_is_named_by_the_watchdog() {
    let mut hub = FakeHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    hub.enrol(dir.path(), "http");
    let (named, mut names) = mpsc::unbounded_channel();
    let limits = Limits {
        stall: Duration::from_secs(3),
        stalled: Arc::new(move |name| named.send(name.to_owned()).unwrap()),
    };
    let dog = Watchdog::start(limits).unwrap();
    let (release, held) = std::sync::mpsc::channel();
    let source = Arc::new(Hanging(Mutex::new(held)));
    let stop = CancellationToken::new();
    let (handle, running) = link(parts(dir.path(), source, &dog), stop.clone());
    let running = tokio::spawn(running);
    handle.connect().await;
    let _connection = hub.accept().await;
    let name = timeout(DEADLINE, names.recv()).await.unwrap();
    assert_eq!(name.as_deref(), Some("link"));
    drop(release);
    stop.cancel();
    timeout(DEADLINE, running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_stopped_is_not_taken_for_one_that_hangs_and_tells_its_manager_so() {
    let mut hub = HubSite::start().await;
    let mut device = DeviceSite::enrolled(&mut hub, "laptop").await;
    // The service manager's end: it asks for a sign of life every half second.
    let told = device.machine.root().join("notify");
    let manager = UnixDatagram::bind(&told).unwrap();
    device
        .run_with(&[
            ("NOTIFY_SOCKET", told.to_str().unwrap()),
            ("WATCHDOG_USEC", "1500000"),
        ])
        .await;
    let hear = async || {
        let mut word = [0; 64];
        let n = timeout(PATIENCE, manager.recv(&mut word))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8_lossy(&word[..n]).trim().to_owned()
    };
    let mut words = vec![hear().await];
    while !(words.iter().any(|w| w == "READY=1") && words.iter().any(|w| w == "WATCHDOG=1")) {
        words.push(hear().await);
    }
    let pid = device.process().pid;
    device.process().signal(Signal::STOP);
    sleep(Duration::from_secs(4)).await;
    device.process().signal(Signal::CONT);
    while hear().await != "WATCHDOG=1" {}
    assert_eq!(device.synced().await["pid"], pid);
    assert!(device.terminate().await.success());
    while hear().await != "STOPPING=1" {}
}
