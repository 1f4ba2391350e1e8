//! Reading request bodies: every fault of a body is named at once, with a JSON pointer.
//!
//! A body is a JSON object. Fields that a call does not know are refused by name, so that a misspelt `expires_in` is
//! seen at once and not silently ignored; inside `metadata`, which is the producer's own, anything goes.

use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures::StreamExt;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::problem::{ApiError, ApiResult};
use crate::auth::crypto::sha256;
use crate::domain::{Code, FieldFault};

/// Largest request body, bytes: the largest envelope with every character escaped, and some room.
pub(crate) const MAX_BODY_BYTES: usize = 2 << 20;

/// What of a body that is too large is still taken and thrown away: a client that writes first and reads then gets its
/// answer and not a reset.
const MAX_DISCARDED: usize = 16 << 20;
/// Time for a body to come.
const BODY_TIME: Duration = Duration::from_secs(30);

/// A JSON object from a request, and the hash of its bytes.
#[derive(Debug)]
pub(crate) struct JsonBody {
    pub(crate) object: Map<String, Value>,
    pub(crate) sha256: [u8; 32],
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> ApiResult<Self> {
        let json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .map(|v| {
                v.split(';')
                    .next()
                    .unwrap_or("")
                    .trim()
                    .to_ascii_lowercase()
            })
            .is_some_and(|m| {
                m == "application/json" || (m.starts_with("application/") && m.ends_with("+json"))
            });
        if !json {
            return Err(not_json());
        }
        let bytes = read(request).await?;
        Self::parse(&bytes)
    }
}

/// As [`JsonBody`], where an empty body means an empty object.
#[derive(Debug)]
pub(crate) struct OptionalBody(pub(crate) JsonBody);

impl<S: Send + Sync> FromRequest<S> for OptionalBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> ApiResult<Self> {
        if request.headers().contains_key(header::CONTENT_TYPE) {
            let typed = request.headers().get(header::CONTENT_LENGTH);
            if typed.is_none_or(|n| n != "0") {
                return JsonBody::from_request(request, state).await.map(Self);
            }
        }
        let bytes = read(request).await?;
        if bytes.is_empty() {
            return JsonBody::parse(b"{}").map(Self);
        }
        Err(not_json())
    }
}

fn not_json() -> ApiError {
    ApiError::new(Code::UnsupportedMediaType, "the body must be JSON")
        .hint("send `Content-Type: application/json`")
}

/// The body's bytes, at most [`MAX_BODY_BYTES`], in bounded time.
pub(crate) async fn read(request: Request) -> ApiResult<Vec<u8>> {
    let body = async {
        let (mut bytes, mut total) = (Vec::new(), 0_usize);
        let mut chunks = request.into_body().into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| {
                ApiError::new(Code::MalformedJson, "the body could not be read to its end")
            })?;
            total = total.saturating_add(chunk.len());
            if total <= MAX_BODY_BYTES {
                bytes.extend_from_slice(&chunk);
            } else if total > MAX_DISCARDED {
                break;
            }
        }
        if total > MAX_BODY_BYTES {
            return Err(too_large("the request body", MAX_BODY_BYTES));
        }
        Ok(bytes)
    };
    timeout(BODY_TIME, body).await.unwrap_or_else(|_| {
        Err(ApiError::new(
            Code::MalformedJson,
            "the body did not come to its end in time",
        ))
    })
}

impl JsonBody {
    fn parse(bytes: &[u8]) -> ApiResult<Self> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| {
            ApiError::new(Code::MalformedJson, format!("the body is not JSON: {e}"))
        })?;
        match value {
            Value::Object(object) => Ok(Self {
                object,
                sha256: sha256(bytes),
            }),
            _ => Err(ApiError::field("", "the body must be a JSON object")),
        }
    }

    /// The whole body as a `T`.
    ///
    /// # Errors
    /// The first fault.
    pub(crate) fn read<T: serde::de::DeserializeOwned>(self) -> ApiResult<T> {
        let mut value = Value::Object(self.object);
        whole_numbers(&mut value);
        serde_json::from_value(value).map_err(|e| ApiError::field("", e.to_string()))
    }

    /// The reader of its fields.
    pub(crate) fn fields(self) -> Fields {
        Fields {
            object: self.object,
            faults: Vec::new(),
        }
    }
}

/// `what` is larger than `max` bytes.
pub(crate) fn too_large(what: &str, max: usize) -> ApiError {
    ApiError::new(Code::TooLarge, format!("{what} is larger than {max} bytes"))
        .hint("send less, or put it into a file of the project and name the file")
}

/// Takes fields out of a body and gathers faults; [`Fields::finish`] tells them all.
#[derive(Debug)]
pub(crate) struct Fields {
    object: Map<String, Value>,
    faults: Vec<FieldFault>,
}

impl Fields {
    pub(crate) fn fault(&mut self, name: &str, detail: impl Into<String>) {
        self.faults.push(FieldFault {
            pointer: pointer(name),
            detail: detail.into(),
        });
    }

    /// The field; `null` counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.object.remove(name).filter(|v| !v.is_null())
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(s) => Some(s),
            other => {
                self.fault(name, format!("must be a string, not {}", kind(&other)));
                None
            }
        }
    }

    /// A text that has to be there and not be blank.
    pub(crate) fn required_text(&mut self, name: &str) -> String {
        let before = self.faults.len();
        match self.text(name) {
            Some(s) if !s.trim().is_empty() => s,
            Some(_) => {
                self.fault(name, "must not be empty");
                String::new()
            }
            None => {
                if self.faults.len() == before {
                    self.fault(name, "is required");
                }
                String::new()
            }
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Option<bool> {
        match self.take(name)? {
            Value::Bool(b) => Some(b),
            other => {
                self.fault(name, format!("must be true or false, not {}", kind(&other)));
                None
            }
        }
    }

    /// A whole number within a range.
    pub(crate) fn number(&mut self, name: &str, low: i64, high: i64) -> Option<i64> {
        let value = self.take(name)?;
        let got = whole(&value).filter(|n| (low..=high).contains(n));
        if got.is_none() {
            self.fault(name, format!("must be a whole number from {low} to {high}"));
        }
        got
    }

    /// A field with a shape of its own.
    pub(crate) fn shaped<T: serde::de::DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let mut value = self.take(name)?;
        whole_numbers(&mut value);
        match serde_json::from_value(value) {
            Ok(v) => Some(v),
            Err(e) => {
                self.fault(name, e.to_string());
                None
            }
        }
    }

    pub(crate) fn array(&mut self, name: &str) -> Option<Vec<Value>> {
        match self.take(name)? {
            Value::Array(a) => Some(a),
            other => {
                self.fault(name, format!("must be an array, not {}", kind(&other)));
                None
            }
        }
    }

    /// Refuses what is left over and tells every fault.
    pub(crate) fn finish(mut self) -> ApiResult<()> {
        let left: Vec<String> = self.object.keys().take(20).cloned().collect();
        for name in left {
            self.fault(&name, "is not a field of this call");
        }
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(ApiError::fields(self.faults))
        }
    }
}

/// A number without a fraction, however it is written: to JSON, `20.0` is as whole as `20`.
fn whole(value: &Value) -> Option<i64> {
    /// 2^63
    const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        // Within this range a number without a fraction is exactly one integer.
        (number.fract() == 0.0 && number.abs() < TOO_LARGE).then_some(number as i64)
    })
}

/// Writes every number that has no fraction as an integer, which a field of either kind takes.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(_) if value.is_f64() => {
            if let Some(n) = whole(value) {
                *value = n.into();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(whole_numbers),
        Value::Object(all) => all.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

fn pointer(name: &str) -> String {
    let name: String = name.chars().take(100).collect();
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

const fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named_at_once() {
        let body = JsonBody::parse(br#"{"task":5,"wake":"x","n":0,"typ/o":1,"gone":null}"#);
        let mut f = body.unwrap().fields();
        f.required_text("task");
        f.required_text("content");
        f.flag("wake");
        f.number("n", 1, 9);
        f.text("gone");
        let e = f.finish().unwrap_err().0;
        let pointers: Vec<_> = e.errors.iter().map(|f| f.pointer.as_str()).collect();
        assert_eq!(pointers, ["/task", "/content", "/wake", "/n", "/typ~1o"]);
        assert_eq!(e.status, 400);
    }

    #[test]
    fn a_number_without_a_fraction_is_whole_however_it_is_written() {
        let body = JsonBody::parse(br#"{"a":20.0,"b":2e1,"c":20.5,"d":1e300,"e":[3.0,0.5]}"#);
        let mut f = body.unwrap().fields();
        assert_eq!(f.number("a", 1, 99), Some(20));
        assert_eq!(f.number("b", 1, 99), Some(20));
        assert_eq!(f.number("c", 1, 99), None);
        assert_eq!(f.number("d", 1, 99), None);
        assert_eq!(f.shaped::<(u32, f64)>("e"), Some((3, 0.5)));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for (text, code) in [
            ("", "malformed_json"),
            ("{", "malformed_json"),
            ("[1]", "invalid_field"),
            ("\"x\"", "invalid_field"),
        ] {
            let e = JsonBody::parse(text.as_bytes()).unwrap_err();
            assert_eq!(e.0.code, code, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(JsonBody::parse(deep.as_bytes()).is_err());
    }
}
