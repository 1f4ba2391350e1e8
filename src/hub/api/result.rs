//! `/tasks/{id}/result`: a result's whole text, up from its device in pieces, and down to whoever asks.
//!
//! The record of an upload says how much of which text is durable; a piece is taken only where that ends, in one commit
//! with the record, so that repetitions, pieces that overtake each other and two callers at once change nothing. With
//! the last piece the text is put together, compared with its hash and kept as one; the pieces go in the same commit.
//! Everything is bounded: the text, its pieces, the uploads that a device may have under way, and how many are put
//! together or sent at a time. What nobody goes on with is dropped by its keeping time.
//!
//! | key | record |
//! |---|---|
//! | `upload/<account>/<device>/<task>/<attempt>` | [`UploadRecord`] |
//! | `piece/<account>/<task>/<attempt>/<offset>` | a piece's text |
//! | `whole/<account>/<task>/<attempt>` | the whole text |
//! | `begun/<account>/<device>` | nothing: its version tells of each upload that begins |

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::body::{read, too_large};
use super::super::clock::wall;
use super::super::guard::Caller;
use super::super::mailbox::stored_item;
use super::super::once::Failed;
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{self, ItemKind, Record};
use super::super::state::Hub;
use super::super::store::{Commit, Expect, Op, Records, StoreError};
use super::asked::{Names, names};
use super::{Params, Path, RawQuery};
use crate::auth::Scope;
use crate::auth::crypto::sha256;
use crate::domain::limits::{FINISHED_KEPT_MS, MAX_RESULT_BYTES, RESULT_CHUNK_BYTES};
use crate::domain::{AccountId, Code, DeviceId, EnvelopeId, WallMs, WholeText};

/// Shortest piece but the last, bytes: so a text has at most 1,024 of them.
const MIN_PIECE: usize = 16 << 10;
/// Uploads that a device may have under way.
const MAX_PARTIAL: usize = 4;
/// Life of an upload after its last piece, ms.
const PARTIAL_KEPT_MS: i64 = 24 * 3600 * 1000;
/// Tries of a piece that another one meets.
const TRIES: usize = 8;

/// How much of a result's whole text is durable at the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct UploadView {
    /// Bytes: where the next piece begins.
    pub(crate) received: u64,
    /// Bytes of the whole.
    pub(crate) total: u64,
    /// Whether it is all there and its hash holds.
    pub(crate) complete: bool,
}

/// Which piece of which text.
#[derive(Debug, Clone, JsonSchema)]
pub(crate) struct PieceQuery {
    /// The attempt that the result is of.
    #[schemars(range(min = 1))]
    pub(crate) attempt: u32,
    /// Where the piece begins, bytes.
    pub(crate) offset: u64,
    /// The whole text's length, bytes.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub(crate) total: u64,
    /// The whole text's SHA-256, 64 lower-case hex digits.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub(crate) sha256: String,
}

/// Where an upload stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct UploadRecord {
    #[serde(flatten)]
    text: Text,
    received: u64,
    complete: bool,
}

impl Record for UploadRecord {}

/// Which text it is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Text {
    total: u64,
    sha256: String,
}

/// What a piece comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The text is there already.
    Complete,
    /// Another text is complete: this one will never be.
    Refused,
    /// The piece does not begin where the durable part ends; so much is there.
    Elsewhere(u64),
    /// It goes on, or begins: `anew` when another text's pieces have to go first.
    Take { anew: bool, last: bool },
}

/// Decides about a piece of `len` bytes at `offset` of `text`; `known` is the attempt's upload, if there is one.
fn step(known: Option<&UploadRecord>, text: &Text, offset: u64, len: u64) -> Step {
    let same = known.filter(|u| u.text == *text);
    match (known, same) {
        (_, Some(u)) if u.complete => return Step::Complete,
        (Some(u), None) if u.complete => return Step::Refused,
        _ => {}
    }
    let received = same.map_or(0, |u| u.received);
    if len == 0 || offset != received {
        return Step::Elsewhere(received);
    }
    Step::Take {
        anew: known.is_some() && same.is_none(),
        last: offset + len == text.total,
    }
}

/// The names of an attempt's records.
struct Keys {
    upload: String,
    pieces: String,
    whole: String,
}

impl Keys {
    fn of(account: &AccountId, device: &DeviceId, task: EnvelopeId, attempt: u32) -> Self {
        Self {
            upload: format!("{}{task}/{attempt}", uploads(account, device)),
            pieces: format!("piece/{account}/{task}/{attempt}/"),
            whole: format!("whole/{account}/{task}/{attempt}"),
        }
    }

    fn piece(&self, offset: u64) -> String {
        format!("{}{offset:010}", self.pieces)
    }
}

fn uploads(account: &AccountId, device: &DeviceId) -> String {
    format!("upload/{account}/{device}/")
}

/// Changes with each upload that the device begins.
fn begun(account: &AccountId, device: &DeviceId) -> String {
    format!("begun/{account}/{device}")
}

/// `PUT /tasks/{id}/result?attempt=&offset=&total=&sha256=`, by the task's device alone.
pub(crate) async fn put(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
    query: RawQuery,
    request: Request,
) -> ApiResult<Json<UploadView>> {
    let device = caller.device()?.id.clone();
    let asked = asked(query)?;
    let piece = piece(request, &asked).await?;
    let item = stored_item(&hub, ItemKind::Task, &caller.account, &id)
        .await?
        .item;
    let attempt = item.attempts.iter().find(|a| a.attempt == asked.attempt);
    let sent = attempt.filter(|a| item.was_sent(a.envelope, &device));
    let Some(attempt) = sent else {
        return Err(ApiError::new(
            Code::UnknownTask,
            format!("this device has no attempt {} of the task", asked.attempt),
        ));
    };
    if attempt.envelope != item.current() {
        return Err(
            ApiError::new(Code::Conflict, "a later attempt of the task exists")
                .hint("the result of an older one is not taken"),
        );
    }
    let keys = Keys::of(&caller.account, &device, item.id, asked.attempt);
    for _ in 0..TRIES {
        match take(&hub, &caller.account, &device, &keys, &asked, &piece).await {
            Err(Failed::Store(StoreError::Conflict { .. })) => {}
            Err(Failed::Store(e)) => return Err(e.into()),
            Err(Failed::Refused(e)) => return Err(e),
            Ok(view) => return Ok(Json(view)),
        }
    }
    Err(StoreError::Busy.into())
}

fn asked(query: RawQuery) -> ApiResult<PieceQuery> {
    static KNOWN: Names = Names::new(names::<PieceQuery>);
    let p = Params::of(query, &KNOWN)?;
    let missing = |name: &str| ApiError::field(name, "is required");
    let whole = "a whole number";
    let asked = PieceQuery {
        attempt: p.get("attempt", whole)?.ok_or_else(|| missing("attempt"))?,
        offset: p.get("offset", whole)?.ok_or_else(|| missing("offset"))?,
        total: p.get("total", whole)?.ok_or_else(|| missing("total"))?,
        sha256: p.get("sha256", "text")?.ok_or_else(|| missing("sha256"))?,
    };
    let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if asked.sha256.len() != 64 || !asked.sha256.bytes().all(hex) {
        return Err(ApiError::field(
            "sha256",
            "must be 64 lower-case hex digits",
        ));
    }
    if asked.total > MAX_RESULT_BYTES as u64 {
        return Err(too_large("the result", MAX_RESULT_BYTES));
    }
    if asked.total == 0 {
        return Err(ApiError::field("total", "must be at least 1"));
    }
    Ok(asked)
}

async fn piece(request: Request, asked: &PieceQuery) -> ApiResult<String> {
    let bytes = read(request).await?;
    if bytes.len() > RESULT_CHUNK_BYTES {
        return Err(too_large("the piece", RESULT_CHUNK_BYTES));
    }
    let end = asked.offset.saturating_add(bytes.len() as u64);
    if end > asked.total {
        return Err(ApiError::field(
            "offset",
            "the piece goes beyond the end of the text",
        ));
    }
    if !bytes.is_empty() && bytes.len() < MIN_PIECE && end < asked.total {
        return Err(ApiError::field(
            "",
            format!("a piece but the last has at least {MIN_PIECE} bytes"),
        ));
    }
    String::from_utf8(bytes)
        .map_err(|_| ApiError::field("", "must be UTF-8, cut between characters"))
}

async fn take(
    hub: &Hub,
    account: &AccountId,
    device: &DeviceId,
    keys: &Keys,
    asked: &PieceQuery,
    piece: &str,
) -> Result<UploadView, Failed> {
    let now = wall();
    let stored = hub.store.get(keys.upload.clone()).await?;
    let expect = stored
        .as_ref()
        .map_or(Expect::Absent, |s| Expect::Version(s.version));
    let alive = stored
        .as_ref()
        .filter(|s| s.keep_until.is_none_or(|t| t > now));
    let known: Option<UploadRecord> = alive.and_then(records::read);
    let text = Text {
        total: asked.total,
        sha256: asked.sha256.clone(),
    };
    let view = |received, complete| UploadView {
        received,
        total: asked.total,
        complete,
    };
    let (anew, last) = match step(known.as_ref(), &text, asked.offset, piece.len() as u64) {
        Step::Complete => return Ok(view(asked.total, true)),
        Step::Refused => {
            return Err(
                ApiError::new(Code::Conflict, "another text of this attempt is complete").into(),
            );
        }
        Step::Elsewhere(received) => return Ok(view(received, false)),
        Step::Take { anew, last } => (anew, last),
    };
    let begins = match known {
        None => Some(room(hub, account, device).await?),
        Some(_) => None,
    };
    // Pieces of another text, or of an upload whose time was over.
    let stale = anew || (known.is_none() && stored.is_some());
    let mut ops = Vec::new();
    if stale {
        for old in hub.store.list_all(&keys.pieces).await? {
            ops.push(delete(old.key));
        }
    }
    let received = asked.offset + piece.len() as u64;
    let mut record = UploadRecord {
        text,
        received,
        complete: false,
    };
    if !last {
        let until = now.plus(PARTIAL_KEPT_MS);
        ops.extend(begins.map(|expect| Op::Put {
            key: begun(account, device),
            value: String::new(),
            expect,
            keep_until: Some(until),
        }));
        ops.push(text_op(keys.piece(asked.offset), piece.to_owned(), until));
        ops.push(records::put(
            keys.upload.clone(),
            &record,
            expect,
            Some(until),
        ));
        hub.store.commit(ops).await?;
        return Ok(view(received, false));
    }
    let permit = hub.texts.acquire().await.map_err(|_| StoreError::Closed)?;
    let pieces = hub.store.list_all(&keys.pieces).await?;
    let pieces = if stale { Vec::new() } else { pieces };
    let mut whole = String::with_capacity(usize::try_from(asked.total).unwrap_or(0));
    for part in &pieces {
        whole.push_str(&part.value);
        ops.push(delete(part.key.clone()));
    }
    whole.push_str(piece);
    let holds = whole.len() as u64 == asked.total && hex(&sha256(whole.as_bytes())) == asked.sha256;
    if !holds {
        if known.is_some() {
            ops.push(Op::Delete {
                key: keys.upload.clone(),
                expect,
            });
        }
        if !ops.is_empty() {
            hub.store.commit(ops).await?;
        }
        let e = ApiError::field("sha256", "is not the hash of what was sent");
        return Err(e.hint("the upload is back at 0").into());
    }
    record.complete = true;
    let until = now.plus(FINISHED_KEPT_MS);
    ops.push(text_op(keys.whole.clone(), whole, until));
    ops.push(records::put(
        keys.upload.clone(),
        &record,
        expect,
        Some(until),
    ));
    hub.store.commit(ops).await?;
    drop(permit);
    Ok(view(asked.total, true))
}

/// Refuses a further upload of a device that has enough under way; else what [`begun`] has to be still when the upload
/// begins, so that of several that begin at once each is counted by the next.
async fn room(hub: &Hub, account: &AccountId, device: &DeviceId) -> Result<Expect, Failed> {
    let now = wall();
    let last = hub.store.get(begun(account, device)).await?;
    let expect = last.map_or(Expect::Absent, |s| Expect::Version(s.version));
    let mut partial = 0;
    for stored in hub.store.list_all(&uploads(account, device)).await? {
        let alive = stored.keep_until.is_none_or(|t| t > now);
        let open = records::read::<UploadRecord>(&stored).is_some_and(|u| !u.complete);
        partial += usize::from(alive && open);
    }
    if partial < MAX_PARTIAL {
        return Ok(expect);
    }
    Err(ApiError::new(
        Code::RateLimited,
        format!("this device has {MAX_PARTIAL} uploads under way"),
    )
    .hint("finish one of them first")
    .retry_after(60)
    .into())
}

fn text_op(key: String, value: String, until: WallMs) -> Op {
    Op::Put {
        key,
        value,
        expect: Expect::Any,
        keep_until: Some(until),
    }
}

fn delete(key: String) -> Op {
    Op::Delete {
        key,
        expect: Expect::Any,
    }
}

/// `GET /tasks/{id}/result`: the whole text.
pub(crate) async fn get(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    caller.need(Scope::TasksRead)?;
    let item = stored_item(&hub, ItemKind::Task, &caller.account, &id)
        .await?
        .item;
    let Some(result) = &item.result else {
        return Err(ApiError::new(Code::NotFound, "the task has no result yet")
            .hint("GET /tasks/{id} says where it stands"));
    };
    let Some(named) = &result.whole else {
        return Ok(plain(result.text.clone()));
    };
    let attempt = item.attempts.last().map_or(1, |a| a.attempt);
    let keys = Keys::of(&caller.account, &item.device, item.id, attempt);
    let _permit = hub.texts.acquire().await.map_err(|_| StoreError::Closed)?;
    let found = hub
        .store
        .get_many(vec![keys.upload.clone(), keys.whole.clone()])
        .await?;
    let upload = found.iter().find(|s| s.key == keys.upload);
    let upload = upload.and_then(records::read::<UploadRecord>);
    let is_it = |u: &UploadRecord, w: &WholeText| u.complete && u.text.sha256 == w.sha256;
    let whole = found.into_iter().find(|s| s.key == keys.whole);
    match whole.filter(|_| upload.is_some_and(|u| is_it(&u, named))) {
        Some(whole) => Ok(plain(whole.value)),
        None => Err(
            ApiError::new(Code::NotFound, "the result's whole text is not here (yet)")
                .hint("its device uploads it when it is connected; GET /tasks/{id} shows its beginning")
                .retry_after(5),
        ),
    }
}

/// A text that no browser takes for anything else.
fn plain(text: String) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut s, b| {
        // Writing to a string cannot fail.
        let _infallible = write!(s, "{b:02x}").is_ok();
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(sha256: &str) -> Text {
        Text {
            total: 100,
            sha256: sha256.into(),
        }
    }

    fn at(received: u64, complete: bool) -> UploadRecord {
        UploadRecord {
            text: text("a"),
            received,
            complete,
        }
    }

    #[test]
    fn a_piece_is_taken_only_where_the_durable_part_ends() {
        let take = |anew, last| Step::Take { anew, last };
        assert_eq!(step(None, &text("a"), 0, 40), take(false, false));
        assert_eq!(step(None, &text("a"), 0, 100), take(false, true));
        assert_eq!(step(None, &text("a"), 40, 40), Step::Elsewhere(0));
        assert_eq!(step(None, &text("a"), 0, 0), Step::Elsewhere(0));
        let known = at(40, false);
        assert_eq!(step(Some(&known), &text("a"), 40, 60), take(false, true));
        assert_eq!(step(Some(&known), &text("a"), 0, 40), Step::Elsewhere(40));
        assert_eq!(step(Some(&known), &text("a"), 80, 20), Step::Elsewhere(40));
        assert_eq!(step(Some(&known), &text("b"), 0, 40), take(true, false));
    }

    #[test]
    fn what_is_complete_stays() {
        let done = at(100, true);
        assert_eq!(step(Some(&done), &text("a"), 0, 40), Step::Complete);
        assert_eq!(step(Some(&done), &text("b"), 0, 40), Step::Refused);
    }
}
