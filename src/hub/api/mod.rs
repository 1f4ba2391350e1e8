//! The handlers, by what they are about; [`super::router`] says under which paths.

pub(crate) mod directory;
pub(crate) mod enroll;
pub(crate) mod health;
pub(crate) mod items;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod tasks;

use std::collections::HashMap;
use std::str::FromStr;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use super::problem::{ApiError, ApiResult};

/// A request's query, read by hand so that a refusal is ours.
pub(crate) type RawQuery = Result<Query<HashMap<String, String>>, QueryRejection>;

/// Reads query parameters; unknown ones are refused by name.
pub(crate) struct Params(HashMap<String, String>);

impl Params {
    pub(crate) fn of(query: RawQuery, known: &[&str]) -> ApiResult<Self> {
        let Query(map) =
            query.map_err(|e| ApiError::field("query", format!("cannot be read: {e}")))?;
        match map.keys().find(|k| !known.contains(&k.as_str())) {
            Some(other) => Err(ApiError::field(
                other.clone(),
                format!(
                    "is not a parameter of this call; known are {}",
                    known.join(", ")
                ),
            )),
            None => Ok(Self(map)),
        }
    }

    pub(crate) fn get<T: FromStr>(&self, name: &str, rule: &str) -> ApiResult<Option<T>> {
        match self.0.get(name).map(|v| v.parse()) {
            None => Ok(None),
            Some(Ok(v)) => Ok(Some(v)),
            Some(Err(_)) => Err(ApiError::field(name, format!("must be {rule}"))),
        }
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
