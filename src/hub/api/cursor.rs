//! Where a walk through a list goes on: opaque to the caller, and bound to what it walks.
//!
//! A cursor names the last row that was looked at by its key. Keys never change and are never given twice, so a walk
//! meets every row that is there all the time exactly once, whatever is written, changed or dropped meanwhile; a row that
//! is written during the walk is met if its key comes later.
//!
//! Beside the key stands a print of the list, its filters, the account and the hub: a cursor that is carried to another
//! list is refused and does not silently skip rows there. The print says nothing about what it was made of.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::super::guard::Caller;
use super::super::problem::{ApiError, ApiResult};
use super::super::state::Hub;
use super::Params;
use crate::auth::crypto::sha256;
use crate::domain::Code;

/// The form of the text.
const VERSION: u8 = 1;
const CHECK: usize = 4;
const PRINT: usize = 8;
/// Longest cursor that is looked at, characters.
const MAX: usize = 1024;

/// A list as one caller asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk([u8; PRINT]);

impl Walk {
    /// The walk through `list` with these filters, in their canonical text.
    pub(crate) fn of(hub: &Hub, caller: &Caller, list: &str, filters: &str) -> Self {
        Self::over(&[&hub.id, caller.account.as_str(), list, filters])
    }

    fn over(parts: &[&str]) -> Self {
        let mut text = Vec::new();
        for part in parts {
            text.extend_from_slice(&part.len().to_le_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        let mut print = [0; PRINT];
        print.copy_from_slice(&sha256(&text)[..PRINT]);
        Self(print)
    }

    /// The cursor behind this key.
    pub(crate) fn cursor(self, key: &str) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.0);
        bytes.extend_from_slice(key.as_bytes());
        let check = sha256(&bytes);
        bytes.extend_from_slice(&check[..CHECK]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The key that the request's `cursor` stands behind.
    ///
    /// # Errors
    /// When it cannot be read, or is of another walk.
    pub(crate) fn read(self, p: &Params) -> ApiResult<Option<String>> {
        let text: Option<String> = p.get("cursor", "the `next` of a page")?;
        text.map(|t| self.key(&t)).transpose()
    }

    fn key(self, text: &str) -> ApiResult<String> {
        let refuse = |title: &str| {
            Err(ApiError::new(Code::CursorInvalid, title).hint(
                "begin again without a cursor, and pass on `next` as it came with the same filters",
            ))
        };
        let bytes = (text.len() <= MAX).then(|| URL_SAFE_NO_PAD.decode(text));
        let Some(Ok(bytes)) = bytes else {
            return refuse("the cursor is no cursor");
        };
        match bytes.first() {
            Some(&VERSION) => {}
            Some(_) => return refuse("the cursor was made by another version of the hub"),
            None => return refuse("the cursor is empty"),
        }
        let Some((body, check)) = bytes
            .len()
            .checked_sub(CHECK)
            .map(|n| bytes.split_at(n))
            .filter(|(body, _)| body.len() > PRINT)
        else {
            return refuse("the cursor was cut off");
        };
        if sha256(body)[..CHECK] != *check {
            return refuse("the cursor was changed on its way");
        }
        let (print, key) = body[1..].split_at(PRINT);
        if print != self.0 {
            return refuse(
                "the cursor is of another walk: another list, other filters, another account or another hub",
            );
        }
        match std::str::from_utf8(key) {
            Ok(key) => Ok(key.to_owned()),
            Err(_) => refuse("the cursor is no cursor"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(r: ApiResult<String>) -> String {
        r.unwrap_err().0.code
    }

    #[test]
    fn a_cursor_leads_back_to_its_key_in_its_own_walk_only() {
        let walk = Walk::over(&["hub", "default", "tasks", "status=queued"]);
        let cursor = walk.cursor("0190-some key/ü");
        assert_eq!(walk.key(&cursor).unwrap(), "0190-some key/ü");
        assert_eq!(walk.key(&walk.cursor("")).unwrap(), "");
        for other in [
            ["hub2", "default", "tasks", "status=queued"],
            ["hub", "other", "tasks", "status=queued"],
            ["hub", "default", "messages", "status=queued"],
            ["hub", "default", "tasks", ""],
            ["hub", "default", "taskss", "tatus=queued"],
        ] {
            assert_eq!(code(Walk::over(&other).key(&cursor)), "cursor_invalid");
        }
    }

    #[test]
    fn every_change_of_a_cursor_is_noticed() {
        let walk = Walk::over(&["hub", "default", "tasks", ""]);
        let cursor = walk.cursor("0190b5c8-0000-7000-8000-000000000001");
        for at in 0..cursor.len() {
            let mut bytes = cursor.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(code(walk.key(&changed)), "cursor_invalid", "{changed}");
            assert_eq!(code(walk.key(&cursor[..at])), "cursor_invalid");
        }
        let long = "A".repeat(MAX + 1);
        for text in ["", "é", "A", "AQ", "====", long.as_str()] {
            assert_eq!(code(walk.key(text)), "cursor_invalid", "{text}");
        }
    }
}
