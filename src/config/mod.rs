//! The daemon's configuration: where each value comes from, what it may be, and every problem at once.
//!
//! Later layers win: the defaults below, `~/.claude/remote-collab.json`, `REMOTE_COLLAB_*`, flags. A project's own
//! `.claude/remote-collab.json` comes with the repository, so somebody else may have written it: it can only switch
//! features off, ask for approval, lower limits and name itself.
//!
//! A key `runs.max_turns` is the variable `REMOTE_COLLAB_RUNS_MAX_TURNS`. Times are texts with a unit (`"90s"`, `"5m"`)
//! or plain seconds. A file that cannot be read, an unknown key and a value out of range are all problems, and all of
//! them are reported together, each with what to do; nothing starts on a configuration that has one.

mod claude_bin;
mod duration;
mod explain;
mod hub_url;
mod keys;
mod project;
mod proxy;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::domain::SessionId;

pub use claude_bin::{ClaudeBin, ClaudeBinError, find_claude};
pub use explain::{Explained, explain};
pub use hub_url::{HubUrl, HubUrlError};
pub use keys::{KEYS, Key};
pub use project::{Ignored, ProjectFile, read_project};
pub use proxy::{Proxies, ProxyChoice, ProxyError, ProxyUrl, ProxyUrlError};
pub use reader::Problem;

use reader::Reader;

/// Where the user's file lies below the home folder, and a project's below its own.
pub const FILE: &str = ".claude/remote-collab.json";
/// The largest configuration file that is read, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Which features are on; an envelope that needs one that is off is held with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Memory at a session's start.
    pub memory_injection: bool,
    /// Messages into sessions.
    pub message_notification: bool,
    /// Tasks.
    pub remote_task_execution: bool,
}

/// Which tasks wait for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Approval {
    /// The sender's trust decides.
    ByTrust,
    /// Every task waits.
    Always,
}

/// Which doors may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doors {
    /// Lines to a session's own socket.
    pub inbox: bool,
    /// The watched file and its hook.
    pub doorbell: bool,
    /// `claude -p` when no live process owns the session.
    pub headless: bool,
    /// The MCP server's channel.
    pub channel: bool,
}

/// How a run treats tools that would ask a person, as the user may choose it; the last one only here, never remotely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// What would ask is denied.
    Manual,
    /// Edits inside the project are allowed.
    AcceptEdits,
    /// Reads only, ends in a plan.
    Plan,
    /// Only what the rules allow.
    DontAsk,
    /// Nothing is asked.
    BypassPermissions,
}

impl RunMode {
    /// The CLI's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::AcceptEdits => "acceptEdits",
            Self::Plan => "plan",
            Self::DontAsk => "dontAsk",
            Self::BypassPermissions => "bypassPermissions",
        }
    }
}

/// Where a run works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workspace {
    /// In the project's folder.
    Same,
    /// In a git worktree of its own.
    Worktree,
}

/// The run policy: what a producer's options can only narrow.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Runs at a time.
    pub concurrent: u32,
    /// Wall clock of a run.
    pub timeout: Duration,
    /// Model turns of a run.
    pub max_turns: u32,
    /// Cost of a run, US dollars.
    pub max_budget_usd: f64,
    /// The permission mode.
    pub permission_mode: RunMode,
    /// Tools that need no permission, as the CLI's `--allowedTools` takes them.
    pub allowed_tools: Vec<String>,
    /// The model, if not the CLI's default.
    pub model: Option<String>,
    /// A file (0600) with `NAME=value` lines for the children's environment.
    pub env_file: Option<PathBuf>,
    /// Where a run works.
    pub workspace: Workspace,
}

/// What may differ between projects.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Which features are on.
    pub features: Features,
    /// Which tasks wait for a person.
    pub approval: Approval,
    /// The run policy.
    pub runs: Runs,
}

/// Which certificates are trusted beside the system's, PEM all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CaSources {
    /// The file of the key `ca_file`.
    pub file: Option<PathBuf>,
    /// The file of `SSL_CERT_FILE`.
    pub env_file: Option<PathBuf>,
    /// The folders of `SSL_CERT_DIR`.
    pub env_dirs: Vec<PathBuf>,
}

impl CaSources {
    fn read(file: Option<PathBuf>, env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let get = |name| env(name).filter(|v| !v.is_empty());
        let dirs = get("SSL_CERT_DIR").unwrap_or_default();
        Self {
            file,
            env_file: get("SSL_CERT_FILE").map(PathBuf::from),
            env_dirs: std::env::split_paths(&dirs)
                .filter(|p| !p.as_os_str().is_empty())
                .collect(),
        }
    }
}

/// The daemon's whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct DaemonConfig {
    /// The hub, if not the one of `login`.
    pub remote_api: Option<HubUrl>,
    /// Where the local API listens on loopback.
    pub local_api: SocketAddr,
    /// The session that unaddressed mail prefers; `None` is `auto`.
    pub session_id: Option<SessionId>,
    /// How soon the fallback tries the WebSocket again at first, and how often it asks where polls may not wait.
    pub poll_interval: Duration,
    /// Quiet time before a closed session is resumed headless.
    pub idle_threshold: Duration,
    /// The CLI, if not the first `claude` of `PATH`.
    pub claude_bin: Option<PathBuf>,
    /// Which certificates are trusted beside the system's.
    pub ca: CaSources,
    /// Through which proxy a hub is reached.
    pub proxies: Proxies,
    /// Which doors may be used.
    pub doors: Doors,
    /// Memory given at a session's start, tokens.
    pub memory_tokens: usize,
    /// The policy of projects that have none of their own.
    pub policy: Policy,
    /// Policies of single projects, by name, on top of [`Self::policy`].
    pub projects: BTreeMap<String, Policy>,
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the configuration has {} problem(s)", self.0.len())?;
        for problem in &self.0 {
            writeln!(f, "  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// What the configuration is read from; nothing is looked up in the process itself.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// The user's file, which may be missing.
    pub file: Option<&'a Path>,
    /// The environment.
    pub env: &'a dyn Fn(&str) -> Option<OsString>,
    /// Flags: key (see [`KEYS`]), value, and the flag's name for messages.
    pub flags: &'a [(&'a str, String, &'a str)],
}

impl fmt::Debug for Sources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("file", &self.file)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

impl DaemonConfig {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// All problems at once.
    pub fn load(sources: Sources<'_>) -> Result<Self, ConfigError> {
        let mut reader = Self::layers(sources);
        reader.check_names();
        let config = Self::read(&mut reader, sources.env);
        if let Some(path) = sources.file {
            reader.check_proxy_secret(path, &config.proxies);
        }
        if reader.problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError(reader.problems))
        }
    }

    fn layers(sources: Sources<'_>) -> Reader {
        let mut reader = Reader::default();
        if let Some(path) = sources.file {
            match read_file(path) {
                Ok(Some(value)) => reader.file(value, &path.display().to_string()),
                Ok(None) => {}
                Err(problem) => reader.problems.push(problem),
            }
        }
        for key in KEYS {
            let name = key.env();
            if let Some(value) = (sources.env)(&name) {
                reader.set(
                    key.path,
                    Value::String(value.to_string_lossy().into_owned()),
                    &name,
                );
            }
        }
        for (key, value, flag) in sources.flags {
            reader.set(key, Value::String(value.clone()), flag);
        }
        reader
    }

    fn read(r: &mut Reader, env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let policy = read_policy(r, "", &default_policy());
        let names = r.names("projects");
        let projects = names
            .into_iter()
            .map(|name| {
                let own = read_policy(r, &format!("projects.{name}."), &policy);
                (name, own)
            })
            .collect();
        Self {
            remote_api: r.hub_url("remote_api"),
            local_api: r.loopback("local_api", default_local_api()),
            session_id: r.session("session_id"),
            poll_interval: r.duration("poll_interval", 10, 1..=3_600),
            idle_threshold: r.duration("idle_threshold", 60, 0..=86_400),
            claude_bin: r.path("claude_bin"),
            ca: CaSources::read(r.path("ca_file"), env),
            proxies: Proxies::read(r.proxy("proxy"), env),
            doors: Doors {
                inbox: r.flag("doors.inbox", true),
                doorbell: r.flag("doors.doorbell", true),
                headless: r.flag("doors.headless", true),
                channel: r.flag("doors.channel", false),
            },
            memory_tokens: r.number("memory.tokens", 2_000, 0..=20_000),
            policy,
            projects,
        }
    }

    /// The policy of a project by the user's file; the project's own file can only narrow it further.
    #[must_use]
    pub fn policy_of(&self, project: &str) -> &Policy {
        self.projects.get(project).unwrap_or(&self.policy)
    }
}

/// `127.0.0.1:9988`.
#[must_use]
pub fn default_local_api() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9988))
}

fn default_policy() -> Policy {
    use crate::domain::limits;
    Policy {
        features: Features {
            memory_injection: true,
            message_notification: true,
            remote_task_execution: true,
        },
        approval: Approval::ByTrust,
        runs: Runs {
            concurrent: limits::CONCURRENT_RUNS,
            timeout: Duration::from_secs(limits::RUN_TIMEOUT_S),
            max_turns: limits::RUN_MAX_TURNS,
            max_budget_usd: limits::RUN_BUDGET_USD,
            permission_mode: RunMode::AcceptEdits,
            allowed_tools: Vec::new(),
            model: None,
            env_file: None,
            workspace: Workspace::Same,
        },
    }
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self::read(&mut Reader::default(), &|_| None)
    }
}

fn read_policy(r: &mut Reader, at: &str, base: &Policy) -> Policy {
    let key = |name: &str| format!("{at}{name}");
    let (f, runs) = (&base.features, &base.runs);
    Policy {
        features: Features {
            memory_injection: r.flag(&key("features.memory_injection"), f.memory_injection),
            message_notification: r.flag(
                &key("features.message_notification"),
                f.message_notification,
            ),
            remote_task_execution: r.flag(
                &key("features.remote_task_execution"),
                f.remote_task_execution,
            ),
        },
        approval: r.one_of(
            &key("approval"),
            base.approval,
            &[
                ("by_trust", Approval::ByTrust),
                ("always", Approval::Always),
            ],
        ),
        runs: Runs {
            concurrent: r.number(&key("runs.concurrent"), runs.concurrent, 1..=64),
            timeout: r.duration(&key("runs.timeout"), runs.timeout.as_secs(), 1..=86_400),
            max_turns: r.number(&key("runs.max_turns"), runs.max_turns, 1..=10_000),
            max_budget_usd: r.amount(&key("runs.max_budget_usd"), runs.max_budget_usd),
            permission_mode: r.one_of(
                &key("runs.permission_mode"),
                runs.permission_mode,
                &[
                    ("manual", RunMode::Manual),
                    ("acceptEdits", RunMode::AcceptEdits),
                    ("plan", RunMode::Plan),
                    ("dontAsk", RunMode::DontAsk),
                    ("bypassPermissions", RunMode::BypassPermissions),
                ],
            ),
            allowed_tools: r.texts(&key("runs.allowed_tools"), &runs.allowed_tools),
            model: r.text(&key("runs.model")).or_else(|| runs.model.clone()),
            env_file: r
                .path(&key("runs.env_file"))
                .or_else(|| runs.env_file.clone()),
            workspace: r.one_of(
                &key("runs.workspace"),
                runs.workspace,
                &[("same", Workspace::Same), ("worktree", Workspace::Worktree)],
            ),
        },
    }
}

/// The JSON of a file; `None` if there is none.
fn read_file(path: &Path) -> Result<Option<Value>, Problem> {
    use std::io::Read;
    let problem = |what: String, hint: &str| {
        Err(Problem {
            key: String::new(),
            source: path.display().to_string(),
            what,
            hint: hint.to_owned(),
        })
    };
    let open = std::fs::metadata(path).and_then(|meta| {
        // A pipe would keep its reader waiting for ever.
        if !meta.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        std::fs::File::open(path)
    });
    let file = match open {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return problem(format!("cannot be read: {e}"), "check its owner and mode"),
    };
    let mut text = String::new();
    if let Err(e) = file.take(MAX_FILE_BYTES).read_to_string(&mut text) {
        return problem(format!("cannot be read: {e}"), "check its owner and mode");
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(&text) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => problem("is not a JSON object".into(), "begin it with `{`"),
        Err(e) => problem(
            format!("is not JSON: {e}"),
            "correct it there; comments and trailing commas are not JSON",
        ),
    }
}
