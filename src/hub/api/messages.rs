//! `/messages`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::json;

use super::super::body::JsonBody;
use super::super::guard::Caller;
use super::super::once::{self, Answer, Effect, Once};
use super::super::problem::ApiResult;
use super::super::records::ItemKind;
use super::super::state::Hub;
use super::super::webhooks;
use super::Path;
use super::asked::MessagePost;
use super::items::{self, Common, Draft, new_id};
use super::views::MessageView;
use crate::auth::Scope;
use crate::domain::MessageBody;

/// `POST /messages` → 202 `{id, status, device, url}` once the message is durable; `wake` is false unless asked for.
pub(crate) async fn create(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    headers: HeaderMap,
    body: JsonBody,
) -> ApiResult<Answer> {
    caller.need(Scope::MessagesWrite)?;
    let key = Once::of(&caller, &headers, "POST /messages", &body.sha256)?;
    once::commit(&hub, key.as_ref(), draft(&hub, &caller, body)).await
}

/// The body, with every fault named.
fn asked(body: JsonBody) -> ApiResult<MessagePost> {
    let mut f = body.fields();
    let post = MessagePost {
        content: f.required_text("content"),
        common: Common::take(&mut f),
        wake: f.flag("wake"),
    };
    f.finish()?;
    Ok(post)
}

fn draft(hub: &Hub, caller: &Caller, body: JsonBody) -> ApiResult<Effect> {
    let MessagePost {
        content,
        common,
        wake,
    } = asked(body)?;
    let wake = wake.unwrap_or(false);
    let draft = Draft {
        kind: ItemKind::Message,
        common,
        wake,
        metadata: None,
        body: json!(MessageBody { content }),
        id: new_id(),
        timeout_s: None,
    };
    items::accept(hub, caller, draft)
}

/// `GET /messages/{id}`.
pub(crate) async fn get(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Json<MessageView>> {
    caller.need(Scope::MessagesRead)?;
    let item = items::one(&hub, &caller, ItemKind::Message, &id).await?;
    let mut view = MessageView::of(&item);
    view.common.callback = webhooks::view(&hub, &caller.account, &item).await?;
    Ok(Json(view))
}
