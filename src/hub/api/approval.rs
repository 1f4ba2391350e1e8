//! `POST /projects/{p}/approve` and `/unapprove`: which device serves a project.
//!
//! Requests that name a project go to devices that the account lets serve it. A device that came with the account's own
//! join token has that for every project it announces; any other one gets it here, for each project. What is decided
//! here stands above both, and survives whatever the device announces later. `{p}` is the project's name, or its
//! absolute path on the device, percent-encoded. The hub's owner decides the same by `hub projects approve`, see
//! [`decide`].

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use super::super::body::OptionalBody;
use super::super::clock::wall;
use super::super::guard::Caller;
use super::super::once::{self, Answer, Effect, Once};
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{self, ApprovalRecord, ProjectRecord};
use super::super::state::Hub;
use super::super::store::Expect;
use super::Path;
use super::asked::ApprovePost;
use super::views::ProjectView;
use crate::auth::Scope;
use crate::domain::{AccountId, Code};

/// `POST /projects/{p}/approve` `{device?}` → the project; `device` may be left out when only one announces it.
pub(crate) async fn approve(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(p): Path<String>,
    headers: HeaderMap,
    body: OptionalBody,
) -> ApiResult<Answer> {
    asked(&hub, &caller, &p, &headers, body, true).await
}

/// `POST /projects/{p}/unapprove` `{device?}` → the project, which gets nothing more by its name.
pub(crate) async fn unapprove(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(p): Path<String>,
    headers: HeaderMap,
    body: OptionalBody,
) -> ApiResult<Answer> {
    asked(&hub, &caller, &p, &headers, body, false).await
}

async fn asked(
    hub: &Hub,
    caller: &Caller,
    p: &str,
    headers: &HeaderMap,
    body: OptionalBody,
    approved: bool,
) -> ApiResult<Answer> {
    caller.need(Scope::DevicesAdmin)?;
    let verb = if approved { "approve" } else { "unapprove" };
    let call = format!("POST /projects/{p}/{verb}");
    let key = Once::of(caller, headers, &call, &body.0.sha256)?;
    let mut f = body.0.fields();
    let asked = ApprovePost {
        device: f.text("device"),
    };
    f.finish()?;
    let decision = Decision {
        account: &caller.account,
        project: p,
        device: asked.device.as_deref(),
        approved,
        by: caller.sender().name,
    };
    decide(hub, key.as_ref(), decision).await
}

/// What is decided about which project, and by whom.
#[derive(Debug)]
pub(crate) struct Decision<'a> {
    pub(crate) account: &'a AccountId,
    /// Its name, or its absolute path on the device.
    pub(crate) project: &'a str,
    /// The device's id or name; may be left out when only one announces the project.
    pub(crate) device: Option<&'a str>,
    pub(crate) approved: bool,
    pub(crate) by: String,
}

/// Carries a decision out → the project.
pub(crate) async fn decide(
    hub: &Hub,
    key: Option<&Once>,
    decision: Decision<'_>,
) -> ApiResult<Answer> {
    let Decision {
        account,
        approved,
        by,
        ..
    } = decision;
    let all = hub.directory.projects(account);
    let found = find(hub, &all, decision.project, decision.device);
    let effect = found.map(|project| {
        let decision = ApprovalRecord {
            device: project.device.clone(),
            project: project.info.name.clone(),
            approved,
            by,
            at: wall(),
        };
        let key = ApprovalRecord::key(account, &decision.device, &decision.project);
        let mut shown = project.clone();
        shown.approved = approved;
        let effect = Effect {
            ops: vec![records::put(key, &decision, Expect::Any, None)],
            answer: Answer {
                status: StatusCode::OK,
                location: None,
                body: records::value(&ProjectView::of(hub, shown)),
            },
        };
        (effect, decision)
    });
    let (effect, decision) = match effect {
        Ok((effect, decision)) => (Ok(effect), Some(decision)),
        Err(e) => (Err(e), None),
    };
    let answer = once::commit(hub, key, effect).await?;
    if let Some(decision) = decision {
        tracing::info!(
            device = %decision.device, project = %decision.project, by = %decision.by, approved,
            "a person decided about a project"
        );
        hub.directory.decide(&decision);
    }
    Ok(answer)
}

/// The one project of this name or path on this device, or on the only one that announces it.
fn find<'a>(
    hub: &Hub,
    all: &'a [ProjectRecord],
    p: &str,
    device: Option<&str>,
) -> ApiResult<&'a ProjectRecord> {
    let named: Vec<&ProjectRecord> = all
        .iter()
        .filter(|r| r.info.name.as_str() == p || r.info.path == p)
        .collect();
    let is = |r: &ProjectRecord, want: &str| {
        let name = hub.directory.device(&r.device).map(|d| d.name.clone());
        r.device.as_str() == want || name.as_deref() == Some(want)
    };
    let mut fits = named
        .iter()
        .copied()
        .filter(|r| device.is_none_or(|want| is(r, want)));
    let shown: String = p.chars().take(200).collect();
    match (fits.next(), fits.next()) {
        (Some(one), None) => Ok(one),
        (None, _) if named.is_empty() => {
            let mut known: Vec<String> = all.iter().map(|r| r.info.name.to_string()).collect();
            known.dedup();
            known.truncate(20);
            Err(
                ApiError::new(Code::UnknownTarget, format!("unknown project `{shown}`"))
                    .hint("a device announces its projects when they are enabled there")
                    .known(known),
            )
        }
        (None, _) => Err(ApiError::new(
            Code::UnknownTarget,
            format!("this device does not announce the project `{shown}`"),
        )
        .hint("`known` lists the devices that do")
        .known(named.iter().map(|r| r.device.to_string()).collect())),
        (Some(_), Some(_)) => Err(ApiError::new(
            Code::TargetRequired,
            format!("several devices announce the project `{shown}`"),
        )
        .hint("name one as `device`")
        .known(named.iter().map(|r| r.device.to_string()).collect())),
    }
}
