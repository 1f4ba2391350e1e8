//! `/memory/{session}` and its index.
//!
//! A session asks with its own id, and `?project=` when it knows its project. The answer is the first of these that
//! exists; its `session_id` tells whose it is:
//!
//! 1. the session's own memory,
//! 2. the newest memory of its lineage (`/clear`, compaction, resume and fork change the id, not the work),
//! 3. the newest memory of its project.
//!
//! An index is answered by the same order.
//!
//! The ETag covers the whole answer, so that a reader that has it is answered 304.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::body::{Fields, JsonBody, too_large};
use super::super::clock::wall;
use super::super::guard::Caller;
use super::super::once::{self, Answer, Effect, Once};
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{self, IndexRecord, MemoryRecord, put};
use super::super::state::Hub;
use super::super::store::{Commit, Expect, Records};
use super::asked::{IndexPut, MemoryPost, Names, ProjectQuery, names};
use super::{Params, Path, RawQuery};
use crate::auth::Scope;
use crate::auth::crypto::sha256;
use crate::domain::limits::MAX_ENVELOPE_BYTES;
use crate::domain::{AccountId, Code, ProjectName, SessionId, WallMs};

/// Entries of one list in a memory or an index.
const MAX_ENTRIES: usize = 10_000;

fn memory_key(account: &AccountId, session: SessionId) -> String {
    format!("memory/{account}/{session}")
}

fn project_key(account: &AccountId, project: &ProjectName) -> String {
    format!("memory-project/{account}/{project}")
}

fn index_key(account: &AccountId, session: SessionId) -> String {
    format!("index/{account}/{session}")
}

fn project_index_key(account: &AccountId, project: &ProjectName) -> String {
    format!("index-project/{account}/{project}")
}

fn project_of(query: RawQuery) -> ApiResult<Option<ProjectName>> {
    static KNOWN: Names = Names::new(names::<ProjectQuery>);
    Params::of(query, &KNOWN)?.get("project", "a project's name")
}

fn session_of(path: &str) -> ApiResult<SessionId> {
    path.parse()
        .map_err(|e| ApiError::field("session", format!("{e}")))
}

/// Where records of one kind stand, and when one was written.
struct Place<R> {
    of_session: fn(&AccountId, SessionId) -> String,
    of_project: fn(&AccountId, &ProjectName) -> String,
    updated_at: fn(&R) -> WallMs,
}

const MEMORY: Place<MemoryRecord> = Place {
    of_session: memory_key,
    of_project: project_key,
    updated_at: |m| m.updated_at,
};

const INDEX: Place<IndexRecord> = Place {
    of_session: index_key,
    of_project: project_index_key,
    updated_at: |i| i.updated_at,
};

/// The record of a session: its own, else the newest of its lineage, else that of its project.
async fn nearest<R: DeserializeOwned>(
    hub: &Hub,
    account: &AccountId,
    session: SessionId,
    asked: Option<ProjectName>,
    place: &Place<R>,
) -> ApiResult<Option<R>> {
    let known = hub.directory.session(account, session);
    let mut relatives = vec![session];
    if let Some(s) = &known {
        relatives.push(s.info.session_id);
        relatives.extend(s.info.lineage.iter().rev());
    }
    let own = (place.of_session)(account, session);
    let keys = relatives
        .iter()
        .map(|s| (place.of_session)(account, *s))
        .collect();
    let found = hub.store.get_many(keys).await?;
    let near = match found.iter().find(|s| s.key == own) {
        Some(stored) => records::read(stored),
        None => found
            .iter()
            .filter_map(records::read)
            .max_by_key(place.updated_at),
    };
    if near.is_some() {
        return Ok(near);
    }
    let Some(project) = asked.or_else(|| known.and_then(|s| s.info.project)) else {
        return Ok(None);
    };
    let stored = hub.store.get((place.of_project)(account, &project)).await?;
    Ok(stored.as_ref().and_then(records::read))
}

/// `GET /memory/{session}?project=`.
pub(crate) async fn get(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(session): Path<String>,
    headers: HeaderMap,
    query: RawQuery,
) -> ApiResult<Response> {
    caller.need(Scope::MemoryRead)?;
    let session = session_of(&session)?;
    let asked = project_of(query)?;
    let memory: Option<MemoryRecord> =
        nearest(&hub, &caller.account, session, asked, &MEMORY).await?;
    let memory = memory.ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("nothing is remembered for session `{session}`"),
        )
        .hint("POST /memory/{session} writes it")
    })?;
    Ok(tagged(&headers, &json!(memory)))
}

/// `POST /memory/{session}` `{summary, context[], project?}`: replaces the session's memory.
pub(crate) async fn post(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(session): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> ApiResult<Answer> {
    caller.need(Scope::MemoryWrite)?;
    let session = session_of(&session)?;
    let call = format!("POST /memory/{session}");
    let key = Once::of(&caller, &headers, &call, &body.sha256)?;
    let effect = remember(&hub, &caller.account, session, body);
    once::commit(&hub, key.as_ref(), effect).await
}

/// The body, with every fault named.
fn memory_asked(body: JsonBody) -> ApiResult<MemoryPost> {
    let mut f = body.fields();
    let post = MemoryPost {
        summary: f.text("summary"),
        context: entries(&mut f, "context"),
        project: f.shaped("project"),
    };
    let says = post.summary.as_ref().is_some_and(|s| !s.is_empty())
        || post.context.as_ref().is_some_and(|c| !c.is_empty());
    if !says {
        f.fault("summary", "is required unless `context` says something");
    }
    f.finish()?;
    Ok(post)
}

fn index_asked(body: JsonBody) -> ApiResult<IndexPut> {
    let mut f = body.fields();
    let put = IndexPut {
        files: entries(&mut f, "files"),
        symbols: entries(&mut f, "symbols"),
        recent_changes: entries(&mut f, "recent_changes"),
    };
    f.finish()?;
    Ok(put)
}

fn entries(f: &mut Fields, name: &str) -> Option<Vec<Value>> {
    let list = f.array(name);
    if list.as_ref().is_some_and(|l| l.len() > MAX_ENTRIES) {
        f.fault(name, format!("must have at most {MAX_ENTRIES} entries"));
    }
    list
}

fn remember(
    hub: &Hub,
    account: &AccountId,
    session: SessionId,
    body: JsonBody,
) -> ApiResult<Effect> {
    let MemoryPost {
        summary,
        context,
        project,
    } = memory_asked(body)?;
    let known = hub.directory.session(account, session);
    let memory = MemoryRecord {
        session_id: session,
        project: project.or_else(|| known.and_then(|s| s.info.project)),
        summary: summary.unwrap_or_default(),
        context: context.unwrap_or_default(),
        updated_at: wall(),
    };
    let text = records::text(&memory);
    if text.len() > MAX_ENVELOPE_BYTES {
        return Err(too_large("the memory", MAX_ENVELOPE_BYTES));
    }
    let mut ops = vec![put(
        memory_key(account, session),
        &memory,
        Expect::Any,
        None,
    )];
    if let Some(project) = &memory.project {
        ops.push(put(
            project_key(account, project),
            &memory,
            Expect::Any,
            None,
        ));
    }
    Ok(Effect {
        ops,
        answer: Answer {
            status: StatusCode::OK,
            location: None,
            body: json!(memory),
        },
    })
}

/// `GET /memory/{session}/index?project=`.
pub(crate) async fn get_index(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(session): Path<String>,
    headers: HeaderMap,
    query: RawQuery,
) -> ApiResult<Response> {
    caller.need(Scope::MemoryRead)?;
    let session = session_of(&session)?;
    let asked = project_of(query)?;
    let index: Option<IndexRecord> = nearest(&hub, &caller.account, session, asked, &INDEX).await?;
    let index = index.ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("no index of session `{session}` is known"),
        )
        .hint("PUT /memory/{session}/index writes it")
    })?;
    Ok(tagged(&headers, &json!(index)))
}

/// `PUT /memory/{session}/index?project=` `{files[], symbols[], recent_changes[]}`: replaces it.
pub(crate) async fn put_index(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(session): Path<String>,
    query: RawQuery,
    body: JsonBody,
) -> ApiResult<StatusCode> {
    caller.need(Scope::MemoryWrite)?;
    let session = session_of(&session)?;
    let asked = project_of(query)?;
    let IndexPut {
        files,
        symbols,
        recent_changes,
    } = index_asked(body)?;
    let index = IndexRecord {
        files: files.unwrap_or_default(),
        symbols: symbols.unwrap_or_default(),
        recent_changes: recent_changes.unwrap_or_default(),
        updated_at: wall(),
    };
    if records::text(&index).len() > MAX_ENVELOPE_BYTES {
        return Err(too_large("the index", MAX_ENVELOPE_BYTES));
    }
    let account = &caller.account;
    let known = hub.directory.session(account, session);
    let mut ops = vec![put(index_key(account, session), &index, Expect::Any, None)];
    if let Some(project) = asked.or_else(|| known.and_then(|s| s.info.project)) {
        let key = project_index_key(account, &project);
        ops.push(put(key, &index, Expect::Any, None));
    }
    hub.store.commit(ops).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The answer with its ETag, or 304 for a reader that has it.
pub(crate) fn tagged(headers: &HeaderMap, body: &Value) -> Response {
    let tag = format!(
        "\"{}\"",
        URL_SAFE_NO_PAD.encode(&sha256(body.to_string().as_bytes())[..16])
    );
    let same = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| {
            v.split(',')
                .any(|t| t.trim().trim_start_matches("W/") == tag)
        });
    let mut response = if same {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Json(body).into_response()
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
