//! A scripted stand-in for the Anthropic Messages API, in this process, on a free loopback port.
//!
//! It runs on a thread of its own, so that a test may block without stopping it, and dropping it takes the
//! API away: the port closes and open answers break off. What it answers to a step of a conversation is
//! decided in this order: the closures given to [`FakeAnthropic::script`], newest first; the directives
//! in the prompt ([`reply`]); a plain text. Every request is kept, and tests wait for requests, not for
//! time.

mod gate;
mod render;
mod reply;
mod request;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

pub(crate) use gate::Gate;
pub(crate) use reply::Reply;
#[allow(unused_imports, reason = "not every test program uses everything")]
pub(crate) use request::{Kind, Place, Request};

use gate::Lock;
use reply::Turn;

/// The largest request that the API takes, in bytes.
const MAX_BODY: usize = 32 << 20;

/// A test's own decision about the answer to a request.
type Script = Box<dyn FnMut(&Request) -> Option<Reply> + Send>;

/// The running stand-in.
pub(crate) struct FakeAnthropic {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeAnthropic {
    /// Starts it on a free port of the loopback interface.
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared {
            book: Mutex::default(),
            logged: watch::Sender::new(0),
        });
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free loopback port");
        listener
            .set_nonblocking(true)
            .expect("a socket can be made non-blocking");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let (stop, stopped) = oneshot::channel();
        let app = Router::new()
            .fallback(answer)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::clone(&shared));
        let thread = std::thread::spawn(move || serve(listener, app, stopped));
        Self {
            addr,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// What `ANTHROPIC_BASE_URL` is to be set to.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Decides answers by a closure: it sees each step of a conversation first, and may pass with `None`.
    pub(crate) fn script(&self, script: impl FnMut(&Request) -> Option<Reply> + Send + 'static) {
        self.shared.book().scripts.push(Box::new(script));
    }

    /// Queues answers: each step of a conversation whose context holds the marker takes the next one.
    pub(crate) fn queue(&self, marker: &str, replies: impl IntoIterator<Item = Reply>) {
        let marker = marker.to_owned();
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        self.script(move |request| {
            if request.contains(&marker) {
                replies.pop_front()
            } else {
                None
            }
        });
    }

    /// Holds back the answer to each step whose context holds the marker, until the gate is released.
    pub(crate) fn gate(&self, marker: &str) -> Gate {
        let lock = Arc::new(Lock::new(marker));
        self.shared.book().locks.push(Arc::clone(&lock));
        Gate::new(lock)
    }

    /// Every request so far, oldest first.
    pub(crate) fn requests(&self) -> Vec<Arc<Request>> {
        self.shared.book().log.clone()
    }

    /// The steps of conversations so far, oldest first.
    pub(crate) fn main_requests(&self) -> Vec<Arc<Request>> {
        let mut requests = self.requests();
        requests.retain(|request| request.kind == Kind::Main);
        requests
    }

    /// The newest step of one conversation, its subagents left aside.
    pub(crate) fn last_main(&self, session_id: &str) -> Option<Arc<Request>> {
        let own = |request: &&Arc<Request>| {
            request.session_id() == Some(session_id) && !request.is_subagent()
        };
        self.main_requests().iter().rfind(own).cloned()
    }

    /// How often a marker stands in what the model of a conversation was given last.
    ///
    /// 1 proves "in the model's context exactly once"; the model's own words do not count.
    pub(crate) fn count_in_context(&self, session_id: &str, marker: &str) -> usize {
        self.last_main(session_id)
            .map_or(0, |request| request.count(marker))
    }

    /// Waits for a request that satisfies the condition, among those that came already too.
    ///
    /// # Panics
    /// When none came in time, with a digest of those that did.
    #[track_caller]
    pub(crate) fn wait_for(
        &self,
        condition: impl Fn(&Request) -> bool,
        within: Duration,
    ) -> impl Future<Output = Arc<Request>> {
        let caller = Location::caller();
        let mut logged = self.shared.logged.subscribe();
        let mut next = 0;
        async move {
            let found = tokio::time::timeout(within, async {
                loop {
                    logged.borrow_and_update();
                    let requests = self.requests();
                    if let Some(found) = requests[next..].iter().find(|r| condition(r)) {
                        return Arc::clone(found);
                    }
                    next = requests.len();
                    logged.changed().await.expect("the log outlives the wait");
                }
            });
            found.await.unwrap_or_else(|_| {
                let seen: Vec<String> = self.requests().iter().map(|r| r.digest()).collect();
                panic!("no such request within {within:?} (waited at {caller}); came:\n{seen:#?}")
            })
        }
    }

    /// Waits for a step of a conversation whose context holds the marker.
    ///
    /// # Panics
    /// When none came in time, with a digest of those that did.
    #[track_caller]
    pub(crate) fn wait_for_marker(
        &self,
        marker: &str,
        within: Duration,
    ) -> impl Future<Output = Arc<Request>> {
        self.wait_for(
            move |request| request.kind == Kind::Main && request.contains(marker),
            within,
        )
    }
}

impl fmt::Debug for FakeAnthropic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeAnthropic")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl Drop for FakeAnthropic {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the scripted API panicked");
        }
    }
}

/// What the server and the test both hold.
struct Shared {
    book: Mutex<Book>,
    /// The length of the log, for those who wait.
    logged: watch::Sender<usize>,
}

/// The log, and all that decides about answers.
#[derive(Default)]
struct Book {
    log: Vec<Arc<Request>>,
    scripts: Vec<Script>,
    locks: Vec<Arc<Lock>>,
    /// How many errors a prompt has got.
    failures: BTreeMap<String, usize>,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a request and enters it into the log.
    fn enter(
        &self,
        read: impl FnOnce(usize) -> Request,
    ) -> (Arc<Request>, Option<Reply>, Vec<Arc<Lock>>) {
        let mut book = self.book();
        let mut request = read(book.log.len() + 1);
        let reply = book.decide(&request);
        request.reply = match (&reply, is_known(&request)) {
            (Some(reply), _) => reply.name(),
            (None, true) => "200".to_owned(),
            (None, false) => "404".to_owned(),
        };
        let request = Arc::new(request);
        let locks = book
            .locks
            .iter()
            .filter(|lock| lock.fits(&request))
            .cloned()
            .collect();
        book.log.push(Arc::clone(&request));
        self.logged.send_replace(book.log.len());
        (request, reply, locks)
    }
}

impl Book {
    /// The answer to a request for a message; `None` for any other request.
    fn decide(&mut self, request: &Request) -> Option<Reply> {
        if !matches!(request.kind, Kind::Main | Kind::Side) {
            return None;
        }
        if request.kind == Kind::Main {
            let scripted = self
                .scripts
                .iter_mut()
                .rev()
                .find_map(|script| script(request));
            if scripted.is_some() {
                return scripted;
            }
        }
        let turn = Turn::of(request);
        let failures = self
            .failures
            .entry(turn.prompt.clone().unwrap_or_default())
            .or_default();
        Some(turn.answer(request, failures))
    }
}

/// Whether a request that is not for a message asks for something that exists.
fn is_known(request: &Request) -> bool {
    request.kind == Kind::Count
        || request.method == "HEAD"
        || (request.method == "GET" && request.path.starts_with("/v1/models"))
}

/// Serves until the test drops its end of the channel; then everything still open breaks off.
fn serve(listener: std::net::TcpListener, app: Router, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the scripted API");
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).expect("a listening socket");
        tokio::select! {
            served = axum::serve(listener, app).into_future() => {
                served.expect("the scripted API serves until it is stopped");
            }
            _ = stopped => {}
        }
    });
    runtime.shutdown_background();
}

/// Answers any request at all.
async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (request, reply, locks) =
        shared.enter(|number| Request::read(number, &method, &uri, &headers, &body));
    for lock in locks {
        lock.hold().await;
    }
    match reply {
        Some(reply) => {
            tokio::time::sleep(reply.delay).await;
            render::message(&request, &reply)
        }
        None if request.kind == Kind::Count => {
            Json(json!({"input_tokens": (body.len() / 4).max(1)})).into_response()
        }
        None if is_known(&request) => Json(json!({"data": [], "has_more": false})).into_response(),
        None => render::error(404, &[]),
    }
}
