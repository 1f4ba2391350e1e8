//! `/tasks`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::json;

use super::super::body::{JsonBody, too_large};
use super::super::guard::Caller;
use super::super::once::{self, Answer, Effect, Once};
use super::super::problem::ApiResult;
use super::super::records::ItemKind;
use super::super::state::Hub;
use super::super::webhooks;
use super::Path;
use super::asked::TaskPost;
use super::items::{self, Common, Draft, new_id};
use super::views::TaskView;
use crate::auth::Scope;
use crate::domain::{EnvelopeId, RunOptions, TaskBody, Trust, limits};

/// Largest `metadata`, bytes as JSON.
const MAX_METADATA: usize = 16 << 10;

/// `POST /tasks` → 202 `{id, status, device, url}` once the task is durable.
pub(crate) async fn create(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    headers: HeaderMap,
    body: JsonBody,
) -> ApiResult<Answer> {
    caller.need(Scope::TasksWrite)?;
    caller.need_trust(Trust::Suggest)?;
    let key = Once::of(&caller, &headers, "POST /tasks", &body.sha256)?;
    let id = new_id();
    let answer = once::commit(&hub, key.as_ref(), draft(&hub, &caller, body, id)).await?;
    hub.took(id, &answer);
    Ok(answer)
}

/// The body, with every fault named.
fn asked(body: JsonBody) -> ApiResult<TaskPost> {
    let mut f = body.fields();
    let task = f.required_text("task");
    let common = Common::take(&mut f);
    let options: Option<RunOptions> = f.shaped("options");
    if let Some(RunOptions {
        max_budget_usd: Some(usd),
        ..
    }) = options
        && !(usd.is_finite() && usd > 0.0)
    {
        f.fault("options", "`max_budget_usd` must be a positive number");
    }
    let metadata = f.take("metadata");
    if metadata
        .as_ref()
        .is_some_and(|m| m.to_string().len() > MAX_METADATA)
    {
        f.fault(
            "metadata",
            format!("must be at most {MAX_METADATA} bytes of JSON"),
        );
    }
    f.finish()?;
    if task.len() > limits::MAX_TASK_BYTES {
        return Err(too_large("the task's text", limits::MAX_TASK_BYTES));
    }
    Ok(TaskPost {
        task,
        common,
        options,
        metadata,
    })
}

fn draft(hub: &Hub, caller: &Caller, body: JsonBody, id: EnvelopeId) -> ApiResult<Effect> {
    let TaskPost {
        task,
        common,
        options,
        metadata,
    } = asked(body)?;
    let options = options.unwrap_or_default();
    let timeout_s = options.timeout_s;
    let body = json!(TaskBody {
        task_id: id,
        task,
        options,
        metadata: metadata.clone(),
    });
    let kind = ItemKind::Task;
    let draft = Draft {
        kind,
        common,
        wake: true,
        metadata,
        body,
        id,
        timeout_s,
    };
    items::accept(hub, caller, draft)
}

/// `GET /tasks/{id}`.
pub(crate) async fn get(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Json<TaskView>> {
    caller.need(Scope::TasksRead)?;
    let item = items::one(&hub, &caller, ItemKind::Task, &id).await?;
    let mut view = TaskView::of(&item);
    view.common.callback = webhooks::view(&hub, &caller.account, &item).await?;
    Ok(Json(view))
}
