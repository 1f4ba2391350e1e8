//! Every route, on one page.

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{delete, get, post};

use super::api::{directory, enroll, health, lists, memory, messages, tasks};
use super::problem::{catch_panic, method_not_allowed, not_found};
use super::socket;
use super::state::Hub;

/// The hub's HTTP surface.
pub(crate) fn router(hub: Arc<Hub>) -> Router {
    Router::new()
        .route("/tasks", post(tasks::create).get(lists::tasks))
        .route("/tasks/{id}", get(tasks::get))
        .route("/messages", post(messages::create).get(lists::messages))
        .route("/messages/{id}", get(messages::get))
        .route("/memory/{session}", get(memory::get).post(memory::post))
        .route(
            "/memory/{session}/index",
            get(memory::get_index).put(memory::put_index),
        )
        .route("/devices", get(directory::devices))
        .route("/devices/{id}", delete(directory::revoke))
        .route("/sessions", get(directory::sessions))
        .route("/projects", get(directory::projects))
        .route("/enroll", post(enroll::enroll))
        .route("/connect", get(socket::connect))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/.well-known/jwks.json", get(health::jwks))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(catch_panic))
        .with_state(hub)
}
