//! Every route, on one page: what is served and, word for word, what `GET /openapi.json` says.

use std::sync::Arc;

use axum::Router;
use axum::middleware;

use super::api::{
    approval, asked, calling_off, directory, enroll, events, health, lists, memory, messages, poll,
    result, retry, tasks, views,
};
use super::openapi;
use super::problem::{catch_panic, method_not_allowed, not_found};
use super::records::{IndexRecord, MemoryRecord};
use super::route::{Route, delete, get, post, put, serve};
use super::socket;
use super::state::Hub;
use crate::auth::Scope;
use crate::domain::{Code, SessionId};
use crate::wire::event::EventData;
use crate::wire::{Hello, PollAck, PollAcked, Polled, Welcome};

/// The routes. A new one is a line here; the document follows (`UPDATE_PROTO=1 cargo test --test contract openapi`).
#[rustfmt::skip]
pub(crate) fn routes() -> Vec<Route> {
    vec![
        post("/tasks", "create_task", "Posts a task; answered once it is durable", tasks::create)
            .needs(Scope::TasksWrite).once()
            .body::<asked::TaskPost>(r#"{"task": "Make the tests pass", "project": "github.com/acme/shop", "options": {"max_turns": 20}}"#)
            .answers::<views::Accepted>(202, "Durable, and on its way").with("Location", "Where the task is shown").like(ACCEPTED_TASK).leads_to(&["get_task", "cancel_task", "retry_task"])
            .refuses(&[Code::TrustTooLow, Code::TargetRequired, Code::UnknownTarget, Code::MailboxFull]),
        get("/tasks", "list_tasks", "Lists tasks, newest first when not asked otherwise", lists::tasks)
            .needs(Scope::TasksRead).query::<asked::TaskQuery>().answers::<views::TaskPage>(200, "A page of them").refuses(&[Code::CursorInvalid]),
        get("/tasks/{id}", "get_task", "Shows a task", tasks::get)
            .needs(Scope::TasksRead).answers::<views::TaskView>(200, "The task").refuses(&[Code::UnknownTask]),
        post("/tasks/{id}/cancel", "cancel_task", "Calls a task off; where a device may have it, the device decides", calling_off::cancel)
            .needs(Scope::TasksWrite).once().body::<asked::CancelPost>("{}").or_nothing()
            .answers::<views::CancelAnswer>(200, "Called off").answers::<views::CancelAnswer>(202, "Its device is asked").with("Location", "Where the task is shown")
            .refuses(&[Code::UnknownTask, Code::Conflict, Code::TrustTooLow, Code::MailboxFull]),
        post("/tasks/{id}/retry", "retry_task", "Tries a task that ended once more", retry::retry)
            .needs(Scope::TasksWrite).once().body::<asked::RetryPost>(r#"{"force": false}"#).or_nothing()
            .answers::<views::RetryAnswer>(202, "A new attempt is on its way").with("Location", "Where the task is shown")
            .refuses(&[Code::UnknownTask, Code::Conflict, Code::TrustTooLow, Code::TargetRequired, Code::UnknownTarget, Code::MailboxFull]),
        get("/tasks/{id}/result", "get_result", "A result's whole text", result::get)
            .needs(Scope::TasksRead).answers_as::<String>(200, "The text", "text/plain").refuses(&[Code::UnknownTask, Code::NotFound]),
        put("/tasks/{id}/result", "upload_result", "A piece of a result beyond a frame (see README.md beside this document)", result::put)
            .needs_device().query::<result::PieceQuery>()
            .answers::<result::UploadView>(200, "What is durable")
            .refuses(&[Code::UnknownTask, Code::Conflict, Code::TooLarge, Code::ScopeMissing]),
        get("/tasks/{id}/events", "watch_task", "What happens to a task until its terminal status, as server-sent events", events::task)
            .needs(Scope::TasksRead).query::<asked::PlaceQuery>().resumes()
            .answers_as::<EventData>(200, "Events; each block's `data` is one JSON object", "text/event-stream")
            .answers_empty(204, "The task is over, and the reader has its last event").refuses(&[Code::UnknownTask]),
        get("/events", "watch", "What happens in the account, as server-sent events", events::account)
            .needs_token().query::<asked::EventQuery>().resumes()
            .answers_as::<EventData>(200, "Events; each block's `data` is one JSON object", "text/event-stream"),
        post("/messages", "create_message", "Posts a message; answered once it is durable", messages::create)
            .needs(Scope::MessagesWrite).once()
            .body::<asked::MessagePost>(r#"{"content": "The deploy is done", "project": "github.com/acme/shop", "priority": "urgent"}"#)
            .answers::<views::Accepted>(202, "Durable, and on its way").with("Location", "Where the message is shown").like(ACCEPTED_MESSAGE).leads_to(&["get_message", "recall_message"])
            .refuses(&[Code::TargetRequired, Code::UnknownTarget, Code::MailboxFull]),
        get("/messages", "list_messages", "Lists messages, newest first when not asked otherwise", lists::messages)
            .needs(Scope::MessagesRead).query::<asked::MessageQuery>().answers::<views::MessagePage>(200, "A page of them").refuses(&[Code::CursorInvalid]),
        get("/messages/{id}", "get_message", "Shows a message", messages::get)
            .needs(Scope::MessagesRead).answers::<views::MessageView>(200, "The message").refuses(&[Code::UnknownMessage]),
        delete("/messages/{id}", "recall_message", "Takes a message back while no session has it", calling_off::recall)
            .needs(Scope::MessagesWrite)
            .answers::<views::CancelAnswer>(200, "Taken back").answers::<views::CancelAnswer>(202, "Its device is asked").with("Location", "Where the message is shown")
            .refuses(&[Code::UnknownMessage, Code::Conflict, Code::MailboxFull]),
        get("/memory/{session}", "get_memory", "What a session should know at its start", memory::get)
            .needs(Scope::MemoryRead).path::<SessionId>("session").query::<asked::ProjectQuery>()
            .answers::<MemoryRecord>(200, "Its memory, or the nearest relative's").tagged().refuses(&[Code::NotFound]),
        post("/memory/{session}", "write_memory", "Replaces a session's memory", memory::post)
            .needs(Scope::MemoryWrite).path::<SessionId>("session").once()
            .body::<asked::MemoryPost>(r#"{"summary": "The shop's tests were made to pass", "context": ["cargo nextest run"]}"#)
            .answers::<MemoryRecord>(200, "As it is kept"),
        get("/memory/{session}/index", "get_index", "What a session's folder holds", memory::get_index)
            .needs(Scope::MemoryRead).path::<SessionId>("session").query::<asked::ProjectQuery>()
            .answers::<IndexRecord>(200, "Its index, or the nearest relative's").tagged().refuses(&[Code::NotFound]),
        put("/memory/{session}/index", "write_index", "Replaces a session's index", memory::put_index)
            .needs(Scope::MemoryWrite).path::<SessionId>("session").query::<asked::ProjectQuery>()
            .body::<asked::IndexPut>(r#"{"files": ["src/main.rs"], "symbols": ["main"], "recent_changes": []}"#)
            .answers_empty(204, "Kept"),
        get("/devices", "list_devices", "Lists the enrolled devices", directory::devices)
            .needs_token().query::<asked::DeviceQuery>().answers::<views::DevicePage>(200, "A page of them").refuses(&[Code::CursorInvalid]),
        delete("/devices/{id}", "revoke_device", "Revokes a device for good", directory::revoke)
            .needs(Scope::DevicesAdmin).answers_empty(204, "Revoked, its connection closed").refuses(&[Code::NotFound]),
        get("/sessions", "list_sessions", "Lists the known sessions", directory::sessions)
            .needs_token().query::<asked::SessionQuery>().answers::<views::SessionPage>(200, "A page of them").refuses(&[Code::CursorInvalid]),
        get("/projects", "list_projects", "Lists the known projects", directory::projects)
            .needs_token().query::<asked::ProjectsQuery>().answers::<views::ProjectPage>(200, "A page of them").refuses(&[Code::CursorInvalid]),
        post("/projects/{p}/approve", "approve_project", "Lets a device serve a project; `p` is its name or path, percent-encoded", approval::approve)
            .needs(Scope::DevicesAdmin).once().body::<asked::ApprovePost>(r#"{"device": "laptop-4f9a2c1d"}"#).or_nothing()
            .answers::<views::ProjectView>(200, "The project").refuses(&[Code::UnknownTarget, Code::TargetRequired]),
        post("/projects/{p}/unapprove", "unapprove_project", "Lets a device serve a project no longer", approval::unapprove)
            .needs(Scope::DevicesAdmin).once().body::<asked::ApprovePost>(r#"{"device": "laptop-4f9a2c1d"}"#).or_nothing()
            .answers::<views::ProjectView>(200, "The project").refuses(&[Code::UnknownTarget, Code::TargetRequired]),
        post("/enroll", "enroll_device", "Makes a device of a public key; takes a join token", enroll::enroll)
            .needs(Scope::DevicesEnroll).once()
            .body::<asked::EnrollPost>(r#"{"public_key": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "name": "laptop", "os": "linux", "build": "0.1.0"}"#)
            .answers::<views::Enrolled>(200, "The device"),
        get("/connect", "connect", "Opens the link (see README.md beside this document)", socket::connect)
            .needs_device().upgrades().refuses(&[Code::ProtocolError, Code::VersionUnsupported]),
        post("/poll/open", "open_poll", "Opens the link's fallback: takes what hello carries", poll::open)
            .needs_device().body::<Hello>(POLL_OPEN)
            .answers::<Welcome>(200, "What welcome carries").like(POLL_OPENED).refuses(&[Code::KeyHeldElsewhere, Code::GoingAway, Code::StoreUnavailable]),
        get("/poll", "poll", "Waits for envelopes in a session of the fallback", poll::poll)
            .needs_device().query::<poll::PollQuery>().answers::<Polled>(200, "What waits").like(POLLED).refuses(poll::ENDS),
        post("/poll/ack", "ack_poll", "Acks envelopes and brings reports in a session of the fallback", poll::ack)
            .needs_device().body::<PollAck>(POLL_ACK).answers::<PollAcked>(200, "Committed").like(POLL_ACKED).refuses(poll::ENDS),
        get("/messages/pending", "pending_messages", "The same as GET /poll", poll::poll)
            .needs_device().query::<poll::PollQuery>().answers::<Polled>(200, "What waits").like(POLLED).refuses(poll::ENDS),
        post("/messages/ack", "ack_messages", "The same as POST /poll/ack", poll::ack)
            .needs_device().body::<PollAck>(POLL_ACK).answers::<PollAcked>(200, "Committed").like(POLL_ACKED).refuses(poll::ENDS),
        get("/healthz", "healthz", "Whether the process answers", health::healthz)
            .answers::<views::Health>(200, "It does"),
        get("/readyz", "readyz", "Whether a write is durable now", health::readyz)
            .answers::<views::Ready>(200, "It is").refuses(&[Code::GoingAway, Code::StoreUnavailable, Code::DiskFull]),
        get("/.well-known/jwks.json", "jwks", "The keys that sign the hub's tokens, newest first", health::jwks)
            .answers::<views::Jwks>(200, "A JWK Set"),
        get("/openapi.json", "openapi", "This document", openapi::serve)
            .answers::<serde_json::Map<String, serde_json::Value>>(200, "OpenAPI 3.1").tagged(),
    ]
}

const ACCEPTED_TASK: &str = r#"{"id": "01957f3e-7b3c-7000-8000-000000000001", "status": "queued", "device": "laptop-4f9a2c1d", "url": "/tasks/01957f3e-7b3c-7000-8000-000000000001"}"#;
const ACCEPTED_MESSAGE: &str = r#"{"id": "01957f3e-7b3c-7000-8000-000000000002", "status": "accepted", "device": "laptop-4f9a2c1d", "url": "/messages/01957f3e-7b3c-7000-8000-000000000002"}"#;
const POLL_OPEN: &str = include_str!("../../proto/poll/poll_open.json");
const POLL_OPENED: &str = include_str!("../../proto/poll/poll_opened.json");
const POLLED: &str = include_str!("../../proto/poll/polled.json");
const POLL_ACK: &str = include_str!("../../proto/poll/poll_ack.json");
const POLL_ACKED: &str = include_str!("../../proto/poll/poll_acked.json");

/// The hub's HTTP surface.
pub(crate) fn router(hub: Arc<Hub>) -> Router {
    serve(routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(catch_panic))
        .with_state(hub)
}
