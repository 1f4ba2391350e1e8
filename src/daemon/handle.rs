//! Bringing the daemon up and down.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::auth::crypto::{CryptoError, random};
use crate::auth::keys::check_private;
use crate::auth::{DeviceKey, KeyError};
use crate::config::DaemonConfig;
use crate::core::client::ClientConfig;
use crate::local::{Places, write_private};

use super::clock;
use super::dial::Dialer;
use super::http::{HttpError, HubHttp};
use super::link::{LinkHandle, LinkParts, SnapshotSource, link};
use super::local_api::{self, Api, Control, HookHandler, Listeners};
use super::lock::{self, Lock, LockError};
use super::projects::Projects;
use super::questions::{loopback_answers, socket_answers};
use super::status::{Claude, Facts};
use super::store::{self, Store, StoreError};
use super::tls::TlsError;
use super::watchdog::{self, Watchdog};
use super::way::Way;

/// How long a clean stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the queue's last commit and checkpoint may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the queue is swept.
const SWEEP: Duration = Duration::from_secs(3_600);
/// The loopback token's file inside the daemon's folder.
const TOKEN_FILE: &str = "local.token";

/// Why the daemon did not come up.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Another daemon, or no lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The queue.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The trusted certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The hub's client.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// A secret's file.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No randomness.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// A folder, file or socket.
    #[error("cannot use `{}`: {source}; check that it belongs to you and can be written", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl DaemonError {
    /// Whether the reason is that a daemon is running already.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        matches!(self, Self::Lock(LockError::Held { .. }))
    }
}

/// What a daemon is brought up with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The installation's places.
    pub places: Places,
    /// Where to listen for local processes, see [`Places::socket`].
    pub socket: PathBuf,
    /// The configuration.
    pub config: Arc<DaemonConfig>,
    /// The CLI that was found.
    pub claude: Claude,
    /// The link's limits.
    pub link: ClientConfig,
    /// When a loop is taken to hang, and what follows.
    pub watchdog: watchdog::Limits,
}

/// What lasts: opened under the lock, before anybody can reach the daemon.
#[derive(Debug)]
pub struct Daemon {
    options: Options,
    lock: Lock,
    store: Store,
    projects: Projects,
    http: HubHttp,
    dialer: Dialer,
    watchdog: Watchdog,
    stop: CancellationToken,
}

/// Who decides about mail and runs.
pub struct Parts {
    /// Answers hook events.
    pub hooks: Arc<dyn HookHandler>,
    /// Memory, pausing, changes of projects.
    pub control: Arc<dyn Control>,
    /// What `hello` tells.
    pub source: Arc<dyn SnapshotSource>,
    /// Free run slots.
    pub capacity: watch::Receiver<u32>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

impl Daemon {
    /// Takes the lock and opens the queue; blocks for a few milliseconds.
    ///
    /// # Errors
    /// When another daemon runs, or something cannot be used.
    pub fn open(options: Options) -> Result<Self, DaemonError> {
        let dir = options.places.daemon();
        let io = |path: &PathBuf| {
            let path = path.clone();
            move |source| DaemonError::Io { path, source }
        };
        options.places.create_daemon_dirs().map_err(io(&dir))?;
        let lock = Lock::take(&dir.join(lock::FILE))?;
        let way = Way::new(&options.config)?;
        let hub = options.config.remote_api.clone();
        let http = HubHttp::new(&way, dir.clone(), hub)?;
        let store = Store::open(&dir.join(store::FILE))?;
        // The key exists before the first login, so that `login` beside a running daemon finds it.
        DeviceKey::load_or_create(&dir.join("device.key"))?;
        let watchdog = Watchdog::start(options.watchdog.clone()).map_err(io(&dir))?;
        Ok(Self {
            lock,
            store,
            projects: Projects::new(dir),
            http,
            dialer: Dialer::new(way),
            watchdog,
            stop: CancellationToken::new(),
            options,
        })
    }

    /// The queue.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The enabled projects.
    #[must_use]
    pub const fn projects(&self) -> &Projects {
        &self.projects
    }

    /// The hub's HTTP API.
    #[must_use]
    pub const fn http(&self) -> &HubHttp {
        &self.http
    }

    /// What it was brought up with.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Looks whether the loops of the daemon go round.
    #[must_use]
    pub const fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }

    /// Cancelled when the daemon is to stop; whoever was built on it ends with it.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Opens the listeners and the link.
    ///
    /// # Errors
    /// When the socket cannot be opened; a loopback port that is taken is only reported.
    pub async fn start(self, parts: Parts) -> Result<DaemonHandle, DaemonError> {
        let Options {
            places,
            socket,
            config,
            claude,
            link: limits,
            watchdog: _,
        } = self.options;
        let io = |path: &PathBuf| {
            let path = path.clone();
            move |source| DaemonError::Io { path, source }
        };
        let dir = places.daemon();
        let token_file = dir.join(TOKEN_FILE);
        let token = load_token(&token_file)?;
        Places::create_socket_dir(&socket).map_err(io(&socket))?;
        let on_socket = local_api::bind_socket(&socket).map_err(io(&socket))?;
        places.note_socket(&socket).map_err(io(&socket))?;
        let (on_loopback, loopback, loopback_error) =
            match local_api::bind_tcp(config.local_api).await {
                Ok((listener, address)) => (Some(listener), Some(address), None),
                Err(e) => {
                    let text = format!("{}: {e}", config.local_api);
                    tracing::warn!(error = %text, "no loopback address; the socket is served");
                    (None, None, Some(text))
                }
            };
        let listeners = Listeners {
            socket,
            loopback,
            loopback_error,
            token_file,
        };
        let link_stop = CancellationToken::new();
        let link_parts = LinkParts {
            store: self.store.clone(),
            dialer: self.dialer,
            http: self.http,
            poll_interval: config.poll_interval,
            credentials: dir,
            hub: config.remote_api.clone(),
            source: parts.source,
            capacity: parts.capacity,
            config: limits,
            beat: self.watchdog.watch("link"),
        };
        let (link, link_runs) = link(link_parts, link_stop.clone());
        link.connect().await;
        let told = self.projects.list().unwrap_or_default();
        let facts = Facts {
            data_dir: places.root().to_owned(),
            started_at: clock::wall(),
            listeners: listeners.clone(),
            claude,
        };
        let api = Arc::new(Api {
            store: self.store.clone(),
            link: link.clone(),
            projects: self.projects,
            told: Mutex::new(told),
            config,
            facts,
            hooks: parts.hooks,
            control: parts.control,
            token: token.clone(),
            stop: self.stop.clone(),
        });
        let (store, socket) = (self.store.clone(), listeners.socket.clone());
        self.watchdog.ask("queue", self.stop.clone(), move || {
            let store = store.clone();
            async move { store.position().await.is_ok() }
        });
        self.watchdog.ask("socket", self.stop.clone(), move || {
            socket_answers(socket.clone())
        });
        if let Some(address) = loopback {
            self.watchdog.ask("loopback", self.stop.clone(), move || {
                loopback_answers(address)
            });
        }
        let running = Running {
            watchdog: self.watchdog,
            stop: self.stop.clone(),
            link_stop,
            store: self.store.clone(),
            socket: listeners.socket.clone(),
            link: tokio::spawn(link_runs),
            served: tokio::spawn(local_api::serve(api, on_socket, on_loopback)),
            lock: self.lock,
        };
        Ok(DaemonHandle {
            store: self.store,
            link,
            listeners,
            token,
            stop: self.stop,
            running: tokio::spawn(running.run()),
        })
    }
}

/// A running daemon; it stops when this is dropped, cleanly only by [`DaemonHandle::stop`].
#[derive(Debug)]
pub struct DaemonHandle {
    store: Store,
    link: LinkHandle,
    listeners: Listeners,
    token: SecretString,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl DaemonHandle {
    /// The queue.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The link.
    #[must_use]
    pub const fn link(&self) -> &LinkHandle {
        &self.link
    }

    /// Where it can be reached.
    #[must_use]
    pub const fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// The loopback token, for the ready line.
    #[must_use]
    pub fn local_token(&self) -> &str {
        self.token.expose_secret()
    }

    /// Stops cleanly, within a deadline.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.ended().await;
        let store = self.store.clone();
        drop(self);
        // Somebody may still hold the queue; its file is safe at any moment.
        if timeout(CLOSE_TIMEOUT, store.close()).await.is_err() {
            tracing::debug!("the queue is still held");
        }
    }

    /// Waits until it has stopped, because it was told to or because a part of it ended.
    pub async fn ended(&mut self) {
        if let Err(error) = (&mut self.running).await {
            tracing::error!(%error, "the daemon ended badly");
        }
    }
}

impl Drop for DaemonHandle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The parts that run, and their end in order.
struct Running {
    stop: CancellationToken,
    link_stop: CancellationToken,
    store: Store,
    socket: PathBuf,
    link: JoinHandle<()>,
    served: JoinHandle<()>,
    watchdog: Watchdog,
    lock: Lock,
}

impl Running {
    async fn run(mut self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            ended = &mut self.link => tracing::error!(?ended, "the link ended; the daemon stops"),
            ended = &mut self.served => tracing::error!(?ended, "the local API ended; the daemon stops"),
            () = local_api::return_expired(self.store.clone()) => {
                tracing::error!("the queue ended; the daemon stops");
            }
            () = sweep(self.store.clone()) => {}
        }
        self.stop.cancel();
        // What ends has its deadlines, and beats no more.
        drop(self.watchdog);
        let end = async {
            // Whatever ended already is over; the others end now.
            if !self.served.is_finished() {
                drop((&mut self.served).await);
            }
            self.link_stop.cancel();
            if !self.link.is_finished() {
                drop((&mut self.link).await);
            }
        };
        if timeout(STOP_TIMEOUT, end).await.is_err() {
            tracing::warn!("the daemon was cut: something did not end in time");
            self.served.abort();
            self.link.abort();
        }
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::debug!(%error, "the socket was gone already");
        }
        drop(self.lock);
    }
}

/// Deletes what is past its time, now and then; never ends.
async fn sweep(store: Store) {
    loop {
        match store.sweep(clock::wall()).await {
            Ok(true) => {}
            Ok(false) => tokio::time::sleep(SWEEP).await,
            Err(error) => {
                tracing::warn!(%error, "the queue could not be swept");
                tokio::time::sleep(SWEEP).await;
            }
        }
    }
}

/// The loopback token: 32 random bytes, kept so that scripts survive a restart.
fn load_token(path: &PathBuf) -> Result<SecretString, DaemonError> {
    let io = |source| DaemonError::Io {
        path: path.clone(),
        source,
    };
    match std::fs::File::open(path) {
        Ok(file) => {
            check_private(&file, path)?;
            let text = io::read_to_string(file).map_err(io)?;
            if text.trim().len() >= 32 {
                return Ok(text.trim().to_owned().into());
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io(e)),
    }
    let bytes: [u8; 32] = random()?;
    let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    write_private(path, text.as_bytes()).map_err(io)?;
    Ok(text.into())
}
