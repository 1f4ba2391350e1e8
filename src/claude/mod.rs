//! What we know of Claude Code, and the only place that knows it.
//!
//! The CLI's formats (hook input and output, settings, the registry of live sessions, transcripts, `stream-json`) are
//! partly documented and all of them move. So everything here reads tolerantly (an unknown event, field or line is
//! kept or skipped, never an error) and writes strictly (only what a recorded version was seen to accept). The rest
//! of the program speaks of sessions, turns and evidence, and does not know these formats.
//!
//! | file | knows |
//! |---|---|
//! | `hook_event`, `hook_input` | what a hook is told |
//! | `hook_output` | what a hook may answer |
//! | `settings` | how our hooks get into the user's settings and out again |
//! | `live`, `process` | which sessions are open, and whether their process is the same as ever |
//! | `transcript` | whether a text was seen |
//! | `headless`, `prompt`, `stream` | how to start `claude -p`, what to say to it, what it says |

pub mod headless;
mod hook_event;
mod hook_input;
mod hook_output;
mod live;
mod process;
mod prompt;
pub mod settings;
mod stream;
pub mod transcript;

pub use hook_event::{EndReason, HookEvent, HookName, NoticeKind, StartSource};
pub use hook_input::{HookInput, NotAHook};
pub use hook_output::{Decision, HookOutput};
pub use live::{LiveScan, LiveSession, config_dir, live_session, live_sessions};
pub use process::{MAX_ANCESTORS, Process, ProcessTable, SystemProcesses, ancestors, is_same};
pub use prompt::{Prompt, neutralise};
pub use stream::{MAX_STREAM_LINE, RunResult, StreamEvent, StreamReader};
