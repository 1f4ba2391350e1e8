//! `/devices`, `/sessions`, `/projects`: filtered, in pages, by keys that do not change.

use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::super::guard::Caller;
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{DeviceRecord, ProjectRecord, SessionRecord};
use super::super::state::Hub;
use super::asked::{self, names};
use super::cursor::Walk;
use super::views::{DevicePage, DeviceView, ProjectPage, ProjectView, SessionPage, SessionView};
use super::{Params, Path, RawQuery};
use crate::auth::Scope;
use crate::domain::{AccountId, Activity, Code, DeviceId, WallMs};

static DEVICE_PARAMS: asked::Names = LazyLock::new(names::<asked::DeviceQuery>);
static SESSION_PARAMS: asked::Names = LazyLock::new(names::<asked::SessionQuery>);
static PROJECT_PARAMS: asked::Names = LazyLock::new(names::<asked::ProjectsQuery>);

const YES_NO: &[(&str, bool)] = &[("true", true), ("false", false)];
/// What a session can be doing, in words.
const ACTIVITIES: [(&str, Activity); 5] = [
    ("busy", Activity::Busy),
    ("idle", Activity::Idle),
    ("waiting", Activity::Waiting),
    ("unknown", Activity::Unknown),
    ("closed", Activity::Closed),
];

/// `GET /devices?online=&revoked=&cursor=&limit=`.
pub(crate) async fn devices(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: RawQuery,
) -> ApiResult<Json<DevicePage>> {
    caller.need_any()?;
    let p = Params::of(query, &DEVICE_PARAMS)?;
    let (online, revoked) = (p.word("online", YES_NO)?, p.word("revoked", YES_NO)?);
    let walk = Walk::of(&hub, &caller, "devices", &format!("{online:?}{revoked:?}"));
    let after = walk.read(&p)?.and_then(|key| key.parse().ok());
    let fits = |d: &DeviceRecord| {
        online.is_none_or(|want| want == hub.presence.is_online(&d.id))
            && revoked.is_none_or(|want| want == d.revoked_at.is_some())
    };
    let (found, next) = hub
        .directory
        .devices_page(&caller.account, after, p.limit()?, fits);
    Ok(Json(DevicePage {
        devices: found.iter().map(|d| DeviceView::of(&hub, d)).collect(),
        next: next.map(|id| walk.cursor(id.as_str())),
    }))
}

/// All devices of an account.
pub(crate) fn device_page(hub: &Hub, account: &AccountId) -> DevicePage {
    let all = hub.directory.devices(account);
    DevicePage {
        devices: all.iter().map(|d| DeviceView::of(hub, d)).collect(),
        next: None,
    }
}

/// All projects of an account.
pub(crate) fn project_page(hub: &Hub, account: &AccountId) -> ProjectPage {
    let all = hub.directory.projects(account);
    let all = all.into_iter().map(|p| ProjectView::of(hub, p));
    ProjectPage {
        projects: all.collect(),
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

/// `GET /sessions?device=&project=&activity=&since=&cursor=&limit=`.
pub(crate) async fn sessions(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: RawQuery,
) -> ApiResult<Json<SessionPage>> {
    caller.need_any()?;
    let p = Params::of(query, &SESSION_PARAMS)?;
    let device: Option<String> = p.get("device", "text")?;
    let project: Option<String> = p.get("project", "text")?;
    let activity = p.words("activity", &ACTIVITIES.map(|(word, _)| word))?;
    let since = p.get("since", "a time in Unix milliseconds")?.map(WallMs);
    let filters = format!("{device:?}{project:?}{activity:?}{since:?}");
    let walk = Walk::of(&hub, &caller, "sessions", &filters);
    let after = walk.read(&p)?.and_then(|key| key.parse().ok());
    let fits = |s: &SessionRecord| {
        let doing = ACTIVITIES.iter().find(|(_, a)| *a == s.info.activity);
        device.as_ref().is_none_or(|d| s.device.as_str() == d)
            && project.as_ref().is_none_or(|want| {
                let has = s.info.project.as_ref();
                has.is_some_and(|has| has.as_str() == want)
            })
            && (activity.is_empty() || doing.is_some_and(|(word, _)| activity.contains(word)))
            && since.is_none_or(|t| s.info.active_at >= t)
    };
    let (found, next) = hub
        .directory
        .sessions_page(&caller.account, after, p.limit()?, fits);
    let found = found.into_iter().map(|s| SessionView::of(&hub, s));
    Ok(Json(SessionPage {
        sessions: found.collect(),
        next: next.map(|id| walk.cursor(&id.to_string())),
    }))
}

/// `GET /projects?device=&approved=&enabled=&cursor=&limit=`.
pub(crate) async fn projects(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: RawQuery,
) -> ApiResult<Json<ProjectPage>> {
    caller.need_any()?;
    let p = Params::of(query, &PROJECT_PARAMS)?;
    let device: Option<String> = p.get("device", "text")?;
    let (approved, enabled) = (p.word("approved", YES_NO)?, p.word("enabled", YES_NO)?);
    let filters = format!("{device:?}{approved:?}{enabled:?}");
    let walk = Walk::of(&hub, &caller, "projects", &filters);
    // A device's id has no slash, a project's name may.
    let after = walk.read(&p)?.and_then(|key| {
        let (device, name) = key.split_once('/')?;
        Some((device.parse().ok()?, name.parse().ok()?))
    });
    let fits = |r: &ProjectRecord| {
        device.as_ref().is_none_or(|d| r.device.as_str() == d)
            && approved.is_none_or(|want| want == r.approved)
            && enabled.is_none_or(|want| want == r.info.enabled)
    };
    let (found, next) = hub
        .directory
        .projects_page(&caller.account, after, p.limit()?, fits);
    let found = found.into_iter().map(|p| ProjectView::of(&hub, p));
    Ok(Json(ProjectPage {
        projects: found.collect(),
        next: next.map(|(device, name)| walk.cursor(&format!("{device}/{name}"))),
    }))
}
