//! The Memory Hub: an HTTP API in front, one WebSocket per device behind, a store between.
//!
//! ```text
//! producer ─▶ router ─▶ guard ─▶ api ─▶ once ──commit──▶ store ──row──▶ socket ══▶ device
//!                                                          ▲                │
//!                                mailbox (ack, reports) ◀──┴────────────────┘
//! ```
//!
//! A request is answered 202 after the commit, and by then the row is on its way: the store's writer hands it to the
//! device's socket task before it answers. Everything that a device reports is applied by pure functions
//! ([`reports`]) to records that are compared and set. [`directory`] says how a request finds its device,
//! [`once`] how a repetition is answered, [`presence`] who may hold a device's key, [`admin`] what the owner does.

mod accounts;
pub mod admin;
mod api;
mod backup;
mod body;
mod clock;
mod directory;
pub(crate) mod events;
mod guard;
mod handed;
mod lifecycle;
mod limits;
mod link;
mod listen;
mod lock;
mod mailbox;
mod once;
mod openapi;
mod poll;
mod presence;
mod problem;
mod records;
mod reports;
mod route;
mod router;
mod silence;
mod slots;
mod socket;
mod state;
pub mod store;
mod tls;
mod used;
mod webhooks;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use admin::{AdminCall, AdminError};
pub use backup::restore;
pub use events::EventsConfig;
pub use lifecycle::Lifecycle;
pub use limits::Rate;
pub use listen::{Connections, Limits, Pacing};
pub use openapi::document as openapi;
pub use tls::{TlsError, TlsFiles};
pub use webhooks::{Resolver, WebhookConfig};

use self::listen::{Admission, Server};
use self::lock::Home;
use self::state::Hub;
use self::store::{AnyStore, SqliteStore, StoreError};
use self::tls::ServerTls;
use self::used::UsedTokens;
use crate::auth::{HubKeys, KeyError, crypto};
use crate::core::server::ServerConfig;

/// Time for sockets and requests to end at a stop.
const DRAIN: Duration = Duration::from_secs(8);

/// How a hub is run.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The installation's folder; the hub uses `<data_dir>/hub`.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 picks one.
    pub listen: SocketAddr,
    /// The certificate and key to speak TLS with; `None` is plain HTTP.
    pub tls: Option<TlsFiles>,
    /// A proxy that speaks TLS stands in front: plain HTTP may be listened on beyond loopback.
    pub behind_tls_proxy: bool,
    /// How many connections there may be.
    pub connections: Limits,
    /// How long a connection may do nothing.
    pub pacing: Pacing,
    /// Requests of one token.
    pub rate: Rate,
    /// The link's limits.
    pub link: ServerConfig,
    /// How long devices may stay away or silent.
    pub lifecycle: Lifecycle,
    /// How event streams are kept.
    pub events: EventsConfig,
    /// How callbacks are made.
    pub webhooks: WebhookConfig,
}

impl HubConfig {
    /// The defaults, on a loopback port of the system's choosing.
    #[must_use]
    pub fn local(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: None,
            behind_tls_proxy: false,
            connections: Limits::default(),
            pacing: Pacing::default(),
            rate: Rate::default(),
            link: ServerConfig::default(),
            lifecycle: Lifecycle::default(),
            events: EventsConfig::default(),
            webhooks: WebhookConfig::default(),
        }
    }
}

impl HubConfig {
    /// Whether tokens would cross a network readable.
    fn is_insecure(&self) -> bool {
        self.tls.is_none() && !self.behind_tls_proxy && !self.listen.ip().is_loopback()
    }
}

/// Why a hub does not start; every variant says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Plain HTTP beyond loopback.
    #[error(
        "refusing to listen on {listen} without TLS: tokens would cross the network readable; give --tls-cert and --tls-key, or say --behind-tls-proxy if a proxy that speaks TLS stands in front and nothing else reaches this address"
    )]
    Insecure {
        /// The address.
        listen: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: {source}")]
    Bind {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The folder cannot be used.
    #[error("cannot use the hub's folder {path}: {source}")]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The backup cannot be read.
    #[error("cannot read the backup {path}: {source}")]
    Backup {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process holds the folder.
    #[error("another hub (or a `hub` command) uses {path}: stop it, or choose another --data-dir")]
    Held {
        /// The folder.
        path: PathBuf,
    },
    /// There is nothing to look at.
    #[error("no hub has run in {path} yet")]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// A key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A running hub. Dropping it stops it without waiting; [`HubHandle::shutdown`] waits.
#[derive(Debug)]
pub struct HubHandle {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its name: the audience of every token.
    pub hub_id: String,
    /// Its installation's folder.
    pub data_dir: PathBuf,
    hub: Arc<Hub>,
    tls: bool,
    admission: Arc<Admission>,
    /// Cancelled when the hub listens no longer.
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    admin_socket: PathBuf,
    _home: Home,
}

/// Starts a hub: takes the folder's lock, opens keys and store, listens.
///
/// # Errors
/// When the address is insecure or taken, the folder is held or unusable, or a key is exposed.
pub async fn start(config: HubConfig) -> Result<HubHandle, HubError> {
    if config.is_insecure() {
        return Err(HubError::Insecure {
            listen: config.listen,
        });
    }
    let tls = config.tls.as_ref().map(ServerTls::open).transpose()?;
    let home = Home::open(&config.data_dir)?;
    let hub = Arc::new(open_hub(&home, &config).await?);
    let bind = |source| HubError::Bind {
        listen: config.listen,
        source,
    };
    let listener = listen::bind(config.listen).map_err(bind)?;
    let addr = listener.local_addr().map_err(bind)?;
    let admin_socket = home.admin_socket();
    let admin = admin::listen(&admin_socket).map_err(|source| HubError::DataDir {
        path: admin_socket.clone(),
        source,
    })?;

    let stop = CancellationToken::new();
    let server = Server::new(
        router::router(Arc::clone(&hub)),
        tls,
        config.connections,
        config.pacing,
        stop.clone(),
    );
    let admission = server.admission();
    let tasks = vec![
        tokio::spawn(server.run(listener)),
        tokio::spawn(admin::serve(Arc::clone(&hub), admin)),
        tokio::spawn(sweep(Arc::clone(&hub))),
        tokio::spawn(webhooks::run(Arc::clone(&hub))),
    ];
    tracing::info!(%addr, hub = %hub.id, "the hub listens");
    Ok(HubHandle {
        addr,
        hub_id: hub.id.clone(),
        data_dir: config.data_dir,
        hub,
        tls: config.tls.is_some(),
        admission,
        stop,
        tasks,
        admin_socket,
        _home: home,
    })
}

pub(crate) async fn open_hub(home: &Home, config: &HubConfig) -> Result<Hub, HubError> {
    crypto::install();
    let keys = HubKeys::open(&home.keys())?;
    let (store, renewed) = SqliteStore::open_marked(&home.database(), &home.life())?;
    if renewed {
        tracing::warn!(
            "the store is not the one that ran here last: every mailbox begins a new epoch"
        );
    }
    let store = AnyStore::Sqlite(store);
    let used = home.used_tokens();
    let new = store.get(state::ID).await?.is_none();
    let used = UsedTokens::open(&used, new, clock::wall())
        .map_err(|source| HubError::DataDir { path: used, source })?;
    let (link, lifecycle) = (config.link.clone(), config.lifecycle);
    let mut hub = Hub::open(store, keys, config.rate, link, lifecycle, used).await?;
    hub.events = config.events;
    hub.webhooks.config = config.webhooks.clone();
    Ok(hub)
}

async fn sweep(hub: Arc<Hub>) {
    loop {
        if let Err(e) = hub.sweep().await {
            tracing::warn!(error = %e, "a sweep failed; the next one goes on");
        }
        tokio::select! {
            () = hub.draining.cancelled() => return,
            () = tokio::time::sleep(hub.lifecycle.sweep_every) => {}
        }
    }
}

impl HubHandle {
    /// The base URL of its HTTP API.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// What became of connections so far.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.admission.counts()
    }

    /// Carries out a call of the owner, as over the admin socket.
    ///
    /// # Errors
    /// When the call is refused.
    pub async fn admin(&self, call: &AdminCall) -> Result<Value, AdminError> {
        let result = self.hub.admin(call).await;
        result.map_err(|e| AdminError::Refused(e.0))
    }

    /// Devices connected now.
    #[must_use]
    pub fn devices_online(&self) -> usize {
        self.hub.presence.count()
    }

    /// Stops: devices are told when to come back, requests finish, what is queued is stored. Bounded in time.
    ///
    /// It listens until every device was told, because one on polls has no connection to be told on between two calls.
    pub async fn shutdown(mut self) {
        self.hub.draining.cancel();
        self.hub.sockets.close();
        if timeout(DRAIN, self.hub.sockets.wait()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        self.hub.polls.told().await;
        self.stop.cancel();
        for task in &mut self.tasks {
            if timeout(DRAIN, &mut *task).await.is_err() {
                task.abort();
            }
        }
        self.hub.store.close().await;
        remove_socket(&self.admin_socket);
        tracing::info!("the hub stopped");
    }
}

impl Drop for HubHandle {
    fn drop(&mut self) {
        self.hub.draining.cancel();
        self.stop.cancel();
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn remove_socket(path: &Path) {
    // The next hub replaces it; a leftover only costs a refused connect.
    if let Err(e) = std::fs::remove_file(path) {
        tracing::debug!(error = %e, "the admin socket stays behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_it_takes_tls_or_the_word_of_the_person() {
        let mut config = HubConfig::local("/nowhere");
        assert!(!config.is_insecure());
        for listen in [
            "0.0.0.0:80",
            "[::]:80",
            "192.0.2.1:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            config.listen = listen.parse().unwrap();
            assert!(config.is_insecure(), "{listen}");
        }
        let (cert, key) = (PathBuf::from("c"), PathBuf::from("k"));
        config.tls = Some(TlsFiles { cert, key });
        assert!(!config.is_insecure());
        (config.tls, config.behind_tls_proxy) = (None, true);
        assert!(!config.is_insecure());
    }
}
