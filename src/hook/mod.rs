//! The hook command: what the CLI runs at every event of every session.
//!
//! A hook never hurts. It reads one JSON object from stdin, asks the daemon over its Unix socket under a deadline,
//! prints exactly what the daemon answered or nothing, and exits 0. Whatever goes wrong here (no daemon, a stopped
//! one, a full disk, input that is no JSON, a panic) ends in silence and 0: the CLI shows a failing hook to the
//! user at every prompt, and what a hook prints by mistake goes to the model. The one exit code of meaning is 2, for
//! the doorbell's `FileChanged` entry, and only when the daemon says so.
//!
//! With `agent_id` in the input the event happened inside a subagent, under its parent's session id: nothing is done.
//! While the daemon is away, events that change what it would know of a session are kept in a bounded spool, one JSON
//! line each, which it reads at its start; tool calls are not, they say nothing once they are past. In any case
//! `session-state/<session>.active` tells when the session was last active.
//!
//! No tokio, TLS, SQLite or tracing on this path: a hook must cost little more than starting a process.

mod input;
mod spool;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write as _};
use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::claude::config_dir;
use crate::domain::limits::{HOOK_DEADLINE_MS, HOOK_START_DEADLINE_MS};
use crate::local::{Client, ClientError, Env, HookAnswer, HookCall, Places, process_env};

pub use spool::{MAX_LINE, MAX_SPOOL, SPOOL_FILE};

/// What the process itself takes, from its spawn to its exit, beside the wait, ms: 2 to 5 were measured.
const OWN_MS: u64 = 10;
/// Bytes of input that are read; a larger input is not looked at.
const MAX_INPUT: u64 = 1 << 20;
/// Bytes of an oversize input that are still taken off the pipe, so that the CLI's write does not fail.
const MAX_DRAIN: u64 = 64 << 20;
/// Bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;
/// The longest wait for a person's decision, seconds.
const MAX_WAIT_S: u64 = 24 * 3600;

/// What the process prints and how it exits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// For stdout.
    pub stdout: Vec<u8>,
    /// For stderr.
    pub stderr: Vec<u8>,
    /// The exit code, 0 or 2.
    pub code: u8,
}

/// The flags of the hook command; what is not known is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Flags {
    data_dir: Option<PathBuf>,
    wait_s: u64,
}

impl Flags {
    fn parse(args: impl Iterator<Item = OsString>) -> Self {
        let mut flags = Self::default();
        let mut args = args;
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--data-dir") => flags.data_dir = args.next().map(PathBuf::from),
                Some("--wait") => {
                    let value = args.next().and_then(|v| v.to_str()?.parse().ok());
                    flags.wait_s = value.unwrap_or(0).min(MAX_WAIT_S);
                }
                Some(other) => {
                    if let Some(dir) = other.strip_prefix("--data-dir=") {
                        flags.data_dir = Some(dir.into());
                    }
                }
                None => {}
            }
        }
        flags
    }
}

/// The whole command: `args` are those after `hook`. To be called before anything else of the program is set up.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    // The default hook prints a backtrace to stderr; nobody is there to read it.
    panic::set_hook(Box::new(|_| {}));
    let flags = Flags::parse(args);
    let outcome =
        panic::catch_unwind(|| run(input::Stdin::new(), &flags, &process_env)).unwrap_or_default();
    // A closed pipe means that the CLI no longer listens.
    drop(io::stdout().lock().write_all(&outcome.stdout));
    drop(io::stdout().lock().flush());
    drop(io::stderr().lock().write_all(&outcome.stderr));
    ExitCode::from(outcome.code)
}

/// What the hook itself has to know of its input.
#[derive(Debug, Deserialize)]
struct Head<'a> {
    #[serde(default)]
    session_id: Value,
    #[serde(default)]
    hook_event_name: Value,
    #[serde(default)]
    agent_id: Value,
    #[serde(default, borrow)]
    transcript_path: Option<&'a RawValue>,
    #[serde(default, borrow)]
    cwd: Option<&'a RawValue>,
}

fn run(stdin: impl Read, flags: &Flags, env: Env<'_>) -> Outcome {
    handle(stdin, flags, env).unwrap_or_default()
}

/// `None` where there is nothing to do or to say.
fn handle(stdin: impl Read, flags: &Flags, env: Env<'_>) -> Option<Outcome> {
    let input = read_input(stdin)?;
    let head: Head<'_> = serde_json::from_str(&input).ok()?;
    let event = head.hook_event_name.as_str()?;
    if !head.agent_id.is_null() {
        return None;
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    if let Some(session) = head.session_id.as_str() {
        mark_active(session, event, now, env);
    }
    let places = Places::resolve(flags.data_dir.as_deref(), env).ok()?;
    let raw: &RawValue = serde_json::from_str(&input).ok()?;
    let mut call = HookCall {
        input: raw,
        pid: text(env, "CLAUDE_PID").and_then(|v| v.parse().ok()),
        entrypoint: text(env, "CLAUDE_CODE_ENTRYPOINT"),
        attended: text(env, "CLAUDE_CODE_SESSION_ATTENDED").map(|v| v == "1"),
        messaging_socket: text(env, "CLAUDE_CODE_MESSAGING_SOCKET"),
        run: text(env, "REMOTE_COLLAB_RUN"),
        at: None,
    };
    let answer: Result<HookAnswer, ClientError> = Client::new(places.find_socket(env))
        .max_body(MAX_ANSWER)
        .post("/hook", &call, deadline(event, flags));
    match answer {
        Ok(answer) => Some(outcome(event, answer)),
        Err(ClientError::NotRunning { .. } | ClientError::Timeout) => {
            call.at = i64::try_from(now.as_millis()).ok();
            spool::keep(&places.spool(), event, &call, &head);
            None
        }
        Err(_) => None,
    }
}

/// The wait for the daemon at this event: the hook's time without what its own start and end take.
fn deadline(event: &str, flags: &Flags) -> Duration {
    match event {
        "SessionStart" => Duration::from_millis(HOOK_START_DEADLINE_MS - OWN_MS),
        "PermissionRequest" if flags.wait_s > 0 => Duration::from_secs(flags.wait_s),
        _ => Duration::from_millis(HOOK_DEADLINE_MS - OWN_MS),
    }
}

/// What to print for the daemon's answer.
fn outcome(event: &str, answer: HookAnswer) -> Outcome {
    let code = if answer.exit == 2 && event == "FileChanged" {
        2
    } else {
        0
    };
    let stdout = match answer.output {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.into_bytes(),
        Some(value) => serde_json::to_vec(&value).unwrap_or_default(),
    };
    Outcome {
        stdout,
        stderr: answer.stderr.map(String::into_bytes).unwrap_or_default(),
        code,
    }
}

fn read_input(mut stdin: impl Read) -> Option<String> {
    let mut bytes = Vec::with_capacity(8 << 10);
    (&mut stdin)
        .take(MAX_INPUT + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    if bytes.len() as u64 > MAX_INPUT {
        io::copy(&mut stdin.take(MAX_DRAIN), &mut io::sink()).ok()?;
        return None;
    }
    String::from_utf8(bytes).ok()
}

fn text(env: Env<'_>, name: &str) -> Option<String> {
    env(name)?.into_string().ok()
}

/// Notes that the session is active, in Unix seconds; takes the note away when the session ends. The id must be a UUID: it becomes a file name.
fn mark_active(session: &str, event: &str, now: Duration, env: Env<'_>) {
    let Ok(id) = Uuid::parse_str(session) else {
        return;
    };
    let Some(dir) = config_dir(env).map(|config| config.join("session-state")) else {
        return;
    };
    let file = dir.join(format!("{id}.active"));
    if event == "SessionEnd" {
        drop(fs::remove_file(file));
        return;
    }
    let seconds = now.as_secs().to_string();
    if let Err(e) = spool::write(&file, seconds.as_bytes(), false)
        && e.kind() == io::ErrorKind::NotFound
        && spool::create_dir(&dir).is_ok()
    {
        drop(spool::write(&file, seconds.as_bytes(), false));
    }
}

#[cfg(test)]
mod tests;
