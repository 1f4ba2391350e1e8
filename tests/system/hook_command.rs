//! The hook as the CLI runs it, a process: whatever it is fed and whoever answers, it is silent and exits 0 in time.
#![cfg(target_os = "linux")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use remote_collab::hook::SPOOL_FILE;
use remote_collab::local::Places;
use serde_json::json;

/// Far above the hook's own deadline of 300 ms, far below the CLI's of 2 s and more under load.
const HANG: Duration = Duration::from_secs(15);

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        home.places().create_daemon_dirs().unwrap();
        home
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn places(&self) -> Places {
        Places::resolve(Some(&self.path().join("data")), &|_| None).unwrap()
    }

    fn socket(&self) -> PathBuf {
        let runtime = self.path().join("run");
        let env = move |name: &str| (name == "XDG_RUNTIME_DIR").then(|| runtime.clone().into());
        let socket = self.places().socket(&env);
        Places::create_socket_dir(&socket).unwrap();
        socket
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remote-collab"));
        command
            .args(["hook", "--data-dir"])
            .arg(self.path().join("data"));
        command.env_clear().env("HOME", self.path());
        command.env("XDG_RUNTIME_DIR", self.path().join("run"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, input: &[u8]) -> Output {
        let mut child = self.command().spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A hook that ends early closes the pipe; how it ends is what counts.
        drop(stdin.write_all(input));
        drop(stdin);
        ended(child)
    }

    fn spool(&self) -> String {
        std::fs::read_to_string(self.places().spool().join(SPOOL_FILE)).unwrap_or_default()
    }
}

/// The child's end, which must come by itself.
fn ended(mut child: Child) -> Output {
    let (tx, rx) = std::sync::mpsc::channel::<()>();
    let pid = i32::try_from(child.id()).unwrap();
    let waiter = std::thread::spawn(move || {
        let mut output = Output {
            status: std::process::ExitStatus::default(),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        if let Some(mut out) = child.stdout.take() {
            out.read_to_end(&mut output.stdout).unwrap();
        }
        if let Some(mut err) = child.stderr.take() {
            err.read_to_end(&mut output.stderr).unwrap();
        }
        output.status = child.wait().unwrap();
        drop(tx);
        output
    });
    if rx.recv_timeout(HANG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("the hook hangs");
    }
    waiter.join().unwrap()
}

#[track_caller]
fn assert_silent(output: &Output, what: &str) {
    let texts = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(0), "{what}: {texts:?}");
    assert_eq!(texts, ("".into(), "".into()), "{what}");
}

fn event(name: &str) -> Vec<u8> {
    let session = "0b9f2c1e-0000-4000-8000-0000000000aa";
    let event = json!({"session_id": session, "cwd": "/p", "transcript_path": "/t", "hook_event_name": name});
    event.to_string().into_bytes()
}

/// Listens in the daemon's place: reads a little of each call and answers with these bytes.
fn impostor(socket: &Path, answer: &'static [u8]) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            drop(stream.read(&mut [0; 4096]));
            drop(stream.write_all(answer));
        }
    });
}

#[test]
fn any_input_ends_in_silence() {
    let home = Home::new();
    let huge = json!({"session_id": "x", "hook_event_name": "Stop", "text": "x".repeat(2 << 20)});
    let deep = "[".repeat(200_000);
    let torn = event("Stop");
    for (what, input) in [
        ("nothing", &b""[..]),
        ("no JSON", b"\xff\xfe\0garbage"),
        ("half", &torn[..torn.len() / 2]),
        ("2 MiB", huge.to_string().as_bytes()),
        ("deep", deep.as_bytes()),
        ("a list", b"[]"),
        (
            "wrong types",
            br#"{"session_id": 5, "hook_event_name": ["Stop"], "agent_id": {}}"#,
        ),
        ("no event", br#"{"session_id": "x"}"#),
        (
            "a path for an id",
            br#"{"session_id": "../../x", "hook_event_name": "Stop"}"#,
        ),
        ("an unknown event", &event("OfALaterVersion")),
        (
            "a NUL",
            br#"{"session_id": "\u0000", "hook_event_name": "\u0000"}"#,
        ),
    ] {
        assert_silent(&home.run(input), what);
    }
    assert!(!home.path().join("x.active").exists());
}

#[test]
fn closed_and_missing_streams_end_in_silence() {
    let home = Home::new();
    let mut none = home.command();
    none.stdin(Stdio::null());
    assert_silent(&ended(none.spawn().unwrap()), "no stdin");

    // All three closed, as no shell leaves them, and a stdout that nobody reads.
    let hook = env!("CARGO_BIN_EXE_remote-collab");
    for streams in ["<&- >&- 2>&-", ">&-", "2>&-", ">/dev/full 2>/dev/full"] {
        let mut shell = Command::new("/bin/sh");
        let line =
            format!("printf %s \"$1\" | {{ \"$0\" hook --data-dir \"$2\" {streams}; exit $?; }}");
        let text = String::from_utf8(event("SessionStart")).unwrap();
        shell
            .args(["-c", &line, hook, &text])
            .arg(home.path().join("data"));
        shell.env_clear().env("HOME", home.path());
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        assert_silent(&ended(shell.spawn().unwrap()), streams);
    }
}

#[test]
fn a_stdin_that_stays_open_does_not_hold_the_hook() {
    let home = Home::new();
    for begun in [&b""[..], b"{\"session_id\":"] {
        let mut child = home.command().spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(begun).unwrap();
        assert_silent(&ended(child), "an open stdin");
        drop(stdin);
    }
}

#[test]
fn without_a_daemon_that_is_ours_every_event_is_silent() {
    let home = Home::new();
    let socket = home.socket();
    assert_silent(&home.run(&event("UserPromptSubmit")), "no socket");
    assert!(
        home.spool().contains("UserPromptSubmit"),
        "the event is kept"
    );

    std::fs::write(&socket, "no socket").unwrap();
    assert_silent(&home.run(&event("Stop")), "a file");
    std::fs::remove_file(&socket).unwrap();

    drop(UnixListener::bind(&socket).unwrap());
    assert_silent(&home.run(&event("SessionEnd")), "nobody listens");
    assert!(home.spool().contains("SessionEnd"), "the event is kept");
    std::fs::remove_file(&socket).unwrap();

    for (what, answer) in [
        ("no answer", &b""[..]),
        ("no HTTP", b"hello\r\n\r\n"),
        ("a torn head", b"HTTP/1.1 200 OK\r\ncontent-len"),
        (
            "a torn body",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"output\":",
        ),
        (
            "no JSON",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        ),
        (
            "another shape",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
        ),
        (
            "an error",
            b"HTTP/1.1 500 X\r\ncontent-length: 16\r\n\r\n{\"output\": \"bad\"}",
        ),
        (
            "too large",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{",
        ),
        (
            "a wrong exit code",
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"exit\": 2}",
        ),
    ] {
        impostor(&socket, answer);
        assert_silent(&home.run(&event("PostToolUse")), what);
        std::fs::remove_file(&socket).unwrap();
    }
}

#[test]
fn a_daemon_that_accepts_and_says_nothing_costs_the_deadline_and_no_more() {
    let home = Home::new();
    let _full = UnixListener::bind(home.socket()).unwrap();
    let started = Instant::now();
    assert_silent(&home.run(&event("UserPromptSubmit")), "silence");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert!(
        home.spool().contains("UserPromptSubmit"),
        "the event is kept"
    );
}

#[test]
fn many_hooks_at_once_start_nothing_and_tear_no_line() {
    let home = Home::new();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let mut commands: Vec<_> = (0..25).map(|_| home.command()).collect();
            std::thread::spawn(move || {
                for command in &mut commands {
                    let mut child = command.spawn().unwrap();
                    child
                        .stdin
                        .take()
                        .unwrap()
                        .write_all(&event("Stop"))
                        .unwrap();
                    assert_silent(&ended(child), "one of many");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let spool = home.spool();
    assert_eq!(spool.lines().count(), 200);
    for line in spool.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("a whole line");
    }
    // Nobody listens: no daemon was started by a hook.
    assert!(!home.socket().exists());
}
