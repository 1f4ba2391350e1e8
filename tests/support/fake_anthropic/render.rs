//! Puts a reply on the wire: one JSON message, or the same as a stream of server-sent events.

use std::convert::Infallible;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use uuid::Uuid;

use super::reply::{Content, Reply};
use super::request::Request;

/// The tokens that every answer reports to have written.
const OUTPUT_TOKENS: u64 = 20;

/// Renders a reply to a request for a message.
pub(super) fn message(request: &Request, reply: &Reply) -> Response {
    let (block, stop_reason) = match &reply.content {
        Content::Text(text) => (json!({"type": "text", "text": text}), "end_turn"),
        Content::Tool { name, input } => {
            let id = format!("toolu_{}", Uuid::new_v4().simple());
            (
                json!({"type": "tool_use", "id": id, "name": name, "input": input}),
                "tool_use",
            )
        }
        Content::Error { status, headers } => return error(*status, headers),
    };
    let whole = json!({
        "id": format!("msg_{}", Uuid::new_v4().simple()),
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": [block],
        "stop_reason": stop_reason,
        "stop_sequence": null,
        "usage": {
            "input_tokens": reply.input_tokens,
            "output_tokens": OUTPUT_TOKENS,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    });
    if request.stream() {
        streamed(whole).into_response()
    } else {
        Json(whole).into_response()
    }
}

/// Renders an API error with the type that belongs to its status.
pub(super) fn error(status: u16, headers: &[(String, String)]) -> Response {
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let body = json!({
        "type": "error",
        "error": {"type": kind, "message": format!("the scripted API answers {status}")},
    });
    let code = StatusCode::from_u16(status).expect("a reply's status is an HTTP status");
    let mut response = (code, Json(body)).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(
            HeaderName::try_from(name).expect("a reply's header has a valid name"),
            HeaderValue::try_from(value).expect("a reply's header has a valid value"),
        );
    }
    response
}

/// Cuts a whole message into the events of a stream.
fn streamed(mut whole: Value) -> impl IntoResponse {
    let block = whole["content"][0].take();
    let stop = json!({"stop_reason": whole["stop_reason"].take(), "stop_sequence": null});
    whole["content"] = json!([]);
    let (opening, delta) = if block["type"] == "tool_use" {
        let mut opening = block.clone();
        opening["input"] = json!({});
        let json = block["input"].to_string();
        (
            opening,
            json!({"type": "input_json_delta", "partial_json": json}),
        )
    } else {
        (
            json!({"type": "text", "text": ""}),
            json!({"type": "text_delta", "text": block["text"]}),
        )
    };
    let events = [
        json!({"type": "message_start", "message": whole}),
        json!({"type": "content_block_start", "index": 0, "content_block": opening}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": stop, "usage": {"output_tokens": OUTPUT_TOKENS}}),
        json!({"type": "message_stop"}),
    ];
    Sse::new(stream::iter(events.map(|event| {
        let name = event["type"].as_str().unwrap_or_default().to_owned();
        Ok::<_, Infallible>(Event::default().event(name).data(event.to_string()))
    })))
}
