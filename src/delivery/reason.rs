//! Why an envelope waits or is refused: stable words for senders, `status` and logs.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Why an envelope waits or is refused, in one stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, for the reference.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason as receipts and task states carry it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The reason of this word.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|r| r.as_str() == word)
            }
        }
    };
}

reasons! {
    /// The user paused the daemon.
    Paused = "paused";
    /// The user wants quiet.
    DoNotDisturb = "do_not_disturb";
    /// The user muted the sender.
    SenderMuted = "sender_muted";
    /// `features.message_notification` is off.
    MessageNotificationOff = "message_notification_off";
    /// `features.remote_task_execution` is off.
    RemoteTaskExecutionOff = "remote_task_execution_off";
    /// A person has to decide.
    AwaitingApproval = "awaiting_approval";
    /// The session waits for a person at a permission prompt.
    WaitingPermission = "waiting_permission";
    /// The session closed a moment ago; its user may come back to it.
    IdleThreshold = "idle_threshold";
    /// The session is closed and the envelope does not wake it.
    SessionClosed = "session_closed";
    /// The project has no session yet, and a message starts none.
    NoSession = "no_session";
    /// One of our own runs has the session.
    SessionRunning = "session_running";
    /// All run slots are taken.
    NoCapacity = "no_capacity";
    /// No `claude` was found on this machine.
    ClaudeNotFound = "claude_not_found";
    /// Claude's login is gone or refused.
    ClaudeAuth = "claude_auth";
    /// The model's usage or rate limit is reached.
    RateLimit = "rate_limit";
    /// The model's service is overloaded.
    Overloaded = "overloaded";
    /// The account behind Claude cannot be charged.
    ClaudeBilling = "claude_billing";
    /// The model's service answers with errors.
    ApiUnavailable = "api_unavailable";
    /// The project's tree has uncommitted changes and no worktree can be made.
    TreeDirty = "tree_dirty";
    /// The project's tree is being worked on and no worktree can be made.
    TreeBusy = "tree_busy";
    /// An older attempt of the same task is being stopped.
    OlderAttempt = "older_attempt";
    /// The project is not enabled on this device.
    ProjectNotEnabled = "project_not_enabled";
    /// The sender may send messages only.
    TrustTooLow = "trust_too_low";
    /// A person said no.
    Denied = "denied";
    /// Nobody decided in time.
    ApprovalExpired = "approval_expired";
    /// It passed through too many agents.
    HopsExceeded = "hops_exceeded";
    /// The content does not have the kind's shape.
    BadBody = "bad_body";
    /// The session is not, or no longer, known here.
    UnknownSession = "unknown_session";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_distinct_snake_case_words() {
        let words: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        for w in words {
            assert!(
                w.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{w:?}"
            );
        }
    }
}
