//! `POST /control/…`: what only a person may do.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use super::body::{ApiError, ApiResult, JsonBody};
use super::person::need_person;
use super::{Api, Peer};
use crate::daemon::clock;
use crate::daemon::projects::{Project, ProjectsError};
use crate::daemon::store::NewReport;
use crate::domain::{Code, ProjectName, ReportBody};

/// How long a caller waits for the hub to know a change.
const HUB_KNOWS: Duration = Duration::from_secs(5);
/// How long a caller waits for the link to come up or fail.
const LINK_TELLS: Duration = Duration::from_secs(12);

#[derive(Debug, Default, Deserialize)]
pub(super) struct Which {
    path: Option<String>,
    name: Option<ProjectName>,
    /// With `connect`: move the device here.
    #[serde(default)]
    take_over: bool,
}

pub(super) async fn control(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(verb): Path<String>,
    JsonBody(which): JsonBody<Which>,
) -> ApiResult {
    need_person(&api, peer).await?;
    let answer = match verb.as_str() {
        "enable" => enable(&api, which).await?,
        "disable" => disable(&api, which).await?,
        "connect" => {
            let take_over = which.take_over;
            api.link.reconnect(take_over).await;
            link(&api, |s| {
                let under_way = s.state == "HANDSHAKE" && !take_over;
                s.is_synced() || s.code.is_some() || s.retry_at.is_some() || under_way
            })
            .await
        }
        "disconnect" => {
            api.link.disconnect().await;
            link(&api, |s| s.state == "DISCONNECTED").await
        }
        "pause" | "resume" => {
            api.control.set_paused(verb == "pause").await?;
            json!({ "paused": api.control.is_paused() })
        }
        "sync-memory" => api.control.sync_memory().await?,
        _ => {
            return Err(
                ApiError::new(Code::NotFound, format!("no control `{verb}`"))
                    .hint("enable, disable, connect, disconnect, pause, resume, sync-memory"),
            );
        }
    };
    Ok(Json(answer))
}

async fn link(api: &Api, done: impl Fn(&crate::daemon::link::LinkStatus) -> bool) -> Value {
    let mut status = api.link.status();
    // Whatever it is by then is the answer.
    let settled = timeout(LINK_TELLS, status.wait_for(|s| done(s))).await;
    drop(settled);
    json!({ "link": *api.link.status().borrow() })
}

fn list_failed(error: &ProjectsError) -> ApiError {
    let code = match error {
        ProjectsError::Folder { .. } => Code::InvalidField,
        ProjectsError::NameTaken { .. } => Code::Conflict,
        ProjectsError::Io { .. } | ProjectsError::Damaged { .. } | ProjectsError::Lock(_) => {
            Code::StoreUnavailable
        }
    };
    ApiError::new(code, error.to_string())
}

async fn enable(api: &Api, which: Which) -> Result<Value, ApiError> {
    let path = which
        .path
        .ok_or_else(|| ApiError::new(Code::InvalidField, "`path` is required"))?;
    let (projects, now) = (api.projects.clone(), clock::wall());
    let enabled = blocking(move || projects.enable(path.as_ref(), which.name, now)).await?;
    let (project, _) = enabled.map_err(|e| list_failed(&e))?;
    let hub = tell(api).await?;
    Ok(json!({ "project": project.name, "path": project.path, "hub": hub }))
}

async fn disable(api: &Api, which: Which) -> Result<Value, ApiError> {
    let named = which.path.or(which.name.map(String::from));
    let named =
        named.ok_or_else(|| ApiError::new(Code::InvalidField, "`path` or `name` is required"))?;
    let projects = api.projects.clone();
    let disabled = blocking(move || projects.disable(&named)).await?;
    let project = disabled.map_err(|e| list_failed(&e))?;
    let hub = tell(api).await?;
    Ok(json!({ "project": project.map(|p| p.name), "hub": hub }))
}

async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(|e| ApiError::new(Code::Internal, e.to_string()))
}

/// Reports what changed in the list since the hub was told last; `known` once the hub has it, else `pending`.
async fn tell(api: &Api) -> Result<&'static str, ApiError> {
    let projects = api.projects.clone();
    let listed = blocking(move || projects.list()).await?;
    let listed = listed.map_err(|e| list_failed(&e))?;
    let reports = {
        let mut told = api.told.lock().await;
        let reports = differences(&told, &listed);
        if !reports.is_empty() {
            api.store.append(reports.clone()).await?;
            *told = listed;
        }
        reports
    };
    let last = *api.store.outbox().borrow() - 1;
    if !reports.is_empty() {
        api.control.projects_changed();
    }
    let mut confirmed = api.store.confirmed();
    let empty = api.store.reports_after(0, 1).await?.is_empty();
    if empty && api.link.status().borrow().is_synced() {
        return Ok("known");
    }
    if !api.link.status().borrow().is_synced() {
        return Ok("pending");
    }
    let known = timeout(HUB_KNOWS, confirmed.wait_for(|n| *n >= last)).await;
    Ok(if matches!(known, Ok(Ok(_))) {
        "known"
    } else {
        "pending"
    })
}

fn differences(told: &[Project], listed: &[Project]) -> Vec<NewReport> {
    let report = |project: &Project, enabled| {
        let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, project.name.as_str().as_bytes());
        NewReport::new(
            id,
            clock::wall(),
            ReportBody::Project(project.info(enabled)),
        )
    };
    let gone = told
        .iter()
        .filter(|p| !listed.iter().any(|q| q.name == p.name));
    let new = listed.iter().filter(|p| !told.contains(p));
    gone.map(|p| report(p, false))
        .chain(new.map(|p| report(p, true)))
        .collect()
}
