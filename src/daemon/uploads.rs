//! Results too long for a frame, on their way to the hub beside the link.
//!
//! One task sends one piece at a time. It keeps nothing: what is to be sent stands in the queue, how far it came the hub
//! knows, and every answer says where to go on. So a lost answer, a hub that starts anew and a daemon that is killed
//! between any two steps cost a repetition of one piece at most. The reports of the task's end wait in the queue until
//! the text is up (see the store's `uploads`); a hub that answers but does not take it gets them after a few tries, so
//! that nobody waits for ever for how a task ended.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::clock;
use super::http::{HttpError, HubHttp};
use super::link::LinkStatus;
use super::store::{Store, StoreError, Upload};
use crate::core::client::LinkState;
use crate::domain::{Code, EnvelopeId};

/// The wait after a failure; it doubles with each.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest such wait.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Failures of one upload after which its reports wait no more, if the hub answers at all.
const RELEASE_AFTER: u32 = 5;
/// How long an upload is tried, ms.
const KEPT_MS: i64 = 7 * 24 * 3_600_000;
/// Steps of one upload without one that brings it further, after which it has failed.
const STUCK_AFTER: u32 = 3;

/// Why an upload does not go on now.
#[derive(Debug)]
enum Stop {
    /// Never: the hub does not want it.
    Over(String),
    /// Later; whether the hub answered.
    Later { answered: bool, why: String },
    /// The queue cannot be read.
    Store(StoreError),
}

/// Uploads what waits, oldest first; runs until it is dropped.
///
/// # Cancel safety
/// May be dropped at any time: nothing is lost.
pub(crate) async fn run(store: Store, http: HubHttp, mut link: watch::Receiver<LinkStatus>) {
    let mut changed = store.version();
    let mut failures: BTreeMap<EnvelopeId, u32> = BTreeMap::new();
    loop {
        changed.borrow_and_update();
        let waiting = match store.uploads().await {
            Ok(waiting) => waiting,
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::error!(%error, "what is to be uploaded cannot be read");
                Vec::new()
            }
        };
        failures.retain(|id, _| waiting.iter().any(|u| u.envelope == *id));
        let mut failed = 0;
        for upload in waiting {
            let stop = match one(&store, &http, &upload).await {
                Ok(()) => continue,
                Err(stop) => stop,
            };
            if matches!(stop, Stop::Store(StoreError::Closed)) {
                return;
            }
            let n = failures.entry(upload.envelope).or_default();
            *n += 1;
            failed = failed.max(*n);
            if let Err(error) = told(&store, &upload, &stop, *n).await {
                tracing::error!(%error, "an upload's state cannot be kept");
            }
            if matches!(
                stop,
                Stop::Later {
                    answered: false,
                    ..
                }
            ) {
                // The hub is away for the others, too.
                break;
            }
        }
        let wait = AGAIN.saturating_mul(1 << failed.saturating_sub(1).min(10));
        let again = Instant::now() + wait.min(AGAIN_MAX);
        tokio::select! {
            gone = changed.changed() => if gone.is_err() { return },
            () = sleep_until(again), if failed > 0 => {}
            // A hub that is back is asked at once.
            () = synced(&mut link), if failed > 0 => {}
        }
    }
}

/// Waits until the link comes into sync anew.
async fn synced(link: &mut watch::Receiver<LinkStatus>) {
    let is = |s: &LinkStatus| s.state == LinkState::Synced.as_str();
    let away = link.wait_for(|s| !is(s)).await.is_ok();
    if !away || link.wait_for(is).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What follows from a stop.
async fn told(
    store: &Store,
    upload: &Upload,
    stop: &Stop,
    failures: u32,
) -> Result<(), StoreError> {
    let task = upload.task_id;
    let too_old = clock::wall().0.saturating_sub(upload.at.0) > KEPT_MS;
    match stop {
        Stop::Over(why) => {
            tracing::warn!(%task, why, "the hub does not take a result's whole text; its beginning is reported");
            store.end_upload(upload.envelope).await
        }
        Stop::Later { why, .. } if too_old => {
            tracing::warn!(%task, why, "a result's whole text is given up");
            store.end_upload(upload.envelope).await
        }
        Stop::Later { answered, why } => {
            tracing::info!(%task, why, failures, "a result's text will be uploaded later");
            if *answered && failures == RELEASE_AFTER {
                store.release_upload(upload.envelope).await?;
            }
            Ok(())
        }
        Stop::Store(error) => {
            tracing::error!(%task, %error, "a result's text cannot be read");
            Ok(())
        }
    }
}

/// Sends what the hub lacks of one text, then lets its reports go.
async fn one(store: &Store, http: &HubHttp, upload: &Upload) -> Result<(), Stop> {
    let id = upload.envelope;
    // Where it stands is known by asking alone.
    let mut at = put(http, upload, 0, "").await?;
    let mut stuck = 0;
    while !at.complete {
        let piece = store.upload_piece(id, at.received).await;
        let piece = piece.map_err(Stop::Store)?.ok_or_else(|| {
            let why = format!("it stands at {} of {}", at.received, upload.whole.bytes);
            Stop::Over(why)
        })?;
        let next = put(http, upload, at.received, &piece).await?;
        stuck = if next.received > at.received {
            0
        } else {
            stuck + 1
        };
        if stuck >= STUCK_AFTER && !next.complete {
            return Err(Stop::Later {
                answered: true,
                why: "the hub takes no piece of it".to_owned(),
            });
        }
        at = next;
    }
    tracing::debug!(task = %upload.task_id, bytes = upload.whole.bytes, "a result's text is at the hub");
    store.end_upload(id).await.map_err(Stop::Store)
}

async fn put(
    http: &HubHttp,
    upload: &Upload,
    offset: u64,
    piece: &str,
) -> Result<super::http::Received, Stop> {
    let error = match http.put_result(upload, offset, piece).await {
        Ok(received) => return Ok(received),
        Err(error) => error,
    };
    let why = error.to_string();
    Err(match &error {
        HttpError::Refused(problem) => match (problem.known_code(), problem.status) {
            (_, 400 | 403 | 409 | 413) | (Some(Code::UnknownTask), _) => Stop::Over(why),
            _ => Stop::Later {
                answered: true,
                why,
            },
        },
        // Something in between, or a hub of another version.
        HttpError::Edge(_) | HttpError::BadAnswer(_) => Stop::Later {
            answered: true,
            why,
        },
        _ => Stop::Later {
            answered: false,
            why,
        },
    })
}
