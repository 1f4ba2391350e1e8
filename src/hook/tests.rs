#![cfg(unix)]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use serde_json::json;

use std::path::Path;

use super::*;

const SESSION: &str = "00000001-0000-4000-8000-000000000000";

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Self { dir };
        home.places().create_daemon_dirs().unwrap();
        home
    }

    fn env(&self) -> impl Fn(&str) -> Option<OsString> {
        let home = self.dir.path().as_os_str().to_owned();
        let runtime = self.dir.path().join("run").into_os_string();
        move |name| match name {
            "HOME" => Some(home.clone()),
            "XDG_RUNTIME_DIR" => Some(runtime.clone()),
            "CLAUDE_PID" => Some("41".into()),
            "CLAUDE_CODE_ENTRYPOINT" => Some("cli".into()),
            "CLAUDE_CODE_SESSION_ATTENDED" => Some("1".into()),
            _ => None,
        }
    }

    fn flags(&self) -> Flags {
        Flags {
            data_dir: Some(self.dir.path().join("data")),
            wait_s: 0,
        }
    }

    fn places(&self) -> Places {
        Places::resolve(self.flags().data_dir.as_deref(), &|_| None).unwrap()
    }

    fn run(&self, input: &[u8]) -> Outcome {
        run(input, &self.flags(), &self.env())
    }

    fn spool(&self) -> String {
        fs::read_to_string(self.places().spool().join(SPOOL_FILE)).unwrap_or_default()
    }

    fn active(&self) -> PathBuf {
        let state = self.dir.path().join(".claude/session-state");
        state.join(format!("{SESSION}.active"))
    }

    /// A daemon that answers one call with this.
    fn daemon(&self, answer: &HookAnswer) -> JoinHandle<Value> {
        let socket = self.places().socket(&self.env());
        Places::create_socket_dir(&socket).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let body = serde_json::to_string(answer).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut buf = [0; 4096];
            let call = loop {
                let n = stream.read(&mut buf).unwrap();
                seen.extend_from_slice(&buf[..n]);
                let text = String::from_utf8_lossy(&seen);
                if let Some((_, body)) = text.split_once("\r\n\r\n")
                    && let Ok(call) = serde_json::from_str(body)
                {
                    break call;
                }
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
            call
        })
    }
}

fn event(name: &str) -> Vec<u8> {
    serde_json::to_vec_pretty(&json!({
        "session_id": SESSION, "cwd": "/p", "transcript_path": "/t.jsonl", "hook_event_name": name,
    }))
    .unwrap()
}

#[test]
fn the_daemons_answer_is_printed_exactly_and_the_call_says_who_asks() {
    let home = Home::new();
    let output =
        json!({"hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": "你好 <x>"}});
    let daemon = home.daemon(&HookAnswer {
        output: Some(output.clone()),
        ..HookAnswer::default()
    });
    let outcome = home.run(&event("Stop"));
    assert_eq!(outcome.code, 0);
    assert_eq!(outcome.stdout, serde_json::to_vec(&output).unwrap());
    assert!(outcome.stderr.is_empty());
    let call: HookCall = serde_json::from_value(daemon.join().unwrap()).unwrap();
    assert_eq!(call.input["hook_event_name"], "Stop");
    assert_eq!((call.pid, call.attended), (Some(41), Some(true)));
    assert_eq!(call.entrypoint.as_deref(), Some("cli"));
    assert_eq!(home.spool(), "");
}

#[test]
fn only_the_doorbell_exits_with_two() {
    for (name, code) in [("FileChanged", 2), ("Stop", 0), ("PreToolUse", 0)] {
        let home = Home::new();
        let daemon = home.daemon(&HookAnswer {
            output: None,
            stderr: Some("mail".to_owned()),
            exit: 2,
        });
        let outcome = home.run(&event(name));
        assert_eq!((outcome.code, outcome.stdout.len()), (code, 0), "{name}");
        assert_eq!(outcome.stderr, b"mail");
        daemon.join().unwrap();
    }
}

#[test]
fn with_the_daemon_away_the_hook_is_silent_and_the_event_is_kept() {
    let home = Home::new();
    for name in ["SessionStart", "PreToolUse", "PostToolUse", "SessionEnd"] {
        assert_eq!(home.run(&event(name)), Outcome::default(), "{name}");
    }
    let spool = home.spool();
    let kept: Vec<HookCall> = spool
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let names: Vec<_> = kept
        .iter()
        .map(|c| c.input["hook_event_name"].clone())
        .collect();
    assert_eq!(names, ["SessionStart", "SessionEnd"]);
    assert!(kept[0].at.is_some_and(|at| at > 0));
    let file = home.places().spool().join(SPOOL_FILE);
    assert_eq!(
        fs::metadata(file).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn the_wait_leaves_the_process_time_to_end_within_its_deadline() {
    let flags = Flags::default();
    let all = [
        ("UserPromptSubmit", HOOK_DEADLINE_MS),
        ("SessionStart", HOOK_START_DEADLINE_MS),
    ];
    for (event, ms) in all {
        assert_eq!(
            deadline(event, &flags) + Duration::from_millis(OWN_MS),
            Duration::from_millis(ms)
        );
    }
}

#[test]
fn a_stopped_daemon_is_given_up_in_silence_and_the_event_is_kept() {
    let home = Home::new();
    let socket = home.places().socket(&home.env());
    Places::create_socket_dir(&socket).unwrap();
    let _deaf = UnixListener::bind(socket).unwrap();
    assert_eq!(home.run(&event("UserPromptSubmit")), Outcome::default());
    assert_eq!(home.spool().lines().count(), 1);
}

#[test]
fn garbage_is_met_with_silence_and_leaves_nothing_behind() {
    let home = Home::new();
    let huge = format!(
        "{{\"session_id\":\"{SESSION}\",\"hook_event_name\":\"Stop\",\"x\":\"{}\"}}",
        "a".repeat(2 << 20)
    );
    for input in [
        &b""[..],
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"{\"hook_event_name\":7}",
        &[b'['; 200_000],
        huge.as_bytes(),
    ] {
        assert_eq!(home.run(input), Outcome::default());
    }
    assert_eq!(home.spool(), "");
    assert!(!home.active().exists());
}

#[test]
fn a_subagents_events_do_nothing() {
    let home = Home::new();
    let input = json!({"session_id": SESSION, "hook_event_name": "SessionStart", "agent_id": "a1"});
    assert_eq!(home.run(input.to_string().as_bytes()), Outcome::default());
    assert_eq!(home.spool(), "");
    assert!(!home.active().exists());
}

#[test]
fn activity_is_noted_in_seconds_until_the_session_ends() {
    let home = Home::new();
    home.run(&event("PreToolUse"));
    fs::write(home.active(), "a longer note of another program").unwrap();
    home.run(&event("PreToolUse"));
    let seconds: u64 = fs::read_to_string(home.active()).unwrap().parse().unwrap();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(now.abs_diff(seconds) < 60);
    home.run(&event("SessionEnd"));
    assert!(!home.active().exists());
}

#[test]
fn a_session_id_that_is_no_uuid_never_becomes_a_file_name() {
    let home = Home::new();
    let input = json!({"session_id": "../../escape", "hook_event_name": "PreToolUse"});
    home.run(input.to_string().as_bytes());
    assert!(!home.dir.path().join(".claude").exists());
}

#[test]
fn the_spool_is_bounded_by_line_and_by_size() {
    let home = Home::new();
    let mut large: Value = serde_json::from_slice(&event("Stop")).unwrap();
    large["last_assistant_message"] = "x".repeat(MAX_LINE).into();
    home.run(large.to_string().as_bytes());
    let spool = home.spool();
    let kept: HookCall = serde_json::from_str(&spool).unwrap();
    assert_eq!(kept.input["session_id"], SESSION);
    assert_eq!(kept.input["cwd"], "/p");
    assert_eq!(kept.input.get("last_assistant_message"), None);
    let file = home.places().spool().join(SPOOL_FILE);
    let full = vec![b' '; usize::try_from(MAX_SPOOL).unwrap()];
    fs::write(&file, full).unwrap();
    home.run(&event("Stop"));
    assert_eq!(fs::metadata(&file).unwrap().len(), MAX_SPOOL);
}

#[test]
fn unknown_flags_are_ignored() {
    let parse = |args: &[&str]| Flags::parse(args.iter().map(OsString::from));
    let flags = parse(&["--made", "entry", "--data-dir", "/d", "--wait", "90", "x"]);
    assert_eq!(flags.data_dir.as_deref(), Some(Path::new("/d")));
    assert_eq!(flags.wait_s, 90);
    assert_eq!(
        parse(&["--data-dir=/e"]).data_dir.as_deref(),
        Some(Path::new("/e"))
    );
    assert_eq!(parse(&["--wait", "soon", "--data-dir"]), Flags::default());
    assert_eq!(
        deadline("PermissionRequest", &flags),
        Duration::from_secs(90)
    );
    assert_eq!(
        deadline("Stop", &flags),
        deadline("Stop", &Flags::default())
    );
}
