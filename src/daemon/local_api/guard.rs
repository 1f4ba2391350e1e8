//! Who may come in, before anything is read: origin, host, token, content type; and no request without an end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;
use subtle::ConstantTimeEq;
use tokio::time::timeout;

use super::body::ApiError;
use super::{Api, Peer, Via};
use crate::domain::Code;

/// How long a request may take; a permission relay answers within its own limit before that.
const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// How long anything but a hook may take.
const SHORT_DEADLINE: Duration = Duration::from_secs(30);

/// Checks a request, then gives it its deadline.
pub(super) async fn guard(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let checked = check(
        peer,
        request.method(),
        request.uri(),
        request.headers(),
        api.token.expose_secret(),
    );
    if let Err(refusal) = checked {
        return refusal.into_response();
    }
    let limit = if request.uri().path() == "/hook" {
        DEADLINE
    } else {
        SHORT_DEADLINE
    };
    let answered = api
        .stop
        .run_until_cancelled(timeout(limit, next.run(request)))
        .await;
    match answered {
        Some(Ok(response)) => response,
        Some(Err(_)) => {
            ApiError::new(Code::Internal, "the daemon did not finish in time").into_response()
        }
        None => ApiError::new(Code::GoingAway, "the daemon is stopping").into_response(),
    }
}

fn check(
    peer: Peer,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    token: &str,
) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let foreign = |what: &str| {
        ApiError::new(Code::OriginRefused, format!("{what} has no business here"))
            .hint("call the daemon by 127.0.0.1 from a program on this machine")
    };
    if let Some(origin) = text(header::ORIGIN) {
        let host = origin.split_once("://").map_or("?", |(_, host)| host);
        if !is_loopback(host) {
            return Err(foreign("a page of another origin"));
        }
    }
    let host = text(header::HOST).or_else(|| uri.host());
    if !host.is_some_and(is_loopback) {
        return Err(foreign("a request for another host"));
    }
    if peer.via == Via::Loopback && !matches!(uri.path(), "/healthz" | "/readyz") {
        let given = text(header::AUTHORIZATION).and_then(|v| {
            let (scheme, token) = v.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim())
        });
        let Some(given) = given else {
            return Err(
                ApiError::new(Code::TokenMissing, "no bearer token was sent")
                    .hint("the token is in the file that `remote-collab status` names"),
            );
        };
        if !bool::from(given.as_bytes().ct_eq(token.as_bytes())) {
            return Err(
                ApiError::new(Code::TokenInvalid, "the bearer token is not this daemon's")
                    .hint("the token is in the file that `remote-collab status` names"),
            );
        }
    }
    if method == Method::POST {
        let kind = text(header::CONTENT_TYPE).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::new(
                Code::UnsupportedMediaType,
                "a POST needs `content-type: application/json`",
            ));
        }
    }
    Ok(())
}

/// Whether a `Host` (with or without a port) is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => match v6.split_once(']') {
            Some((name, "")) => name,
            Some((name, port)) if is_port(port) => name,
            _ => return false,
        },
        None => match host.split_once(':') {
            None => host,
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => return false,
        },
    };
    matches!(name, "127.0.0.1" | "localhost" | "::1")
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for good in [
            "127.0.0.1",
            "127.0.0.1:9988",
            "localhost:1",
            "[::1]:80",
            "[::1]",
        ] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "localhost:x",
            "",
            "null",
            "[::1].evil",
            "127.0.0.1:80@evil.example",
            "0.0.0.0",
        ] {
            assert!(!is_loopback(bad), "{bad}");
        }
    }

    fn checked(via: Via, method: &Method, headers: &[(&str, &str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            map.insert(name, value.parse().unwrap());
        }
        let uri = Uri::from_static("/status");
        let peer = Peer { pid: None, via };
        check(peer, method, &uri, &map, "secret")
            .err()
            .map(|e| e.0.code)
    }

    #[test]
    fn a_page_in_a_browser_gets_nothing() {
        let token = ("authorization", "Bearer secret");
        for foreign in [
            vec![("host", "rebound.example:9988"), token],
            vec![
                ("host", "127.0.0.1:9988"),
                ("origin", "https://evil.example"),
                token,
            ],
            vec![("host", "127.0.0.1:9988"), ("origin", "null"), token],
            vec![token],
        ] {
            let code = checked(Via::Loopback, &Method::GET, &foreign);
            assert_eq!(code.as_deref(), Some("origin_refused"), "{foreign:?}");
        }
        let host = ("host", "127.0.0.1:9988");
        let form = ("content-type", "text/plain");
        let code = checked(Via::Loopback, &Method::POST, &[host, token, form]);
        assert_eq!(code.as_deref(), Some("unsupported_media_type"));
        assert_eq!(checked(Via::Loopback, &Method::GET, &[host, token]), None);
    }

    #[test]
    fn loopback_needs_the_token_and_the_socket_does_not() {
        let host = ("host", "localhost");
        let code = |headers: &[_]| checked(Via::Loopback, &Method::GET, headers);
        assert_eq!(code(&[host]).as_deref(), Some("token_missing"));
        let wrong = ("authorization", "Bearer other");
        assert_eq!(code(&[host, wrong]).as_deref(), Some("token_invalid"));
        assert_eq!(checked(Via::Socket, &Method::GET, &[host]), None);
    }
}
