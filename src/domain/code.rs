//! Stable error codes: what clients match on, over HTTP, on the link and from the command line.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// What went wrong, in one stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code, for the reference in `proto/`.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as it stands on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status that carries it.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The code with this text.
            #[must_use]
            pub fn parse(s: &str) -> Option<Self> {
                match s { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// The body is not JSON.
    MalformedJson = "malformed_json", 400;
    /// A field is missing, of the wrong type or out of range.
    InvalidField = "invalid_field", 400;
    /// The target cannot be chosen: several devices, none named.
    TargetRequired = "target_required", 400;
    /// The cursor is not of this list; the walk begins anew without one.
    CursorInvalid = "cursor_invalid", 400;
    /// No credential was sent.
    TokenMissing = "token_missing", 401;
    /// The credential cannot be verified.
    TokenInvalid = "token_invalid", 401;
    /// The credential is past its time.
    TokenExpired = "token_expired", 401;
    /// The credential was called back.
    TokenRevoked = "token_revoked", 401;
    /// The device's clock is off; the answer carries the hub's time.
    ClockSkew = "clock_skew", 401;
    /// A single-use credential was used before.
    TokenUsed = "token_used", 401;
    /// The device was revoked.
    DeviceRevoked = "device_revoked", 403;
    /// The credential lacks the scope.
    ScopeMissing = "scope_missing", 403;
    /// The sender's trust does not reach so far.
    TrustTooLow = "trust_too_low", 403;
    /// A person has to do this, not a program.
    PersonRequired = "person_required", 403;
    /// The request came from a page or host that has no business here.
    OriginRefused = "origin_refused", 403;
    /// No such path.
    NotFound = "not_found", 404;
    /// No such target; the answer names what is known.
    UnknownTarget = "unknown_target", 404;
    /// No such task.
    UnknownTask = "unknown_task", 404;
    /// No such message.
    UnknownMessage = "unknown_message", 404;
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The idempotency key was used with another body.
    IdempotencyMismatch = "idempotency_mismatch", 409;
    /// Somebody else changed it first.
    Conflict = "conflict", 409;
    /// Another live instance holds this device's key.
    KeyHeldElsewhere = "key_held_elsewhere", 409;
    /// The long-poll session is not open any more: open another.
    PollClosed = "poll_closed", 410;
    /// The body is larger than allowed.
    TooLarge = "too_large", 413;
    /// The content type is not JSON.
    UnsupportedMediaType = "unsupported_media_type", 415;
    /// The link's version is not spoken here.
    VersionUnsupported = "version_unsupported", 426;
    /// Too many requests; the answer says when to try again.
    RateLimited = "rate_limited", 429;
    /// The device's mailbox is full.
    MailboxFull = "mailbox_full", 429;
    /// Something is wrong here.
    Internal = "internal", 500;
    /// The store cannot be written now.
    StoreUnavailable = "store_unavailable", 503;
    /// The server is stopping.
    GoingAway = "going_away", 503;
    /// The disk is full.
    DiskFull = "disk_full", 507;
    /// A frame that cannot be read, or at the wrong time.
    ProtocolError = "protocol_error", 400;
    /// The peer went silent.
    HeartbeatLost = "heartbeat_lost", 408;
    /// A newer connection of the same device took over.
    Superseded = "superseded", 409;
    /// The project is not enabled on the device.
    ProjectNotEnabled = "project_not_enabled", 403;
    /// The daemon is not running.
    NotRunning = "not_running", 503;
    /// The daemon is not connected to its hub.
    NotConnected = "not_connected", 503;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

/// An `application/problem+json` body (RFC 9457) with our stable `code`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The stable code, see [`Code`]; text, so that a later version's code can be read.
    pub code: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened, to what.
    pub title: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When to try again, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The server's time, Unix ms; with `clock_skew`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<i64>,
    /// Where the task or message stands, when that is why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What is known, with `unknown_target`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
    /// Every fault of the body, with `invalid_field`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldFault>,
}

/// One fault of a body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldFault {
    /// Where: a JSON pointer into the body, or the name of a header or query parameter.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
}

impl Problem {
    /// The problem of this code.
    #[must_use]
    pub fn new(code: Code, title: impl Into<String>) -> Self {
        Self {
            code: code.as_str().to_owned(),
            status: code.http_status(),
            title: title.into(),
            detail: None,
            retry_after_s: None,
            now: None,
            state: None,
            known: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// The problem with advice.
    #[must_use]
    pub fn hint(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The code, if this version knows it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        Code::parse(&self.code)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.title, self.code)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back_from_its_text() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
    }
}
