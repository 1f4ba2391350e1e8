//! Every refusal as `application/problem+json` with a stable code: ours, the framework's, and a panic.

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;

use super::directory::NoRoute;
use super::store::StoreError;
use crate::auth::AuthError;
use crate::domain::{Code, FieldFault, Problem, WallMs};

/// A refusal on its way out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError(pub(crate) Box<Problem>);

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(code: Code, title: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, title)))
    }

    pub(crate) fn hint(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.0.retry_after_s = Some(seconds);
        self
    }

    pub(crate) fn known(mut self, known: Vec<String>) -> Self {
        self.0.known = known;
        self
    }

    /// The body's faults, all of them.
    pub(crate) fn fields(errors: Vec<FieldFault>) -> Self {
        let title = match errors.as_slice() {
            [one] => format!("{}: {}", one.pointer, one.detail),
            many => format!("{} fields of the request are wrong", many.len()),
        };
        let mut e = Self::new(Code::InvalidField, title);
        e.0.errors = errors;
        e
    }

    pub(crate) fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::fields(vec![FieldFault {
            pointer: pointer.into(),
            detail: detail.into(),
        }])
    }
}

impl From<StoreError> for ApiError {
    fn from(e: StoreError) -> Self {
        if let StoreError::Io(_) | StoreError::Foreign(_) = &e {
            tracing::error!(error = %e, "the store failed");
            // The cause names files of this machine; a producer needs the code only.
            return Self::new(e.code(), "the store failed")
                .hint("try again with the same Idempotency-Key")
                .retry_after(2);
        }
        let base = Self::new(e.code(), e.to_string());
        match e {
            StoreError::MailboxFull => base
                .hint("the device has not taken its mail for long: connect it, or recall messages")
                .retry_after(60),
            StoreError::Busy | StoreError::Closed => base
                .hint("try again with the same Idempotency-Key")
                .retry_after(2),
            StoreError::DiskFull => base
                .hint("free space on the hub's disk; nothing was stored")
                .retry_after(30),
            StoreError::Conflict { .. } => base.hint("read it again, then repeat"),
            StoreError::Fenced | StoreError::Io(_) | StoreError::Foreign(_) => base,
        }
    }
}

impl From<AuthError> for ApiError {
    fn from(e: AuthError) -> Self {
        let mut out = Self::new(e.code(), e.to_string());
        if let AuthError::ClockSkew {
            hub_now: WallMs(now),
            ..
        } = e
        {
            out.0.now = Some(now);
        }
        out
    }
}

impl From<NoRoute> for ApiError {
    fn from(e: NoRoute) -> Self {
        match e {
            NoRoute::Required { known } => Self::new(
                Code::TargetRequired,
                "several devices are enrolled and none is named",
            )
            .hint("name a device, a project or a session")
            .known(known),
            NoRoute::Unknown { what, known } => {
                let hint = if known.is_empty() && what.starts_with("project ") {
                    "a project is known once a device has enabled it and it is approved"
                } else if known.is_empty() {
                    "nothing of that kind is known here yet"
                } else {
                    "`known` lists what is"
                };
                Self::new(Code::UnknownTarget, format!("unknown {what}"))
                    .hint(hint)
                    .known(known)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let p = *self.0;
        let status = StatusCode::from_u16(p.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Plain data with string keys: serialisation cannot fail.
        let body = serde_json::to_vec(&p).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(s) = p.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(s));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"remote-collab\""),
            );
        }
        response
    }
}

/// The answer of every path that does not exist.
pub(crate) async fn not_found() -> ApiError {
    ApiError::new(Code::NotFound, "there is nothing under this path")
}

/// The answer of a path that does not know the method.
pub(crate) async fn method_not_allowed() -> ApiError {
    ApiError::new(
        Code::MethodNotAllowed,
        "this path does not know this method",
    )
}

/// Turns a handler's panic into an `internal` answer: one request fails, the hub goes on.
pub(crate) async fn catch_panic(request: Request, next: Next) -> Response {
    let run = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind();
    run.await.unwrap_or_else(|_| {
        ApiError::new(Code::Internal, "something went wrong here")
            .hint("the hub's log says what; a repetition with the same Idempotency-Key is safe")
            .into_response()
    })
}
