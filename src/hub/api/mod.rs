//! The handlers, by what they are about; [`super::router`] says under which paths.

pub(crate) mod approval;
pub(crate) mod asked;
pub(crate) mod calling_off;
mod cursor;
pub(crate) mod directory;
pub(crate) mod enroll;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod items;
pub(crate) mod lists;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod poll;
pub(crate) mod result;
pub(crate) mod retry;
pub(crate) mod tasks;
pub(crate) mod views;

use std::str::FromStr;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::problem::{ApiError, ApiResult};

/// A request's query, read by hand so that a refusal is ours.
pub(crate) type RawQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A path's parameters; what cannot be read (bytes that are no UTF-8) is refused with our words.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<S, T> FromRequestParts<S> for Path<T>
where
    S: Send + Sync,
    T: DeserializeOwned + Send,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(e) => Err(ApiError::field("path", e.body_text())),
        }
    }
}

/// Reads query parameters; unknown ones are refused by name.
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn of(query: RawQuery, known: &[String]) -> ApiResult<Self> {
        let Query(pairs) =
            query.map_err(|e| ApiError::field("query", format!("cannot be read: {e}")))?;
        match pairs.iter().find(|(k, _)| !known.contains(k)) {
            Some((other, _)) => Err(ApiError::field(
                other.chars().take(100).collect::<String>(),
                format!(
                    "is not a parameter of this call; known are {}",
                    known.join(", ")
                ),
            )),
            None => Ok(Self(pairs)),
        }
    }

    fn text(&self, name: &str) -> ApiResult<Option<&str>> {
        let mut all = self.0.iter().filter(|(k, _)| k == name).map(|(_, v)| &**v);
        let first = all.next();
        match all.next() {
            None => Ok(first),
            Some(_) => Err(ApiError::field(name, "is given more than once")),
        }
    }

    pub(crate) fn get<T: FromStr>(&self, name: &str, rule: &str) -> ApiResult<Option<T>> {
        match self.text(name)?.map(str::parse) {
            None => Ok(None),
            Some(Ok(v)) => Ok(Some(v)),
            Some(Err(_)) => Err(ApiError::field(name, format!("must be {rule}"))),
        }
    }

    /// One of these words.
    pub(crate) fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> ApiResult<Option<T>> {
        let Some(got) = self.text(name)? else {
            return Ok(None);
        };
        let found = words.iter().find(|(word, _)| *word == got);
        found.map(|(_, v)| Some(*v)).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            ApiError::field(name, format!("must be one of {}", words.join(", ")))
        })
    }

    /// Some of these words: separated by commas, or the parameter given several times; none when it is not given.
    pub(crate) fn words(&self, name: &str, words: &[&'static str]) -> ApiResult<Vec<&'static str>> {
        let given = self.0.iter().filter(|(k, _)| k == name);
        let mut all = given
            .flat_map(|(_, v)| v.split(','))
            .map(|got| {
                let found = words.iter().find(|word| **word == got);
                found.copied().ok_or_else(|| {
                    let rule = format!("must be some of {}", words.join(", "));
                    ApiError::field(name, rule)
                })
            })
            .collect::<ApiResult<Vec<_>>>()?;
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// How many rows to answer: 1 to 200, 50 when not said.
    pub(crate) fn limit(&self) -> ApiResult<usize> {
        let limit = self.get::<usize>("limit", "a whole number from 1 to 200")?;
        match limit.unwrap_or(50) {
            n @ 1..=200 => Ok(n),
            _ => Err(ApiError::field(
                "limit",
                "must be a whole number from 1 to 200",
            )),
        }
    }
}
