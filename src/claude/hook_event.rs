//! The events of a session's life, as a hook hears of them.

use std::path::PathBuf;

use serde_json::Value;

macro_rules! hook_names {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The name of an event that we know.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum HookName { $($(#[$doc])* $name,)* }

        impl HookName {
            /// Every name.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name as the CLI writes it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The event of this name.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                match name { $(stringify!($name) => Some(Self::$name),)* _ => None }
            }
        }
    };
}

hook_names! {
    /// A session opens, resumes, is cleared, compacted or forked.
    SessionStart,
    /// A turn begins.
    UserPromptSubmit,
    /// A tool is about to run.
    PreToolUse,
    /// A tool ran.
    PostToolUse,
    /// A tool failed.
    PostToolUseFailure,
    /// A turn ends.
    Stop,
    /// A turn ends in an API error.
    StopFailure,
    /// The CLI wants the user's attention.
    Notification,
    /// A tool waits for a person's permission.
    PermissionRequest,
    /// The session's folder changed.
    CwdChanged,
    /// A watched file changed.
    FileChanged,
    /// The conversation is about to be compacted.
    PreCompact,
    /// The conversation was compacted.
    PostCompact,
    /// A session ends, or its id is given up.
    SessionEnd,
}

/// What made a session start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StartSource {
    /// A new session.
    Startup,
    /// `/clear`: the same process goes on under a new id.
    Clear,
    /// After a compaction.
    Compact,
    /// An earlier conversation is taken up.
    Resume,
    /// A copy of an earlier conversation, under a new id.
    Fork,
    /// One that we do not know; empty if none was named.
    Other(String),
}

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// `/clear`: the process lives on under a new id.
    Clear,
    /// The user logged out.
    Logout,
    /// The user left.
    PromptInputExit,
    /// Another conversation was taken up in the same process.
    Resume,
    /// One that we do not know, or `other`.
    Other(String),
}

/// What the CLI wants attention for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// A permission dialog is open.
    PermissionPrompt,
    /// The session waits for the user's next prompt.
    IdlePrompt,
    /// One that we do not know; empty if none was named.
    Other(String),
}

/// An event with what belongs to it; fields that the CLI left out are empty.
#[derive(Debug, Clone, PartialEq)]
pub enum HookEvent {
    /// See [`HookName::SessionStart`].
    SessionStart {
        /// What made it start.
        source: StartSource,
        /// The model's name.
        model: Option<String>,
    },
    /// See [`HookName::UserPromptSubmit`].
    UserPromptSubmit {
        /// What was submitted: the user's text, or the raw text that came in by the inbox or a rewake.
        prompt: String,
    },
    /// See [`HookName::PreToolUse`].
    PreToolUse {
        /// The tool's name.
        tool: String,
        /// What it is called with.
        input: Value,
    },
    /// See [`HookName::PostToolUse`].
    PostToolUse {
        /// The tool's name.
        tool: String,
        /// What it was called with.
        input: Value,
    },
    /// See [`HookName::PostToolUseFailure`].
    PostToolUseFailure {
        /// The tool's name.
        tool: String,
        /// What it was called with.
        input: Value,
        /// What went wrong.
        error: String,
        /// Whether the user interrupted it.
        interrupted: bool,
    },
    /// See [`HookName::Stop`].
    Stop {
        /// Whether this turn was already continued by a Stop hook.
        stop_hook_active: bool,
        /// The turn's last assistant message.
        last_assistant_message: Option<String>,
        /// Tasks that go on in the background: the session is paused rather than free.
        background_tasks: usize,
    },
    /// See [`HookName::StopFailure`].
    StopFailure {
        /// The class of error, such as `rate_limit`; empty if none was named.
        error: String,
        /// The error in words.
        message: Option<String>,
    },
    /// See [`HookName::Notification`].
    Notification {
        /// What for.
        kind: NoticeKind,
        /// What the user is told.
        message: String,
    },
    /// See [`HookName::PermissionRequest`].
    PermissionRequest {
        /// The tool's name.
        tool: String,
        /// What it would be called with.
        input: Value,
    },
    /// See [`HookName::CwdChanged`].
    CwdChanged {
        /// The folder before.
        old: Option<PathBuf>,
        /// The folder now.
        new: Option<PathBuf>,
    },
    /// See [`HookName::FileChanged`].
    FileChanged {
        /// The watched file.
        path: Option<PathBuf>,
        /// What happened to it.
        change: String,
    },
    /// See [`HookName::PreCompact`].
    PreCompact {
        /// Whether the user asked for it.
        manual: bool,
    },
    /// See [`HookName::PostCompact`].
    PostCompact {
        /// Whether the user asked for it.
        manual: bool,
        /// What the conversation was compacted to.
        summary: Option<String>,
    },
    /// See [`HookName::SessionEnd`].
    SessionEnd {
        /// Why.
        reason: EndReason,
    },
    /// One that we do not know.
    Other {
        /// Its name.
        name: String,
    },
}

impl HookEvent {
    /// The event's name, if it is one that we know.
    #[must_use]
    pub const fn name(&self) -> Option<HookName> {
        Some(match self {
            Self::SessionStart { .. } => HookName::SessionStart,
            Self::UserPromptSubmit { .. } => HookName::UserPromptSubmit,
            Self::PreToolUse { .. } => HookName::PreToolUse,
            Self::PostToolUse { .. } => HookName::PostToolUse,
            Self::PostToolUseFailure { .. } => HookName::PostToolUseFailure,
            Self::Stop { .. } => HookName::Stop,
            Self::StopFailure { .. } => HookName::StopFailure,
            Self::Notification { .. } => HookName::Notification,
            Self::PermissionRequest { .. } => HookName::PermissionRequest,
            Self::CwdChanged { .. } => HookName::CwdChanged,
            Self::FileChanged { .. } => HookName::FileChanged,
            Self::PreCompact { .. } => HookName::PreCompact,
            Self::PostCompact { .. } => HookName::PostCompact,
            Self::SessionEnd { .. } => HookName::SessionEnd,
            Self::Other { .. } => return None,
        })
    }
}
