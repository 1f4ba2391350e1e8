//! Bodies in, bodies and problems out.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::daemon::store::StoreError;
use crate::domain::{Code, Problem};

/// Largest body of a request, bytes: a hook's input can hold a whole tool result.
const MAX_BODY: usize = 16 << 20;

/// A refusal on its way out.
#[derive(Debug)]
pub(super) struct ApiError(pub(super) Box<Problem>);

impl ApiError {
    pub(super) fn new(code: Code, title: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, title)))
    }

    pub(super) fn hint(self, detail: impl Into<String>) -> Self {
        Self(Box::new(self.0.hint(detail)))
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let body = serde_json::to_vec(&*self.0).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// An answer, or a refusal.
pub(super) type ApiResult = Result<Json<Value>, ApiError>;

/// A JSON body; an empty one counts as `{}`.
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = to_bytes(request.into_body(), MAX_BODY).await.map_err(|_| {
            ApiError::new(
                Code::TooLarge,
                format!("the body is cut off or larger than {MAX_BODY} bytes"),
            )
        })?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|e| {
            if e.is_data() {
                ApiError::new(Code::InvalidField, e.to_string())
            } else {
                ApiError::new(Code::MalformedJson, format!("the body is not JSON: {e}"))
            }
        })
    }
}

/// The query of a request.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Query::<T>::try_from_uri(&parts.uri)
            .map(|Query(asked)| Self(asked))
            .map_err(|e| ApiError::new(Code::InvalidField, e.body_text()))
    }
}
