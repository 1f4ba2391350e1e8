//! The real Claude Code CLI in a throwaway home: its own settings, sessions and transcripts, a fake key,
//! the scripted API, and nothing of the environment of whoever runs the tests.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::fake_anthropic::FakeAnthropic;
use super::watch;

/// The key that the CLI is told to use; it opens nothing.
const FAKE_KEY: &str = "sk-ant-fake";

/// The deadline of one `claude -p`: a trivial run takes a second, a loaded machine several.
const RUN_DEADLINE: Duration = Duration::from_secs(60);

/// The path of the real CLI: `CLAUDE_BIN`, else what `tests/run` installed.
///
/// # Panics
/// Where there is none.
pub(crate) fn claude_bin() -> PathBuf {
    if let Some(path) = std::env::var_os("CLAUDE_BIN") {
        return path.into();
    }
    let packages =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/.tools/node_modules/@anthropic-ai");
    watch::files_in(&packages)
        .into_iter()
        .map(|package| package.join("claude"))
        .find(|binary| binary.is_file())
        .unwrap_or_else(|| panic!("the Claude Code CLI is not installed: run ./tests/run once"))
}

/// A throwaway home for the CLI, removed when dropped.
#[derive(Debug)]
pub(crate) struct ClaudeHome {
    dir: TempDir,
    path: PathBuf,
    vars: Vec<(OsString, OsString)>,
}

impl ClaudeHome {
    /// Makes a home whose CLI talks to the scripted API and asks none of its first-start questions.
    pub(crate) fn new(api: &FakeAnthropic) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let path = dir
            .path()
            .canonicalize()
            .expect("the temporary folder's real path");
        for sub in [".claude", "run"] {
            fs::create_dir(path.join(sub)).expect("a folder in the new home");
        }
        let url = api.url();
        let mut home = Self {
            vars: Vec::new(),
            dir,
            path,
        };
        home.set("PATH", std::env::var_os("PATH").unwrap_or_default());
        home.set("HOME", home.path.clone());
        home.set("XDG_RUNTIME_DIR", home.path.join("run"));
        for (name, value) in [
            ("TERM", "xterm-256color"),
            ("LANG", "C.UTF-8"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("ANTHROPIC_BASE_URL", url.as_str()),
            ("ANTHROPIC_API_KEY", FAKE_KEY),
            ("DISABLE_TELEMETRY", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("DISABLE_ERROR_REPORTING", "1"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            // Lets the bypass mode start in a container, where the user is root.
            ("IS_SANDBOX", "1"),
        ] {
            home.set(name, value);
        }
        home.write_json(
            ".claude.json",
            &json!({
                "hasCompletedOnboarding": true,
                "theme": "dark",
                "bypassPermissionsModeAccepted": true,
                "customApiKeyResponses": {"approved": [FAKE_KEY], "rejected": []},
                "projects": {},
            }),
        );
        home
    }

    /// Sets a variable in the environment of everything that runs in this home.
    pub(crate) fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let name = name.into();
        self.vars.retain(|(known, _)| *known != name);
        self.vars.push((name, value.into()));
    }

    /// The whole environment of this home: start everything else of the user's with the same one.
    pub(crate) fn vars(&self) -> &[(OsString, OsString)] {
        &self.vars
    }

    /// The home folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A path below the home.
    pub(crate) fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.path.join(relative)
    }

    /// Makes a folder in this home that the user trusts, and returns its real path.
    pub(crate) fn project(&self, name: &str) -> PathBuf {
        let folder = self.untrusted_project(name);
        let mut state = self
            .read_json(".claude.json")
            .expect("the CLI's state is JSON");
        let key = folder.to_str().expect("a path of this harness is UTF-8");
        state["projects"][key] = json!({"hasTrustDialogAccepted": true});
        self.write_json(".claude.json", &state);
        folder
    }

    /// Makes a folder in this home that the user has not yet been asked about.
    pub(crate) fn untrusted_project(&self, name: &str) -> PathBuf {
        let folder = self.path.join(name);
        fs::create_dir_all(&folder).expect("a project folder");
        folder
    }

    /// Makes a trusted folder that is a git repository with one empty commit.
    pub(crate) async fn git_project(&self, name: &str) -> PathBuf {
        let folder = self.project(name);
        self.git(&folder, &["init", "--quiet", "--initial-branch=main"])
            .await;
        self.git(&folder, &["config", "user.name", "test"]).await;
        self.git(&folder, &["config", "user.email", "test@example.invalid"])
            .await;
        self.git(
            &folder,
            &["commit", "--quiet", "--allow-empty", "--message=start"],
        )
        .await;
        folder
    }

    /// Runs git in a folder, in this home's environment, and returns what it printed.
    ///
    /// # Panics
    /// When git fails.
    pub(crate) async fn git(&self, folder: &Path, args: &[&str]) -> String {
        let mut command = self.command_of("git", folder);
        let done = finish(command.args(args), "").await;
        assert!(done.status.success(), "git {args:?}: {}", done.stderr);
        done.stdout
    }

    /// Writes the user's settings.
    pub(crate) fn settings(&self, settings: &Value) {
        self.write_json(".claude/settings.json", settings);
    }

    /// Writes a file of JSON below the home.
    pub(crate) fn write_json(&self, relative: impl AsRef<Path>, value: &Value) {
        let path = self.path.join(relative);
        fs::write(&path, format!("{value:#}\n"))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }

    /// Reads a file of JSON below the home; `None` where it is not there or not whole.
    pub(crate) fn read_json(&self, relative: impl AsRef<Path>) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.path.join(relative)).ok()?).ok()
    }

    /// A command of any program in a folder, with this home's environment and no other.
    pub(crate) fn command_of(&self, program: impl AsRef<OsStr>, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env_clear().kill_on_drop(true);
        command.envs(self.vars.iter().map(|(name, value)| (name, value)));
        command
    }

    /// A command of the CLI in a folder, for tests that hold its streams themselves.
    pub(crate) fn command(&self, folder: &Path, args: &[&str]) -> Command {
        let mut command = self.command_of(claude_bin(), folder);
        command.args(args);
        command
    }

    /// Runs `claude -p ARGS` in a folder with a prompt on its standard input, and waits for its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub(crate) async fn print(&self, folder: &Path, args: &[&str], prompt: &str) -> Finished {
        let mut command = self.command(folder, &["-p"]);
        finish(command.args(args), prompt).await
    }

    /// Runs `claude -p` like [`ClaudeHome::print`] and returns its one JSON result.
    ///
    /// # Panics
    /// When it does not end in time, or prints no result.
    pub(crate) async fn print_json(&self, folder: &Path, args: &[&str], prompt: &str) -> Value {
        let args = [&["--output-format", "json"], args].concat();
        self.print(folder, &args, prompt).await.json()
    }

    /// The sessions in the CLI's registry of live ones; a killed session leaves its entry there.
    pub(crate) fn live_sessions(&self) -> Vec<LiveSession> {
        let files = watch::files_in(&self.path.join(".claude/sessions"));
        let entries = files
            .iter()
            .filter(|file| file.extension() == Some(OsStr::new("json")));
        entries
            .filter_map(|file| self.read_json(file))
            .map(LiveSession)
            .collect()
    }

    /// Waits until the registry of live sessions holds one that satisfies the condition.
    ///
    /// # Panics
    /// When none does in time.
    #[track_caller]
    pub(crate) fn wait_for_live(
        &self,
        condition: impl Fn(&LiveSession) -> bool,
        within: Duration,
    ) -> impl Future<Output = LiveSession> {
        let find = move || {
            self.live_sessions()
                .into_iter()
                .find(|session| condition(session))
        };
        watch::until(&self.path.join(".claude/sessions"), within, find)
    }

    /// The entries of a session's transcript; empty where there is none, a half-written line left out.
    pub(crate) fn transcript(&self, session_id: &str) -> Vec<Value> {
        let name = format!("{session_id}.jsonl");
        let folders = watch::files_in(&self.path.join(".claude/projects"));
        let text = folders
            .iter()
            .find_map(|folder| fs::read_to_string(folder.join(&name)).ok());
        let text = text.unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Waits until a session's transcript holds an entry that satisfies the condition, and returns it.
    ///
    /// # Panics
    /// When none does in time.
    #[track_caller]
    pub(crate) fn wait_for_entry(
        &self,
        session_id: &str,
        condition: impl Fn(&Value) -> bool,
        within: Duration,
    ) -> impl Future<Output = Value> {
        let find = move |entries: Vec<Value>| entries.into_iter().find(|entry| condition(entry));
        self.wait_on_transcript(session_id, find, within)
    }

    /// Waits until a session's transcript answers a question that is asked anew at each change.
    ///
    /// # Panics
    /// When it does not in time.
    #[track_caller]
    pub(crate) fn wait_on_transcript<T>(
        &self,
        session_id: &str,
        ask: impl Fn(Vec<Value>) -> Option<T>,
        within: Duration,
    ) -> impl Future<Output = T> {
        let projects = self.path.join(".claude/projects");
        let folders = move || {
            let mut folders = watch::files_in(&projects);
            folders.push(projects.clone());
            folders
        };
        watch::until_in(folders, within, move || ask(self.transcript(session_id)))
    }
}

/// One entry of the CLI's registry of live sessions.
#[derive(Clone, Debug)]
pub(crate) struct LiveSession(pub(crate) Value);

impl LiveSession {
    /// The CLI's process.
    pub(crate) fn pid(&self) -> i32 {
        self.0["pid"]
            .as_i64()
            .and_then(|pid| pid.try_into().ok())
            .expect("a live session has a pid")
    }

    /// The session it shows now.
    pub(crate) fn session_id(&self) -> &str {
        self.0["sessionId"]
            .as_str()
            .expect("a live session has an id")
    }

    /// `busy`, `idle` or `waiting`; empty before the CLI wrote one.
    ///
    /// It follows the session by some 100 ms; under load, a turn shorter than that left no trace in it.
    pub(crate) fn status(&self) -> &str {
        self.0["status"].as_str().unwrap_or_default()
    }

    /// The path of its inbox socket.
    pub(crate) fn inbox(&self) -> Option<PathBuf> {
        self.0["messagingSocketPath"].as_str().map(PathBuf::from)
    }
}

/// What a program left when it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
    /// How long it ran.
    pub(crate) took: Duration,
}

impl Finished {
    /// Its standard output as one JSON value.
    ///
    /// # Panics
    /// Where it is none, with both outputs.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs a command to its end with a text on its standard input.
///
/// # Panics
/// When it does not start, or does not end in time; then it is killed.
pub(crate) async fn finish(command: &mut Command, stdin: &str) -> Finished {
    let started = Instant::now();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut input = child.stdin.take().expect("its standard input is piped");
    let ended = tokio::time::timeout(RUN_DEADLINE, async {
        // A program that ends without reading closes the pipe; its exit tells more than the pipe.
        let (_, output) = tokio::join!(
            async {
                let written = input.write_all(stdin.as_bytes()).await;
                drop(input);
                written
            },
            child.wait_with_output()
        );
        output.expect("its outputs can be read")
    });
    let output = ended
        .await
        .unwrap_or_else(|_| panic!("not ended within {RUN_DEADLINE:?}: {command:?}"));
    Finished {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: started.elapsed(),
    }
}
