//! A terminal with one program in it: a tmux server of its own, with one window.
//!
//! The server is attached by a client in control mode, whose output tells of every byte the program draws;
//! so waiting for a screen is waiting for an event. The client is also the lifeline: when it goes, be it
//! that this process was killed, tmux ends the session and the program in it is hung up.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::panic::Location;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::watch;

use super::process::Process;

/// The size of the terminal, in cells: so wide that the texts of tests seldom wrap.
const COLUMNS: u16 = 160;
const ROWS: u16 = 50;

/// The deadline of one tmux command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

/// How long a program may take to end by itself once its terminal is closed.
const HANG_UP_DEADLINE: Duration = Duration::from_secs(5);

/// One terminal; dropping it hangs up the program, waits for its end, and ends the server.
#[derive(Debug)]
pub(crate) struct Tmux {
    server: Server,
    client: Child,
    /// Counts what the control client said.
    drawn: watch::Receiver<usize>,
    program: Process,
}

impl Tmux {
    /// Starts a program in a new terminal, in a folder, with exactly this environment.
    ///
    /// # Panics
    /// When tmux does not open it in time, or the program ends at once.
    pub(crate) async fn start<V: AsRef<OsStr>>(
        folder: &Path,
        vars: impl IntoIterator<Item = (V, V)>,
        program: &[&OsStr],
    ) -> Self {
        let server = Server::new();
        let mut command = server.command();
        command.args(["-f", "/dev/null", "-C", "start-server", ";"]);
        for (option, value) in [
            ("remain-on-exit", "on"),
            ("destroy-unattached", "on"),
            ("history-limit", "5000"),
        ] {
            command.args(["set-option", "-g", option, value, ";"]);
        }
        let (columns, rows) = (COLUMNS.to_string(), ROWS.to_string());
        command
            .args(["new-session", "-x", &columns, "-y", &rows, "-c"])
            .arg(folder);
        command.args(["--", "env", "-i"]);
        for (name, value) in vars {
            let mut pair = name.as_ref().to_owned();
            pair.push("=");
            pair.push(value);
            command.arg(pair);
        }
        command.arg("TERM=screen-256color").args(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());

        let mut client = command
            .spawn()
            .expect("tmux is installed: run ./tests/run once");
        let mut control = client.stdin.as_ref().expect("its standard input is piped");
        writeln!(control, "refresh-client -C {COLUMNS}x{ROWS}").expect("tmux takes a command");
        let said = BufReader::new(client.stdout.take().expect("its standard output is piped"));
        let (said_more, drawn) = watch::channel(0);
        let (opened, mut open) = watch::channel(false);
        std::thread::spawn(move || {
            for line in said.split(b'\n').map_while(Result::ok) {
                if line.starts_with(b"%session-changed") {
                    opened.send_replace(true);
                }
                said_more.send_modify(|drawn| *drawn += 1);
            }
        });
        let is_open = tokio::time::timeout(COMMAND_DEADLINE, open.wait_for(|open| *open)).await;
        assert!(matches!(is_open, Ok(Ok(_))), "tmux opened no terminal");
        let pid = server
            .format("#{pane_pid}")
            .await
            .parse()
            .expect("a pane has a pid");
        let program = Process::open(pid).expect("the program does not end at once");
        Self {
            server,
            client,
            drawn,
            program,
        }
    }

    /// The program in the terminal.
    pub(crate) fn program(&self) -> &Process {
        &self.program
    }

    /// Types a text as it is.
    pub(crate) async fn type_text(&self, text: &str) {
        self.server.run(&["send-keys", "-l", "--", text]).await;
    }

    /// Pastes a text as a terminal does: marked as a paste, and in one piece.
    pub(crate) async fn paste(&self, text: &str) {
        self.server.run(&["set-buffer", "--", text]).await;
        self.server.run(&["paste-buffer", "-p", "-d"]).await;
    }

    /// Presses keys by tmux's names for them, such as `Enter`, `Escape` or `C-c`.
    pub(crate) async fn send_keys(&self, keys: &[&str]) {
        self.server
            .run(&[&["send-keys", "--"], keys].concat())
            .await;
    }

    /// What the terminal shows now.
    pub(crate) async fn capture(&self) -> String {
        self.server.run(&["capture-pane", "-p"]).await
    }

    /// What the terminal shows and showed, with the lines that scrolled out of it.
    pub(crate) async fn capture_all(&self) -> String {
        self.server.run(&["capture-pane", "-p", "-S", "-"]).await
    }

    /// Waits until the screen satisfies the condition, and returns it.
    ///
    /// # Panics
    /// When it does not in time, with what it showed last.
    #[track_caller]
    pub(crate) fn wait_for_screen(
        &self,
        condition: impl Fn(&str) -> bool,
        within: Duration,
    ) -> impl Future<Output = String> {
        let caller = Location::caller();
        let mut drawn = self.drawn.clone();
        async move {
            let mut screen = String::new();
            let fits = tokio::time::timeout(within, async {
                loop {
                    drawn.borrow_and_update();
                    screen = self.capture().await;
                    if condition(&screen) {
                        return true;
                    }
                    if drawn.changed().await.is_err() {
                        return false;
                    }
                }
            });
            let fits = fits.await.unwrap_or(false);
            assert!(
                fits,
                "the screen did not fit within {within:?} (waited at {caller}):\n{screen}"
            );
            screen
        }
    }

    /// Waits until the program has ended, and returns its exit status; of a signal, 128 and its number.
    ///
    /// # Panics
    /// When it does not end in time.
    pub(crate) async fn wait_until_ended(&self, within: Duration) -> i32 {
        if !self.program.ended(within).await {
            panic!(
                "the program did not end within {within:?}:\n{}",
                self.capture().await
            );
        }
        let server = self
            .server
            .format("#{pid}")
            .await
            .parse()
            .ok()
            .and_then(Pid::from_raw);
        let server = server.expect("a server has a pid");
        let status = tokio::time::timeout(within, async {
            loop {
                // Under load tmux 3.3 now and then misses that its child ended; told again, it looks.
                kill_process(server, Signal::CHILD).expect("the server is alive");
                let exit = self.server.format("#{pane_dead_status}").await.parse();
                let signal = self
                    .server
                    .format("#{pane_dead_signal}")
                    .await
                    .parse::<i32>();
                if let Ok(status) = exit.or_else(|_| signal.map(|signal| 128 + signal)) {
                    return status;
                }
            }
        });
        status
            .await
            .unwrap_or_else(|_| panic!("no exit status within {within:?}"))
    }

    /// Closes the terminal by cutting its lifeline, which hangs up the program.
    pub(crate) fn close(&mut self) {
        // Either fails only where it is closed already.
        drop(self.client.kill());
        drop(self.client.wait());
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.server.show();
        }
        self.close();
        // What it writes at its end goes to a home that is about to be removed: it has to be over.
        if !self.program.ended_blocking(HANG_UP_DEADLINE) {
            self.program.signal(Signal::KILL);
            self.program.ended_blocking(HANG_UP_DEADLINE);
        }
    }
}

/// A tmux server of our own, killed when dropped.
#[derive(Debug)]
struct Server {
    name: String,
    /// Holds the server's socket.
    dir: TempDir,
}

impl Server {
    fn new() -> Self {
        let name = format!("test-{}", uuid::Uuid::new_v4().simple());
        Self {
            name,
            dir: TempDir::new().expect("a temporary folder"),
        }
    }

    /// A tmux client of this server, to be told what to do.
    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command
            .env("TMUX_TMPDIR", self.dir.path())
            .env_remove("TMUX");
        command.args(["-u", "-L", &self.name]).stdin(Stdio::null());
        command
    }

    /// Runs a command and returns what it printed.
    async fn run(&self, args: &[&str]) -> String {
        let mut command = tokio::process::Command::from(self.command());
        command.args(args).kill_on_drop(true);
        let done = tokio::time::timeout(COMMAND_DEADLINE, command.output()).await;
        let done =
            done.unwrap_or_else(|_| panic!("tmux {args:?}: not within {COMMAND_DEADLINE:?}"));
        let done = done.expect("tmux starts");
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "tmux {args:?}: {complaint}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Prints the screen beside the message of a failed test.
    #[expect(clippy::print_stderr, reason = "a failed test is explained there")]
    fn show(&self) {
        let screen = self.command().args(["capture-pane", "-p"]).output();
        let screen = screen.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
        eprintln!(
            "the screen at the end:\n{}",
            screen.unwrap_or_default().trim_end()
        );
    }

    /// What a format of tmux stands for, in the one pane.
    async fn format(&self, format: &str) -> String {
        self.run(&["display-message", "-p", format])
            .await
            .trim_end()
            .to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails where the server ended with its last session, which is as good.
        let mut command = self.command();
        command
            .args(["kill-server"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        drop(command.status());
    }
}
