//! `/devices`, `/sessions`, `/projects`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::super::guard::Caller;
use super::super::problem::{ApiError, ApiResult};
use super::super::state::Hub;
use super::Path;
use super::views::{DevicePage, DeviceView, ProjectPage, ProjectView, SessionPage, SessionView};
use crate::auth::Scope;
use crate::domain::{AccountId, Code, DeviceId};

/// `GET /devices`.
pub(crate) async fn devices(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
) -> ApiResult<Json<DevicePage>> {
    caller.need_any()?;
    Ok(Json(device_page(&hub, &caller.account)))
}

/// The devices of an account.
pub(crate) fn device_page(hub: &Hub, account: &AccountId) -> DevicePage {
    let all = hub.directory.devices(account);
    DevicePage {
        devices: all.iter().map(|d| DeviceView::of(hub, d)).collect(),
        next: None,
    }
}

/// `DELETE /devices/{id}`: the device is revoked for good, its connection closed with 4403.
pub(crate) async fn revoke(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    caller.need(Scope::DevicesAdmin)?;
    revoke_device(&hub, &caller.account, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Revokes a device of this account; doing it twice is fine.
pub(crate) async fn revoke_device(hub: &Hub, account: &AccountId, id: &str) -> ApiResult<()> {
    let device = DeviceId::new(id)
        .ok()
        .and_then(|id| hub.directory.device(&id))
        .filter(|d| d.account == *account)
        .ok_or_else(|| {
            let shown: String = id.chars().take(100).collect();
            ApiError::new(Code::NotFound, format!("unknown device `{shown}`")).hint(
                "GET /devices, or `remote-collab hub devices list`, shows those that are enrolled",
            )
        })?;
    hub.revoke(&device).await?;
    Ok(())
}

/// `GET /sessions`.
pub(crate) async fn sessions(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
) -> ApiResult<Json<SessionPage>> {
    caller.need_any()?;
    let all = hub.directory.sessions(&caller.account);
    let all = all.into_iter().map(|s| SessionView::of(&hub, s));
    Ok(Json(SessionPage {
        sessions: all.collect(),
        next: None,
    }))
}

/// `GET /projects`.
pub(crate) async fn projects(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
) -> ApiResult<Json<ProjectPage>> {
    caller.need_any()?;
    let all = hub.directory.projects(&caller.account);
    let all = all.into_iter().map(|p| ProjectView::of(&hub, p));
    Ok(Json(ProjectPage {
        projects: all.collect(),
        next: None,
    }))
}
