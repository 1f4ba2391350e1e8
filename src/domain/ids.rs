//! Names of things: checked once, at the edge, so that no later code has to.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{what}` must be {rule}")]
pub struct IdError {
    /// The kind of name that was expected.
    pub what: &'static str,
    /// What such a name looks like.
    pub rule: &'static str,
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The id with this value; for fixed ids in tests.
            #[must_use]
            pub const fn from_u128(v: u128) -> Self {
                Self(Uuid::from_u128(v))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                Uuid::parse_str(s).map(Self).map_err(|_| IdError { what: $what, rule: "a UUID" })
            }
        }
    };
}

uuid_id!(
    /// Names an envelope for ever; a UUIDv7 minted once at the hub (or by the daemon for local posts); the idempotency key everywhere.
    EnvelopeId, "envelope id");
uuid_id!(
    /// Names a Claude Code conversation, as the CLI does; it can rotate (`/clear`, compaction, fork).
    SessionId, "session id");
uuid_id!(
    /// Names one life of a store: `hello.instance`, an outbox, a mailbox epoch; random, born with the store.
    InstanceId, "instance id");
uuid_id!(
    /// Names a claim; its text form is the nonce carried by every text that the claim hands over.
    ClaimId, "claim id");

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:path, $schema:tt) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String", extend("allOf" = $schema))]
        pub struct $name(String);

        impl $name {
            /// The checked name.
            ///
            /// # Errors
            /// When the text is not such a name.
            pub fn new(s: impl Into<String>) -> Result<Self, IdError> {
                let s = s.into();
                if $check(&s) { Ok(Self(s)) } else { Err(IdError { what: $what, rule: $rule }) }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                Self::new(s)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(s: String) -> Result<Self, IdError> {
                Self::new(s)
            }
        }

        impl From<$name> for String {
            fn from(v: $name) -> Self {
                v.0
            }
        }
    };
}

text_id!(
    /// Names an enrolled machine: minted by the hub at enrolment.
    DeviceId, "device", "1 to 64 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit", is_name,
    [{"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}]);
text_id!(
    /// Names a tenant; everything at the hub belongs to one.
    AccountId, "account", "1 to 64 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit", is_name,
    [{"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}]);
text_id!(
/// Names an enabled folder: from config, else the git remote's `host/owner/repo`, else the folder's name.
ProjectName, "project", "1 to 200 characters without control characters, `\\`, empty or dotted path segments", is_project,
[
    {"maxLength": 200, "pattern": r"^[^/\\\u0000-\u001F\u007F-\u009F]*[^./\\\u0000-\u001F\u007F-\u009F][^/\\\u0000-\u001F\u007F-\u009F]*(/[^/\\\u0000-\u001F\u007F-\u009F]*[^./\\\u0000-\u001F\u007F-\u009F][^/\\\u0000-\u001F\u007F-\u009F]*)*$"},
    {"pattern": r"^\S(.*\S)?$"},
]);

fn is_name(s: &str) -> bool {
    s.len() <= 64
        && s.starts_with(|c: char| c.is_ascii_alphanumeric())
        && s.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

fn is_project(s: &str) -> bool {
    s.chars().count() <= 200
        && !s.chars().any(|c| c.is_control() || c == '\\')
        && s.trim() == s
        && s.split('/')
            .all(|part| !part.is_empty() && !part.chars().all(|c| c == '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_become_paths_or_flags_are_refused() {
        for bad in [
            "", ".", "..", "../x", "a/../b", "/abs", "a//b", "a\nb", "a\\b", " a", "a/",
        ] {
            assert!(ProjectName::new(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "-rf", ".hidden", "a/b", "a b", &"x".repeat(65)] {
            assert!(DeviceId::new(bad).is_err(), "{bad:?}");
        }
        for good in ["github.com/acme/shop", "文件夹", "my project", "a.b"] {
            assert!(ProjectName::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn ids_keep_their_text_form_through_json() {
        let id = SessionId::from_u128(7);
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<SessionId>(&text).unwrap(), id);
        assert!(serde_json::from_str::<SessionId>("\"../etc\"").is_err());
    }
}
