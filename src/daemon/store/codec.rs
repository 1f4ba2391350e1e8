//! Words and JSON of the columns.

use serde::Serialize;
use serde::de::{DeserializeOwned, IntoDeserializer, value};

use crate::domain::Priority;

/// A unit variant's word, as serde writes it.
pub(super) fn word<T: Serialize>(v: &T) -> String {
    match serde_json::to_value(v) {
        Ok(serde_json::Value::String(s)) => s,
        _ => String::new(),
    }
}

/// The value with this word.
pub(super) fn from_word<T: DeserializeOwned>(s: &str) -> Option<T> {
    let d: value::StrDeserializer<'_, value::Error> = s.into_deserializer();
    T::deserialize(d).ok()
}

/// Plain data as JSON.
pub(super) fn json<T: Serialize>(v: &T) -> String {
    // Rows are plain data with string keys: serialisation cannot fail.
    serde_json::to_string(v).unwrap_or_default()
}

/// An unsigned number as SQLite keeps it.
pub(super) fn int(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

/// A lane as a number that orders like it.
pub(super) const fn lane(p: Priority) -> i64 {
    match p {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::Urgent => 2,
    }
}
