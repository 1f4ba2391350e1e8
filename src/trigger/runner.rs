//! One run: a process in a group of its own, its pipes, its clock and its end.
//!
//! ```text
//! spawn (retried) ─> `started` stored ─> prompt ─> stdin ┐
//!                                        stdout ─> events ├─ at the same time, so that no full pipe can block
//!                                        stderr ─> tail   ┘
//! cancel, shutdown or wall clock: interrupt the group ─ grace ─> terminate ─ grace ─> kill
//! process ended: kill what is left of its group ─> drain ─> reap ─> Ended
//! ```
//!
//! - The process id and start time are stored **before** the prompt is written: a daemon that dies at any moment later
//!   leaves a run that its successor finds, and before that moment the run has done nothing.
//! - The end is noticed without reaping, so that the group's id is still ours when its rest is killed.
//! - Dropping the future kills the group.
//! - Progress is told through a bounded channel: while its reader is behind, only the latest step waits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::claude::headless::{ENV_REMOVE, ENV_RUN};
use crate::claude::{Prompt, RunResult};
use crate::domain::{Progress, SessionId, TaskState, TaskStatus};

use super::group::{Ask, ask_group, exit_of, start_time, wait_unreaped};
use super::{Exit, Kill, Observed, redact};

mod read;

use read::{Seen, Tail};

/// How long the pipes may go on after the process and its group are gone.
const DRAIN: Duration = Duration::from_secs(2);

/// What to run.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// The CLI's path.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The folder it works in.
    pub cwd: PathBuf,
    /// What goes on its standard input.
    pub prompt: Prompt,
    /// Variables of the user's own for it; ours are set and dropped after them.
    pub env: Vec<(OsString, OsString)>,
    /// The run's id, in [`ENV_RUN`].
    pub run_id: String,
    /// The conversation that was asked for.
    pub session_id: SessionId,
    /// Wall-clock time at most.
    pub timeout: Duration,
    /// How long each demand to end is waited for, before the next.
    pub grace: Duration,
    /// Waits before each further try to start it.
    pub spawn_retry: Vec<Duration>,
}

/// A process that runs and has read nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStarted {
    /// Its id, which is its group's, too.
    pub pid: u32,
    /// When it started, see [`super::start_time`]; 0 if it is gone already.
    pub start_time: u64,
    /// The conversation that was asked for.
    pub session_id: SessionId,
}

/// What a run says on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEvent {
    /// The conversation's id, as the run names it; it can differ from the one asked for.
    Session(SessionId),
    /// A step.
    Progress(Progress),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Its result line.
    pub result: Option<RunResult>,
    /// How the process ended; empty if it would not even be killed.
    pub exit: Exit,
    /// Why we ended it, if we did.
    pub killed_by: Option<Kill>,
    /// The conversation, as the run named it.
    pub session_id: Option<SessionId>,
    /// The end of its standard error, redacted.
    pub stderr: String,
    /// The last step.
    pub last_text: Option<String>,
    /// How often it called each tool.
    pub tools: BTreeMap<String, u32>,
    /// Lines that were no JSON, and lines that were too long.
    pub unread_lines: (u64, u64),
    /// Steps that were not told because their reader was behind.
    pub skipped: u64,
}

impl Ended {
    /// Whether the model had the prompt: it answered, called a tool, or the result counts a turn.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        let told = self.result.as_ref().map(|r| &r.task);
        let turned = told.is_some_and(|r| r.num_turns.map_or(!r.is_error, |n| n > 0));
        self.last_text.is_some() || !self.tools.is_empty() || turned
    }

    /// What [`super::outcome()`] needs of it.
    #[must_use]
    pub fn observed(&self) -> Observed<'_> {
        Observed {
            result: self.result.as_ref(),
            exit: self.exit,
            killed_by: self.killed_by,
            stderr: &self.stderr,
            last_text: self.last_text.as_deref(),
            tools: &self.tools,
            session_id: self.session_id,
            resets_at: None,
        }
    }
}

/// Why a run did not begin. In none of these cases was a prompt read.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program is not there.
    #[error("no Claude Code at {}: install it, or set `claude_bin`", .0.display())]
    ClaudeNotFound(PathBuf),
    /// The folder is not there.
    #[error("the folder {} is gone: enable the project anew", .0.display())]
    FolderMissing(PathBuf),
    /// The system would not start it.
    #[error("{} could not be started after {tries} tries: {source}", .program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// How often it was tried.
        tries: usize,
        /// The last error.
        source: io::Error,
    },
    /// The start could not be stored, so the process was killed.
    #[error("the run's start could not be stored: {0}")]
    NotStored(String),
    /// It was called off before it began.
    #[error("called off before it began")]
    CalledOff(Kill),
}

impl RunError {
    /// The task's state for it.
    #[must_use]
    pub fn task_state(&self) -> TaskState {
        use TaskStatus::{Blocked, Cancelled, Failed, Interrupted};
        match self {
            Self::ClaudeNotFound(_) => TaskState::because(Blocked, "claude_not_found"),
            Self::FolderMissing(_) => TaskState::because(Failed, "folder_missing"),
            Self::Spawn { .. } => TaskState::because(Failed, "spawn"),
            Self::NotStored(_) => TaskState::because(Blocked, "store_unavailable"),
            Self::CalledOff(Kill::Cancelled) => TaskState::new(Cancelled),
            Self::CalledOff(Kill::Timeout) => TaskState::because(Failed, "timeout"),
            Self::CalledOff(Kill::Shutdown) => TaskState::because(Interrupted, "daemon_stopped"),
        }
    }
}

/// What ends a run from outside.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    /// The task was cancelled.
    pub cancel: CancellationToken,
    /// The daemon stops.
    pub shutdown: CancellationToken,
}

impl Stops {
    fn check(&self) -> Result<(), RunError> {
        if self.cancel.is_cancelled() {
            Err(RunError::CalledOff(Kill::Cancelled))
        } else if self.shutdown.is_cancelled() {
            Err(RunError::CalledOff(Kill::Shutdown))
        } else {
            Ok(())
        }
    }

    async fn stopped(&self) -> Kill {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Kill::Cancelled,
            () = self.shutdown.cancelled() => Kill::Shutdown,
        }
    }
}

/// Runs the CLI once. `started` stores the process; the prompt is written after it succeeded.
///
/// # Errors
/// When the run did not begin, see [`RunError`].
///
/// # Cancel safety
/// Dropping the future kills the process and its group; what it said is lost.
pub async fn run<F, Fut, E>(
    spec: &RunSpec,
    started: F,
    events: mpsc::Sender<RunEvent>,
    stops: &Stops,
) -> Result<Ended, RunError>
where
    F: FnOnce(RunStarted) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    let mut child = spawn(spec, stops).await?;
    let mut group = Group(child.id());
    let pid = child.id().unwrap_or_default();
    let stored = started(RunStarted {
        pid,
        start_time: start_time(pid).unwrap_or_default(),
        session_id: spec.session_id,
    });
    stored
        .await
        .map_err(|e| RunError::NotStored(e.to_string()))?;
    // Called off while it was started: it has read nothing, and will not.
    stops.check()?;

    let mut seen = Seen::new(events);
    let mut tail = Tail::default();
    let mut killed_by = None;
    let mut exited = tokio::task::spawn_blocking(move || wait_unreaped(pid));
    let gone = {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pipes = async {
            tokio::join!(
                write(stdin, spec.prompt.as_str()),
                seen.read(stdout),
                tail.read(stderr)
            )
        };
        tokio::pin!(pipes);
        let clock = tokio::time::sleep(spec.timeout);
        tokio::pin!(clock);
        let patience = tokio::time::sleep(Duration::MAX);
        tokio::pin!(patience);
        let mut asked: Option<Ask> = None;
        let mut drained = false;
        let gone = loop {
            let kill = tokio::select! {
                biased;
                _ = &mut exited => break true,
                kill = stops.stopped(), if killed_by.is_none() => Some(kill),
                () = &mut clock, if killed_by.is_none() => Some(Kill::Timeout),
                () = &mut patience, if asked.is_some() => None,
                _ = &mut pipes, if !drained => { drained = true; continue }
            };
            let ask = match (kill, asked) {
                (Some(_), _) | (None, None) => Some(Ask::Interrupt),
                (None, Some(ask)) => ask.next(),
            };
            killed_by = killed_by.or(kill);
            // Not even a kill was heard: the system holds it, and it holds nobody else.
            let Some(ask) = ask else { break false };
            ask_group(pid, ask);
            asked = Some(ask);
            patience
                .as_mut()
                .reset(tokio::time::Instant::now() + spec.grace);
        };
        ask_group(pid, Ask::Kill);
        if !drained {
            // A process that left the group may hold the pipes; it is not waited for.
            drop(tokio::time::timeout(DRAIN, &mut pipes).await);
        }
        gone
    };
    let exit = if gone {
        group.0 = None;
        child.wait().await.map(exit_of).unwrap_or_default()
    } else {
        Exit::default()
    };
    Ok(seen.into_ended(exit, killed_by, redact(&tail.into_text())))
}

/// Kills the group when a run's future is dropped; disarmed once the leader is reaped.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            ask_group(leader, Ask::Kill);
        }
    }
}

async fn spawn(spec: &RunSpec, stops: &Stops) -> Result<Child, RunError> {
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.args)
        .current_dir(&spec.cwd)
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .env(ENV_RUN, &spec.run_id)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    for name in ENV_REMOVE {
        command.env_remove(name);
    }
    let mut waits = spec.spawn_retry.iter();
    let mut tries = 0;
    loop {
        stops.check()?;
        tries += 1;
        let source = match command.spawn() {
            Ok(child) => return Ok(child),
            Err(e) => e,
        };
        if source.kind() == io::ErrorKind::NotFound && !spec.cwd.is_dir() {
            return Err(RunError::FolderMissing(spec.cwd.clone()));
        }
        let wait = waits.next().filter(|_| may_pass(&source));
        let Some(wait) = wait else {
            return Err(match source.kind() {
                io::ErrorKind::NotFound => RunError::ClaudeNotFound(spec.program.clone()),
                _ => RunError::Spawn {
                    program: spec.program.clone(),
                    tries,
                    source,
                },
            });
        };
        tracing::warn!(error = %source, tries, "could not start a run, trying again");
        tokio::select! {
            biased;
            kill = stops.stopped() => return Err(RunError::CalledOff(kill)),
            () = tokio::time::sleep(*wait) => {}
        }
    }
}

/// Whether a further try may go better: an update replaces the program just now, or the system is short of something.
fn may_pass(e: &io::Error) -> bool {
    !matches!(
        e.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::ArgumentListTooLong
    )
}

/// Writes the prompt and ends the input. A program that does not want to read it is no error: its end tells more.
async fn write(stdin: Option<ChildStdin>, prompt: &str) {
    let Some(mut stdin) = stdin else { return };
    if stdin.write_all(prompt.as_bytes()).await.is_ok() {
        drop(stdin.shutdown().await);
    }
}

#[cfg(test)]
mod tests;
