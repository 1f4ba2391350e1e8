//! `GET /tasks` and `GET /messages`: filtered, in pages, right under writes.
//!
//! One call looks at a bounded number of records and bytes. A filter that matches little therefore gives short pages,
//! even empty ones, with a `next` to go on from; only `next: null` is the end. See [`super::cursor`] for what a walk
//! promises.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use uuid::Uuid;

use super::super::guard::Caller;
use super::super::problem::ApiResult;
use super::super::records::{self, ItemKind, ItemRecord};
use super::super::state::Hub;
use super::super::store::Records;
use super::asked::{MessageQuery, Names, TaskQuery, names};
use super::cursor::Walk;
use super::items::status;
use super::views::{MessagePage, MessageView, TaskPage, TaskView};
use super::{Params, RawQuery};
use crate::auth::Scope;
use crate::domain::{AccountId, EnvelopeId, SessionId, TaskStatus, WallMs};

/// Records and bytes that one call looks at.
const MAX_SCANNED: usize = 2_000;
const MAX_BYTES: usize = 8 << 20;
/// Records that one read takes from the store.
const CHUNK: u32 = 100;
/// How far an item's id and its `created_at`, both of the hub's clock, may lie apart.
const SLACK_MS: i64 = 5 * 60 * 1000;

static TASK_PARAMS: Names = Names::new(names::<TaskQuery>);
static MESSAGE_PARAMS: Names = Names::new(names::<MessageQuery>);
/// How far a message can have come.
pub(super) const STAGES: &[&str] = &[
    "accepted",
    "on_device",
    "held",
    "claimed",
    "handed_over",
    "seen",
    "done",
    "expired",
    "cancelled",
    "undeliverable",
    "unsupported",
];

/// Which items a list shows.
#[derive(Debug, Clone, PartialEq, Default)]
struct Filter {
    /// Any of these; empty for all.
    status: Vec<&'static str>,
    device: Option<String>,
    project: Option<String>,
    session: Option<SessionId>,
    from: Option<String>,
    attempt: Option<u32>,
    /// Created then or later.
    after: Option<WallMs>,
    /// Created before then.
    before: Option<WallMs>,
    oldest_first: bool,
}

impl Filter {
    fn of(p: &Params, kind: ItemKind) -> ApiResult<Self> {
        const TIME: &str = "a time in Unix milliseconds";
        let statuses: Vec<&str> = match kind {
            ItemKind::Task => TaskStatus::ALL.iter().map(|s| s.as_str()).collect(),
            ItemKind::Message => STAGES.to_vec(),
        };
        Ok(Self {
            status: p.words("status", &statuses)?,
            device: p.get("device", "text")?,
            project: p.get("project", "text")?,
            session: p.get("session_id", "a session's UUID")?,
            from: p.get("from", "text")?,
            attempt: p.get("attempt", "a whole number from 1")?,
            after: p.get("created_after", TIME)?.map(WallMs),
            before: p.get("created_before", TIME)?.map(WallMs),
            oldest_first: p
                .word("order", &[("newest", false), ("oldest", true)])?
                .unwrap_or_default(),
        })
    }

    /// The same text for the same filters, whatever their order in the request.
    fn canonical(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _infallible = write!(text, "{self:?}").is_ok();
        text
    }

    fn fits(&self, item: &ItemRecord) -> bool {
        fn is<T: ?Sized + PartialEq>(want: Option<&T>, has: Option<&T>) -> bool {
            want.is_none_or(|w| has == Some(w))
        }
        (self.status.is_empty() || self.status.contains(&&*status(item)))
            && is(self.device.as_deref(), Some(item.device.as_str()))
            && is(
                self.project.as_deref(),
                item.to.project.as_ref().map(|p| p.as_str()),
            )
            && is(self.from.as_deref(), Some(&*item.from.name))
            && is(
                self.attempt.as_ref(),
                item.attempts.last().map(|a| &a.attempt),
            )
            && self.session.is_none_or(|s| {
                item.to.session_id == Some(s)
                    || item
                        .result
                        .as_ref()
                        .is_some_and(|r| r.session_id == Some(s))
            })
            && self.after.is_none_or(|t| item.created_at >= t)
            && self.before.is_none_or(|t| item.created_at < t)
    }

    /// The id that a walk begins behind when it has no cursor: ids begin with their time.
    fn begin(&self) -> Option<EnvelopeId> {
        let at = if self.oldest_first {
            self.after?.plus(-SLACK_MS)
        } else {
            self.before?.plus(SLACK_MS)
        };
        let ms = u128::try_from(at.0).ok().filter(|ms| *ms < 1 << 48)?;
        Some(EnvelopeId(Uuid::from_u128(ms << 80)))
    }

    /// Whether no item behind this id can fit any more.
    fn is_past(&self, id: EnvelopeId) -> bool {
        let ms = WallMs(i64::try_from(id.0.as_u128() >> 80).unwrap_or(i64::MAX));
        if self.oldest_first {
            self.before.is_some_and(|t| ms >= t.plus(SLACK_MS))
        } else {
            self.after.is_some_and(|t| ms < t.plus(-SLACK_MS))
        }
    }
}

/// `GET /tasks?status=&device=&project=&session_id=&from=&attempt=&created_after=&created_before=&order=&cursor=&limit=`.
pub(crate) async fn tasks(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: RawQuery,
) -> ApiResult<Json<TaskPage>> {
    caller.need(Scope::TasksRead)?;
    let p = Params::of(query, &TASK_PARAMS)?;
    let (found, next) = list(&hub, &caller, ItemKind::Task, &p).await?;
    Ok(Json(TaskPage {
        tasks: found.iter().map(TaskView::of).collect(),
        next,
    }))
}

/// `GET /messages?status=&device=&project=&session_id=&from=&created_after=&created_before=&order=&cursor=&limit=`.
pub(crate) async fn messages(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: RawQuery,
) -> ApiResult<Json<MessagePage>> {
    caller.need(Scope::MessagesRead)?;
    let p = Params::of(query, &MESSAGE_PARAMS)?;
    let (found, next) = list(&hub, &caller, ItemKind::Message, &p).await?;
    Ok(Json(MessagePage {
        messages: found.iter().map(MessageView::of).collect(),
        next,
    }))
}

async fn list(
    hub: &Hub,
    caller: &Caller,
    kind: ItemKind,
    p: &Params,
) -> ApiResult<(Vec<ItemRecord>, Option<String>)> {
    let filter = Filter::of(p, kind)?;
    let limit = p.limit()?;
    let list = match kind {
        ItemKind::Task => "tasks",
        ItemKind::Message => "messages",
    };
    let walk = Walk::of(hub, caller, list, &filter.canonical());
    let from = walk.read(p)?;
    let (found, last) = page(&hub.store, &caller.account, kind, &filter, from, limit).await?;
    Ok((found, last.map(|id| walk.cursor(&id))))
}

/// The items behind `from`, and the id to go on behind; `None` at the end.
async fn page(
    store: &impl Records,
    account: &AccountId,
    kind: ItemKind,
    filter: &Filter,
    from: Option<String>,
    limit: usize,
) -> ApiResult<(Vec<ItemRecord>, Option<String>)> {
    let prefix = kind.prefix(account);
    let begin = from.or_else(|| filter.begin().map(|id| id.to_string()));
    let mut from = begin.map(|id| format!("{prefix}{id}"));
    let (mut found, mut scanned, mut bytes) = (Vec::new(), 0, 0);
    loop {
        let chunk = store
            .list(&prefix, from.take(), CHUNK, !filter.oldest_first)
            .await?;
        let full = chunk.len() == CHUNK as usize;
        for stored in &chunk {
            let id = stored.key.strip_prefix(&prefix).unwrap_or_default();
            if id.parse().is_ok_and(|id| filter.is_past(id)) {
                return Ok((found, None));
            }
            scanned += 1;
            bytes += stored.value.len();
            found.extend(records::read(stored).filter(|item| filter.fits(item)));
            if found.len() == limit || scanned == MAX_SCANNED || bytes >= MAX_BYTES {
                return Ok((found, Some(id.to_owned())));
            }
        }
        if !full {
            return Ok((found, None));
        }
        from = chunk.last().map(|s| s.key.clone());
    }
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
