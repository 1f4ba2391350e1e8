//! What a hook costs that has nothing to say, beside starting a process at all.
//!
//! Measured, interleaved and under the same piping: from the spawn of the release binary `remote-collab hook`, through
//! a `PostToolUse` event on its stdin and the end of its stdout, to its exit; a spawn of `/bin/true`; and the smallest
//! program of Rust's standard library that sends the same request to the same daemon (this program, started again).
//! The daemon lives, serves the project of the event, and has nothing for its session. Then the daemon is stopped by
//! SIGSTOP, and then it is gone: a hook is to print nothing and to exit 0 all the same, within its deadline.
//!
//! `cargo bench --bench hook [-- --check]`: with `--check` a missed bar is the exit code 1.

#![allow(clippy::print_stdout)]

mod common;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use common::{Samples, head, median, row, verdict};

const BINARY: &str = env!("CARGO_BIN_EXE_remote-collab");
/// Names the daemon's socket to this program started again as the smallest one.
const MINIMAL: &str = "REMOTE_COLLAB_BENCH_SOCKET";
const BAR: f64 = 3.0;
const ROUNDS: usize = 2;
const MEASURED: usize = 1_000;
const WARM_UP: usize = 50;
/// Hooks that meet a stopped daemon; each takes its whole deadline.
const HUNG: usize = 10;
const ALONE: usize = 200;
/// A hook's whole time, from its spawn to its exit, and how much of it may be used.
const HOOK_DEADLINE: Duration = Duration::from_millis(300);
const LATE: f64 = 1.0;

fn main() -> Result<ExitCode> {
    if let Some(socket) = std::env::var_os(MINIMAL) {
        minimal(Path::new(&socket))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bed = Bed::new()?;
    let daemon = bed.daemon()?;
    let socket = std::fs::read_to_string(bed.data.join("daemon/socket"))?;
    let this = std::env::current_exe()?;
    let commands: [&dyn Fn() -> Command; 3] =
        [&|| bed.command("/bin/true"), &|| bed.hook(), &|| {
            let mut command = bed.command(&this);
            command.env(MINIMAL, socket.trim_end());
            command
        }];

    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut took: [Samples; 3] = Default::default();
        for n in 0..WARM_UP + MEASURED {
            for turn in 0..commands.len() {
                let which = (n + turn) % commands.len();
                let time = bed.run(commands[which]())?;
                if n >= WARM_UP {
                    took[which].push(time);
                }
            }
        }
        rounds.push(took);
    }
    let (hung, alone) = (bed.hung(&daemon)?, bed.alone(daemon)?);

    let ratio = |[spawn, hook, _]: &[Samples; 3]| hook.p50() / spawn.p50();
    head("/bin/true");
    for (n, took) in rounds.iter().enumerate() {
        let n = n + 1;
        let [spawn, hook, minimal] = took;
        row(&format!("round {n}: /bin/true"), spawn, Some(1.0));
        row(
            &format!("round {n}: hook with nothing to say"),
            hook,
            Some(ratio(took)),
        );
        row(
            &format!("round {n}: the smallest program with that request"),
            minimal,
            Some(minimal.p50() / spawn.p50()),
        );
    }
    row("hook, daemon stopped", &hung, None);
    row("hook, no daemon", &alone, None);
    let to_minimal = median(
        rounds
            .iter()
            .map(|[_, hook, m]| hook.p50() / m.p50())
            .collect(),
    );
    println!("\nhook, × the smallest program: {to_minimal:.2}");

    let late = hung.p50() / (HOOK_DEADLINE.as_secs_f64() * 1e6);
    let in_time = verdict("hook with a stopped daemon, × its deadline", late, LATE);
    let cheap = verdict(
        "hook, × /bin/true",
        median(rounds.iter().map(ratio).collect()),
        BAR,
    );
    Ok(if in_time == ExitCode::SUCCESS {
        cheap
    } else {
        in_time
    })
}

/// A home of its own with one enabled project, and the event that the hooks are given.
struct Bed {
    dir: tempfile::TempDir,
    data: PathBuf,
    event: Vec<u8>,
}

impl Bed {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let data = std::fs::canonicalize(dir.path())?.join("data");
        let project = dir.path().join("project");
        std::fs::create_dir(&project)?;
        let event = format!(
            r#"{{"session_id":"0193f3a0-0000-4000-8000-000000000001","transcript_path":{transcript:?},"cwd":{project:?},
"permission_mode":"default","hook_event_name":"PostToolUse","tool_name":"Bash","tool_use_id":"toolu_01",
"tool_input":{{"command":"cargo test","description":"Runs the tests"}},
"tool_response":{{"stdout":"{stdout}","stderr":"","interrupted":false,"isImage":false}}}}"#,
            transcript = dir.path().join("transcript.jsonl"),
            stdout = "test result: ok. 12 passed\\n".repeat(20),
        )
        .into_bytes();
        let bed = Self { dir, data, event };
        let mut enable = bed.command(BINARY);
        enable.arg("enable").arg(project).stdin(Stdio::null());
        let enabled = enable.stderr(Stdio::piped()).output()?;
        let error = String::from_utf8_lossy(&enabled.stderr);
        ensure!(enabled.status.success(), "enable failed: {error}");
        Ok(bed)
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.dir.path())
            .env("PATH", "/usr/bin:/bin")
            .env("REMOTE_COLLAB_DATA_DIR", &self.data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn hook(&self) -> Command {
        let mut command = self.command(BINARY);
        command.arg("hook").arg("--data-dir").arg(&self.data);
        // As the CLI does; the daemon looks whether the hook really descends from it.
        command.env("CLAUDE_PID", std::process::id().to_string());
        command
    }

    fn daemon(&self) -> Result<Daemon> {
        let mut command = self.command(BINARY);
        command.args(["daemon", "run", "--local-listen", "127.0.0.1:0", "--json"]);
        let log = std::fs::File::create(self.dir.path().join("daemon.log"))?;
        let mut child = command.stdin(Stdio::null()).stderr(log).spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let daemon = Daemon(child);
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready)?;
        ensure!(!ready.is_empty(), "the daemon did not start");
        Ok(daemon)
    }

    /// Runs one command to its end; it must have nothing to say.
    fn run(&self, mut command: Command) -> Result<Duration> {
        let start = Instant::now();
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            match stdin.write_all(&self.event) {
                // /bin/true does not read.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
                other => other?,
            }
        }
        let mut said = Vec::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_end(&mut said)?;
        }
        let status = child.wait()?;
        let took = start.elapsed();
        let said = String::from_utf8_lossy(&said);
        ensure!(status.success(), "{command:?} ended with {status}");
        ensure!(said.is_empty(), "{command:?} said: {said}");
        Ok(took)
    }

    /// Hooks while the daemon is stopped.
    fn hung(&self, daemon: &Daemon) -> Result<Samples> {
        daemon.signal(Signal::STOP)?;
        let took = self.hooks(HUNG);
        daemon.signal(Signal::CONT)?;
        took
    }

    /// Hooks after the daemon's end.
    fn alone(&self, daemon: Daemon) -> Result<Samples> {
        drop(daemon);
        self.hooks(ALONE)
    }

    fn hooks(&self, count: usize) -> Result<Samples> {
        let mut took = Samples::default();
        for _ in 0..count {
            took.push(self.run(self.hook())?);
        }
        Ok(took)
    }
}

/// A running daemon; dropping it ends it.
struct Daemon(Child);

impl Daemon {
    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL: a daemon may end like this at any moment, and the bench is not about its stop.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// One request to the daemon and its answer, nothing else.
fn minimal(socket: &Path) -> Result<()> {
    let mut input = Vec::new();
    std::io::stdin().lock().read_to_end(&mut input)?;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(HOOK_DEADLINE))?;
    let mut request = format!(
        "POST /hook HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{{\"input\":",
        input.len() + r#"{"input":}"#.len()
    )
    .into_bytes();
    request.extend_from_slice(&input);
    request.push(b'}');
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "the daemon refused");
    Ok(())
}
