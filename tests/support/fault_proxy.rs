//! A TCP proxy between a daemon and its hub that can stall, cut, half-close and forget.
//!
//! Connections are numbered; an order names those that are open when it is given, so that later ones pass untouched.
//! What a connection does is a function of the orders and its number: it waits for an order as it waits for bytes.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What is ordered; a connection is meant when its number is not above the order's.
#[derive(Debug, Clone, Copy, Default)]
struct Orders {
    /// Nothing is forwarded on any connection, old or new.
    stalled: bool,
    /// Nothing will ever be forwarded again, and nobody is told.
    forgotten: u64,
    /// Nothing more comes from the hub: its direction has ended in an orderly way.
    half_closed: u64,
    /// Reset on both sides.
    cut: u64,
}

/// Which way a pump carries bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToHub,
    ToDevice,
}

pub(crate) struct FaultProxy {
    address: SocketAddr,
    orders: watch::Sender<Orders>,
    opened: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy on a port of its own before `target` (`host:port`), which need not be there yet.
    pub(crate) async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let orders = watch::Sender::new(Orders::default());
        let opened = Arc::new(AtomicU64::new(0));
        let accepting = tokio::spawn(accept(
            listener,
            target.to_owned(),
            orders.clone(),
            Arc::clone(&opened),
        ));
        Self {
            address,
            orders,
            opened,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections that were ever opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// Holds all bytes back until [`Self::resume`].
    pub(crate) fn stall(&self) {
        self.orders.send_modify(|o| o.stalled = true);
    }

    pub(crate) fn resume(&self) {
        self.orders.send_modify(|o| o.stalled = false);
    }

    /// Resets every open connection.
    pub(crate) fn cut(&self) {
        let open = self.opened();
        self.orders.send_modify(|o| o.cut = open);
    }

    /// Ends the hub's direction of every open connection; the device's goes on.
    pub(crate) fn half_close(&self) {
        let open = self.opened();
        self.orders.send_modify(|o| o.half_closed = open);
    }

    /// Forgets every open connection: both ends still look connected, and hear nothing ever again.
    pub(crate) fn forget(&self) {
        let open = self.opened();
        self.orders.send_modify(|o| o.forgotten = open);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    orders: watch::Sender<Orders>,
    opened: Arc<AtomicU64>,
) {
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    while let Ok((device, _)) = listener.accept().await {
        let number = opened.fetch_add(1, Ordering::AcqRel) + 1;
        connections.spawn(connection(
            device,
            target.clone(),
            number,
            orders.subscribe(),
        ));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(
    device: TcpStream,
    target: String,
    number: u64,
    orders: watch::Receiver<Orders>,
) {
    // A hub that is away refuses the proxy, and the proxy the device.
    let Ok(hub) = TcpStream::connect(&target).await else {
        return;
    };
    for side in [&device, &hub] {
        side.set_nodelay(true).unwrap();
    }
    // A second handle on each socket, to choose how it ends.
    let sides = [&device, &hub].map(|side| side.as_fd().try_clone_to_owned().unwrap());
    let (from_device, to_device) = device.into_split();
    let (from_hub, to_hub) = hub.into_split();
    let both = async {
        tokio::join!(
            pump(Way::ToHub, number, orders.clone(), from_device, to_hub),
            pump(Way::ToDevice, number, orders.clone(), from_hub, to_device),
        )
    };
    let mut cutting = orders.clone();
    tokio::select! {
        // Closed without lingering, a socket is reset.
        _ = cutting.wait_for(|o| number <= o.cut) => {
            for side in &sides {
                set_socket_linger(side, Some(Duration::ZERO)).unwrap();
            }
        }
        // Both directions ended by themselves.
        _ = both => {}
    }
}

/// Carries one direction to its end, and hands the end on.
async fn pump(
    way: Way,
    number: u64,
    mut orders: watch::Receiver<Orders>,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) {
    let held = |o: &Orders| o.stalled || number <= o.forgotten;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let now = *orders.borrow_and_update();
        if way == Way::ToDevice && number <= now.half_closed {
            break;
        }
        if held(&now) {
            if orders.changed().await.is_err() {
                return;
            }
            continue;
        }
        let read = tokio::select! {
            changed = orders.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut buffer) => read,
        };
        match read {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                // A stall that comes now must hold these bytes back, too.
                if orders.wait_for(|o| !held(o)).await.is_err()
                    || to.write_all(&buffer[..n]).await.is_err()
                {
                    break;
                }
            }
        }
    }
    // The other side may be gone already.
    to.shutdown().await.ok();
}
