//! Whether the hub lives, whether it can work, and its public keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::super::clock::wall;
use super::super::problem::{ApiError, ApiResult};
use super::super::state::Hub;
use super::super::store::{Commit, Expect, Op};
use super::views::{Health, Jwk, Jwks, Ready};
use crate::domain::Code;

/// `GET /healthz`: the process answers.
pub(crate) async fn healthz(State(hub): State<Arc<Hub>>) -> Json<Health> {
    Json(Health {
        status: "ok",
        hub_id: hub.id.clone(),
        now: wall(),
    })
}

/// `GET /readyz`: a write is durable, and the hub is not stopping.
pub(crate) async fn readyz(State(hub): State<Arc<Hub>>) -> ApiResult<Json<Ready>> {
    if hub.draining.is_cancelled() {
        return Err(ApiError::new(Code::GoingAway, "the hub is stopping").retry_after(5));
    }
    let probe = Op::put("hub/ready", wall().0.to_string(), Expect::Any);
    hub.store.commit(vec![probe]).await?;
    Ok(Json(Ready {
        status: "ready",
        devices_online: hub.presence.count(),
    }))
}

/// `GET /.well-known/jwks.json`.
pub(crate) async fn jwks(State(hub): State<Arc<Hub>>) -> Json<Jwks> {
    let keys = hub.with_keys(|k| k.publics().map(Jwk::of).collect());
    Json(Jwks { keys })
}
