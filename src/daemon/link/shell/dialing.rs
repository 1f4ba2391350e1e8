//! How the loop comes by a transport: who this device is, which way is dialled, and the WebSocket beside the polls.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::super::poll::Poll;
use super::Shell;
use crate::config::HubUrl;
use crate::core::client::{Cause, DialFailure, Input};
use crate::core::fallback::Route;
use crate::daemon::clock;
use crate::daemon::credentials::Credentials;
use crate::daemon::dial::{Reader, Writer};
use crate::daemon::retry_timer;
use crate::domain::Code;
use crate::wire::CloseCode;

/// A transport that came up.
pub(super) enum Opened {
    Socket(Reader, Writer),
    /// The calls begin with `hello`.
    Poll(Box<Poll>),
}

pub(super) type Dialing = BoxFuture<'static, Result<Opened, DialFailure>>;

impl Shell {
    /// Dials the WebSocket beside the polls.
    pub(super) fn probe(&mut self) {
        self.probe_at = None;
        let offset_ms = self.shown.hub_offset_ms;
        let dial = self.dialing(Route::WebSocket, offset_ms);
        let within = Duration::from_millis(self.parts.config.connect_timeout_ms);
        self.probing = Some(
            async move {
                let timed_out = DialFailure::Network {
                    detail: "the connection did not come up in time".to_owned(),
                };
                timeout(within, dial).await.unwrap_or(Err(timed_out))
            }
            .boxed(),
        );
    }

    /// The WebSocket beside the polls is open, and takes their place; or it is not, and is tried again later.
    pub(super) fn probed(&mut self, probed: Result<Opened, DialFailure>) {
        self.probing = None;
        let polls = self.route == Route::LongPoll && self.welcomed;
        match probed {
            Ok(opened) => {
                let Some(old) = self.transport.take_if(|_| polls) else {
                    return;
                };
                tracing::info!("the WebSocket is open; going over to it from the polls");
                old.close(CloseCode::Normal, "moved".to_owned());
                self.route = Route::WebSocket;
                self.welcomed = false;
                self.install(opened);
                self.machine.moved(self.clock.now());
            }
            Err(failure) => {
                tracing::debug!(?failure, "the WebSocket is still blocked");
                self.fallback.probe_failed(&failure);
                self.arm_probe();
            }
        }
    }

    pub(super) fn arm_probe(&mut self) {
        let wait = retry_timer::delay(self.fallback.probe_after());
        self.probe_at = Some(Instant::now() + wait);
    }

    /// A transport ended before `welcome`, without a word of the hub.
    pub(super) fn led_nowhere(&mut self) {
        match self.route {
            Route::WebSocket => self.fallback.upgrade_swallowed(),
            Route::LongPoll => self.fallback.session_failed(),
        }
    }

    pub(super) fn dial(&mut self, hub_offset_ms: i64) {
        self.taking_over |= Credentials::is_take_over_asked(&self.parts.credentials);
        self.shown.retry_at = None;
        self.shown.hub_offset_ms = hub_offset_ms;
        self.transport = None;
        self.probing = None;
        self.route = self.fallback.route();
        self.welcomed = false;
        self.dialing = Some(self.dialing(self.route, hub_offset_ms));
    }

    /// A dial of this route.
    pub(super) fn dialing(&mut self, route: Route, hub_offset_ms: i64) -> Dialing {
        let dialer = self.parts.dialer.clone();
        match self.identify() {
            Ok((credentials, hub)) if route == Route::LongPoll => {
                let poll = Poll {
                    http: self.parts.http.clone(),
                    hub,
                    credentials,
                    offset_ms: hub_offset_ms.into(),
                    interval: self.parts.poll_interval,
                };
                std::future::ready(Ok(Opened::Poll(Box::new(poll)))).boxed()
            }
            Ok((credentials, hub)) => async move {
                let now = clock::wall().plus(hub_offset_ms);
                let token = credentials.mint(now).map_err(|e| DialFailure::Refused {
                    code: Code::TokenInvalid.as_str().to_owned(),
                    message: e.to_string(),
                    hub_offset_ms: None,
                    retry_after_s: None,
                })?;
                let (reader, writer) = dialer.dial(&hub, &token).await?;
                Ok(Opened::Socket(reader, writer))
            }
            .boxed(),
            Err(failure) => std::future::ready(Err(failure)).boxed(),
        }
    }

    /// Whether the hub refused for good, and a login was made since.
    pub(super) fn has_new_credentials(&self) -> bool {
        let refused = matches!(self.machine.status().cause, Some(Cause::Fatal { .. }));
        refused && Credentials::written_at(&self.parts.credentials) != self.enrolled_at
    }

    /// Who this device is, as its files say now.
    pub(super) fn identify(&mut self) -> Result<(Credentials, HubUrl), DialFailure> {
        let refused = |code: Code, message: String| DialFailure::Refused {
            code: code.as_str().to_owned(),
            message,
            hub_offset_ms: None,
            retry_after_s: None,
        };
        self.enrolled_at = Credentials::written_at(&self.parts.credentials);
        let credentials = Credentials::load(&self.parts.credentials)
            .map_err(|e| refused(Code::TokenInvalid, e.to_string()))?
            .ok_or_else(|| {
                let message = "this device is not enrolled at a hub".to_owned();
                refused(Code::TokenMissing, message)
            })?;
        let hub = self
            .parts
            .hub
            .as_ref()
            .unwrap_or(&credentials.enrolment.hub);
        let hub = hub.clone();
        self.shown.hub = Some(hub.to_string());
        self.shown.device = Some(credentials.enrolment.device.to_string());
        Ok((credentials, hub))
    }

    pub(super) fn renew(&mut self) {
        let now = clock::wall().plus(self.shown.hub_offset_ms);
        let minted = match self.identify() {
            Ok((credentials, _)) => credentials.mint(now).map_err(|e| e.to_string()),
            Err(failure) => Err(format!("{failure:?}")),
        };
        match minted {
            Ok(token) => {
                let token = Input::Token(token.expose().to_owned());
                self.machine.handle(token, self.clock.now());
            }
            // The machine asks again; the hub closes the link if it never comes.
            Err(error) => {
                tracing::warn!(%error, "the connection's credential could not be renewed")
            }
        }
    }
}

pub(super) async fn ready(dialing: &mut Option<Dialing>) -> Result<Opened, DialFailure> {
    match dialing {
        Some(dialing) => dialing.await,
        None => std::future::pending().await,
    }
}
