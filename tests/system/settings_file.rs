//! `enable` and `disable` as the user runs them, on settings that are not theirs alone.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Self { dir };
        // The version decides which events are written; nothing else of the CLI is needed.
        home.script("claude", "#!/bin/sh\necho '2.1.332 (Claude Code)'\n");
        std::fs::create_dir_all(home.folder().join(".claude")).unwrap();
        home
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let file = self.path().join("bin").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn folder(&self) -> PathBuf {
        self.path().join("shop")
    }

    fn settings(&self) -> PathBuf {
        self.folder().join(".claude/settings.local.json")
    }

    fn run(&self, data: &str, args: &[&str]) {
        self.try_run(data, args).unwrap();
    }

    /// What it said if it failed.
    fn try_run(&self, data: &str, args: &[&str]) -> Result<(), String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remote-collab"));
        command.env_clear().env("HOME", self.path());
        command.env("PATH", self.path().join("bin"));
        command.arg("--data-dir").arg(self.path().join(data));
        let output = command.args(args).arg(self.folder()).output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn read(&self) -> String {
        std::fs::read_to_string(self.settings()).unwrap()
    }
}

/// Foreign hooks on all our events, in a layout of their owner's own.
fn foreign() -> String {
    let mut text = String::from("{\r\n\t\"model\" : \"opus\",\r\n  \"hooks\": {");
    for event in [
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "Stop",
        "StopFailure",
        "Notification",
        "CwdChanged",
        "FileChanged",
        "PreCompact",
        "SessionEnd",
    ] {
        let hook =
            r#"{"type":"command", "command":"echo 'remote-collab hook --data-dir /x' é\u0041"}"#;
        text.push_str(&format!(
            "\r\n    \"{event}\":[ {{\"matcher\":\"*\",\"hooks\":[{hook}]}} ],"
        ));
    }
    text.push_str(
        "\r\n    \"OfALaterVersion\": []\r\n  },\n\n \"permissions\":{\"allow\":[ ]}}\r\n\r\n",
    );
    text
}

#[test]
fn two_installations_enabled_twice_and_disabled_in_any_order_give_back_every_byte() {
    let home = Home::new();
    for order in [["one", "two"], ["two", "one"]] {
        std::fs::write(home.settings(), foreign()).unwrap();
        for data in ["one", "two", "one", "two"] {
            home.run(data, &["enable"]);
        }
        let settings: Value = serde_json::from_str(&home.read()).expect("still JSON");
        let stop = settings["hooks"]["Stop"].to_string();
        for data in ["one", "two"] {
            let dir = home.path().join(data);
            assert_eq!(stop.matches(dir.to_str().unwrap()).count(), 1, "{stop}");
        }
        for data in order {
            home.run(data, &["disable"]);
            home.run(data, &["disable"]);
        }
        assert_eq!(home.read(), foreign());
    }
}

#[test]
fn what_another_program_writes_meanwhile_is_never_lost() {
    let home = Home::new();
    std::fs::write(home.settings(), foreign()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (stop, path) = (Arc::clone(&stop), home.settings());
        move || {
            // As careful programs write: read, change one value, put a whole new file in its place.
            let mut round = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&path).unwrap();
                serde_json::from_str::<Value>(&text).expect("never torn");
                assert!(text.contains("OfALaterVersion"), "never emptied: {text}");
                let new = path.with_extension("other");
                round += 1;
                std::fs::write(&new, format!("{text} ")).unwrap();
                std::fs::rename(&new, &path).unwrap();
                std::thread::yield_now();
            }
            round
        }
    });
    for verb in ["enable", "disable"].into_iter().cycle().take(10) {
        // Against a writer that never rests it gives up after a few tries, and says that it changed nothing.
        if let Err(error) = home.try_run("one", &[verb]) {
            assert!(
                error.contains("nothing was changed here: try again"),
                "{error}"
            );
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("the other program saw whole files") > 0);
    // It may have put back our entries from an old reading; ours to take out, and nothing else changed.
    home.run("one", &["disable"]);
    assert_eq!(home.read().trim_end(), foreign().trim_end());
}

#[test]
fn a_program_that_moved_is_found_again_by_enabling_anew() {
    let home = Home::new();
    std::fs::write(home.settings(), foreign()).unwrap();
    home.run("one", &["enable"]);
    let own = env!("CARGO_BIN_EXE_remote-collab");
    std::os::unix::fs::symlink(own, home.path().join("bin/remote-collab")).unwrap();
    home.run("one", &["enable"]);
    // The entry of PATH outlives an update; the file that it led to may not.
    let stable = home.path().join("bin/remote-collab");
    assert_eq!(home.read().matches(stable.to_str().unwrap()).count(), 12);
    assert!(!home.read().contains(own));
    home.run("one", &["disable"]);
    assert_eq!(home.read(), foreign());
}
