//! `/devices`, `/sessions`, `/projects`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::super::guard::Caller;
use super::super::problem::{ApiError, ApiResult};
use super::super::records::DeviceRecord;
use super::super::state::Hub;
use crate::auth::Scope;
use crate::domain::{AccountId, Code, DeviceId};

/// A device as it is shown.
pub(crate) fn device_view(hub: &Hub, d: &DeviceRecord) -> Value {
    let presence = hub.presence.of(&d.id);
    json!({
        "id": d.id, "name": d.name, "os": d.os, "build": d.build, "claude_version": d.claude_version,
        "enrolled_at": d.enrolled_at, "last_seen": d.last_seen, "revoked_at": d.revoked_at,
        "online": presence.is_some(), "synced": presence.is_some_and(|(_, synced)| synced),
        "capacity": presence.map(|(free, _)| free),
    })
}

/// `GET /devices`.
pub(crate) async fn devices(State(hub): State<Arc<Hub>>, caller: Caller) -> ApiResult<Json<Value>> {
    caller.need_any()?;
    let all: Vec<Value> = hub
        .directory
        .devices(&caller.account)
        .iter()
        .map(|d| device_view(&hub, d))
        .collect();
    Ok(Json(json!({ "devices": all })))
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
) -> ApiResult<Json<Value>> {
    caller.need_any()?;
    let mut all = hub.directory.sessions(&caller.account);
    all.sort_by_key(|s| std::cmp::Reverse(s.info.active_at));
    all.truncate(1000);
    let all: Vec<Value> = all
        .iter()
        .map(|s| {
            let mut v = json!(s);
            v["online"] = json!(hub.presence.is_online(&s.device));
            v
        })
        .collect();
    Ok(Json(json!({ "sessions": all })))
}

/// `GET /projects`.
pub(crate) async fn projects(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
) -> ApiResult<Json<Value>> {
    caller.need_any()?;
    let all: Vec<Value> = hub
        .directory
        .projects(&caller.account)
        .iter()
        .map(|p| {
            let mut v = json!(p);
            v["online"] = json!(hub.presence.is_online(&p.device));
            v
        })
        .collect();
    Ok(Json(json!({ "projects": all })))
}
