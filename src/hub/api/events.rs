//! `/events` and `/tasks/{id}/events`: what happens, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};

use super::super::events::{Begin, Filter, Frame, Reader, Watching, has_more, open};
use super::super::guard::Caller;
use super::super::problem::{ApiError, ApiResult};
use super::super::records::ItemKind;
use super::super::state::Hub;
use super::Path;
use super::asked::{EventQuery, Names, PlaceQuery, names};
use super::items;
use super::{Params, RawQuery};
use crate::auth::Scope;
use crate::domain::{Code, EnvelopeId};
use crate::wire::event::Told;

static EVENT_PARAMS: Names = Names::new(names::<EventQuery>);
static PLACE_PARAMS: Names = Names::new(names::<PlaceQuery>);
/// When a reader comes back after its stream ended.
const RETRY: Duration = Duration::from_secs(2);
/// What `kinds` takes besides the types: all of one family.
const FAMILIES: &[&str] = &["task", "message"];

/// `GET /events?kinds=&device=&project=&task=&message=&after=`: what happens in the account.
pub(crate) async fn account(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    headers: HeaderMap,
    query: RawQuery,
) -> ApiResult<Response> {
    let p = Params::of(query, &EVENT_PARAMS)?;
    let kinds = p.words("kinds", &words())?;
    let task: Option<EnvelopeId> = p.get("task", "a task's id")?;
    let message: Option<EnvelopeId> = p.get("message", "a message's id")?;
    if task.is_some() && message.is_some() {
        return Err(ApiError::field("message", "cannot be given beside `task`"));
    }
    let sees = (
        caller.need(Scope::TasksRead).is_ok(),
        caller.need(Scope::MessagesRead).is_ok(),
    );
    if !sees.0 && !sees.1 {
        caller.need(Scope::TasksRead)?;
    }
    // What was asked for by name has to be allowed; all is all that is allowed.
    if task.is_some() || kinds.iter().any(|k| family(k) == "task") {
        caller.need(Scope::TasksRead)?;
    }
    if message.is_some() || kinds.iter().any(|k| family(k) == "message") {
        caller.need(Scope::MessagesRead)?;
    }
    let wanted = |t: &&'static str| {
        let may = if family(t) == "task" { sees.0 } else { sees.1 };
        may && (kinds.is_empty() || kinds.contains(t) || kinds.contains(&family(t)))
    };
    let filter = Filter {
        types: Told::TYPES.iter().copied().filter(wanted).collect(),
        device: p.get("device", "a device's id")?,
        project: p.get("project", "a project's name")?,
        about: task.or(message),
    };
    let begin = begin(&headers, &p)?;
    start(&hub, &caller, filter, None, sees, begin)
}

/// `GET /tasks/{id}/events?after=`: one task until its terminal status.
pub(crate) async fn task(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    query: RawQuery,
) -> ApiResult<Response> {
    caller.need(Scope::TasksRead)?;
    let p = Params::of(query, &PLACE_PARAMS)?;
    let begin = begin(&headers, &p)?;
    let item = items::one(&hub, &caller, ItemKind::Task, &id).await?;
    if let Begin::After(place) = begin
        && item.is_over()
        && !has_more(&hub.store, &caller.account, place, item.id).await?
    {
        // Tells an `EventSource` not to come back.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let filter = Filter {
        types: Told::TYPES.to_vec(),
        about: Some(item.id),
        ..Filter::default()
    };
    start(&hub, &caller, filter, Some(item.id), (true, false), begin)
}

/// What `kinds` takes.
pub(super) fn words() -> Vec<&'static str> {
    FAMILIES.iter().chain(Told::TYPES).copied().collect()
}

fn family(kind: &'static str) -> &'static str {
    kind.split('.').next().unwrap_or(kind)
}

fn begin(headers: &HeaderMap, p: &Params) -> ApiResult<Begin> {
    // The header is what a reader that comes back sends beside the URL it began with: the header is newer.
    if let Some(id) = headers.get("last-event-id").filter(|v| !v.is_empty()) {
        let place = id.to_str().ok().and_then(|s| s.parse().ok());
        return place.map(Begin::After).ok_or_else(|| {
            ApiError::field("Last-Event-ID", "must be the `id` of an event of this hub")
        });
    }
    match p.get::<String>("after", "text")?.as_deref() {
        None | Some("") => Ok(Begin::Now),
        Some("start") => Ok(Begin::Oldest),
        Some(id) => id.parse().map(Begin::After).map_err(|_| {
            ApiError::field(
                "after",
                "must be `start` or the `id` of an event of this hub",
            )
        }),
    }
}

fn start(
    hub: &Arc<Hub>,
    caller: &Caller,
    filter: Filter,
    task: Option<EnvelopeId>,
    sees: (bool, bool),
    begin: Begin,
) -> ApiResult<Response> {
    let token = caller.producer()?;
    let slot = hub.streams.enter(token.jti).ok_or_else(|| {
        ApiError::new(Code::RateLimited, "too many event streams are open")
            .hint("close some: one `GET /events` tells of all tasks and messages")
            .retry_after(10)
    })?;
    let watching = Watching {
        account: caller.account.clone(),
        filter,
        task,
        sees,
        token: token.jti,
        token_until: token.expires_at,
    };
    let reader = open(Arc::clone(hub), slot, watching, begin);
    Ok(response(reader))
}

fn response(reader: Reader) -> Response {
    let first = stream::once(async { Event::default().retry(RETRY) });
    let frames = stream::unfold(reader, |mut reader| async {
        let frame = reader.next().await?;
        Some((event(frame), reader))
    });
    let mut response = Sse::new(first.chain(frames).map(Ok::<_, Infallible>)).into_response();
    // A proxy that gathers would hold events back.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn event(frame: Frame) -> Event {
    let event = match frame.id {
        Some(id) => Event::default().id(id.to_string()),
        None => Event::default(),
    };
    match frame.body {
        Some((kind, data)) => event.event(kind).data(&*data),
        None => event.comment(""),
    }
}
