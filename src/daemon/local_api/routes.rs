//! Every route of the local API on one page, and the servers behind both listeners.

use std::sync::Arc;

use axum::extract::{ConnectInfo, State};
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::future::join;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{ApiError, ApiResult, Asked, JsonBody};
use super::guard::guard;
use super::listen::{Loopback, Socket};
use super::{Api, Peer, control, messages};
use crate::daemon::status;
use crate::domain::{Code, SessionId};
use crate::local::{HookAnswer, HookCall};

fn router(api: &Arc<Api>) -> Router {
    Router::new()
        .route(
            "/healthz",
            get(|| async { Json(json!({ "status": "ok" })) }),
        )
        .route("/readyz", get(ready))
        .route("/status", get(show))
        .route("/messages", get(messages::list))
        .route("/messages/confirm", post(messages::confirm))
        .route("/messages/push", post(messages::push))
        .route("/tasks", post(messages::task))
        .route("/tasks/{id}", get(messages::get_task))
        .route("/memory", get(memory))
        .route("/index", get(index))
        .route("/hook", post(hook))
        .route("/control/{verb}", post(control::control))
        .fallback(|method: Method, uri: axum::http::Uri| async move {
            ApiError::new(Code::NotFound, format!("no route {method} {}", uri.path()))
        })
        .method_not_allowed_fallback(|method: Method| async move {
            ApiError::new(
                Code::MethodNotAllowed,
                format!("{method} is not possible here"),
            )
        })
        .layer(from_fn_with_state(Arc::clone(api), guard))
        .with_state(Arc::clone(api))
}

/// Serves both listeners until the daemon stops and the requests under way have ended.
pub(in crate::daemon) async fn serve(api: Arc<Api>, socket: Socket, loopback: Option<Loopback>) {
    let app = router(&api).into_make_service_with_connect_info::<Peer>();
    let stop = api.stop.clone();
    let on_socket = axum::serve(socket, app.clone())
        .with_graceful_shutdown(stop.clone().cancelled_owned())
        .into_future();
    let on_loopback = async {
        if let Some(loopback) = loopback {
            let served = axum::serve(loopback, app)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await;
            log(served);
        }
    };
    let (served, ()) = join(on_socket, on_loopback).await;
    log(served);
}

fn log(served: std::io::Result<()>) {
    if let Err(error) = served {
        tracing::error!(%error, "a listener of the local API ended");
    }
}

async fn ready(State(api): State<Arc<Api>>) -> Response {
    match api.store.position().await {
        Ok(_) => Json(json!({ "status": "ready" })).into_response(),
        Err(error) => ApiError::from(error).into_response(),
    }
}

async fn show(State(api): State<Arc<Api>>) -> ApiResult {
    Ok(Json(status::document(&api).await?))
}

#[derive(Debug, Deserialize)]
struct Of {
    session: Option<SessionId>,
}

impl Of {
    fn session(self) -> Result<SessionId, ApiError> {
        let missing = || {
            ApiError::new(
                Code::InvalidField,
                "`?session=` with a session's UUID is required",
            )
        };
        self.session.ok_or_else(missing)
    }
}

async fn memory(State(api): State<Arc<Api>>, Asked(of): Asked<Of>) -> ApiResult {
    Ok(Json(api.control.memory(of.session()?).await?))
}

async fn index(State(api): State<Arc<Api>>, Asked(of): Asked<Of>) -> ApiResult {
    Ok(Json(api.control.index(of.session()?).await?))
}

async fn hook(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    JsonBody(call): JsonBody<HookCall<Value>>,
) -> Json<HookAnswer> {
    Json(api.hooks.hook(call, peer).await)
}
