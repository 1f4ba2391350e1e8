//! `config show` and `config check`.

use std::fs;

use crate::shown::{assert_shown, session};
use crate::support::sites::Machine;

fn write(machine: &Machine, text: &str) {
    let dir = machine.home().join(".claude");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("remote-collab.json"), text).unwrap();
}

#[tokio::test]
async fn without_a_file_every_key_has_its_default() {
    let machine = Machine::new();
    let commands: &[&[&str]] = &[
        &["config", "show"],
        &["config", "check"],
        &["config", "check", "--json"],
    ];
    let text = session(&machine, commands).await;
    assert_shown("config-defaults", &[&machine], &text);
}

#[tokio::test]
async fn a_value_names_the_file_that_set_it() {
    let machine = Machine::new();
    write(
        &machine,
        r#"{"runs": {"max_turns": 7}, "projects": {"github.com/a/b": {"approval": "always"}}}"#,
    );
    let commands: &[&[&str]] = &[&["config", "show"], &["config", "show", "--json"]];
    let text = session(&machine, commands).await;
    assert_shown("config-set", &[&machine], &text);
}

#[tokio::test]
async fn every_problem_is_told_at_once_with_what_to_do() {
    let machine = Machine::new();
    write(
        &machine,
        r#"{"runs": {"max_turn": 7, "timeout": "long"}, "idle_threshold": -1, "remote_api": "http://hub.example.org"}"#,
    );
    let commands: &[&[&str]] = &[
        &["config", "check"],
        &["config", "check", "--json"],
        &["daemon", "run"],
    ];
    let text = session(&machine, commands).await;
    assert_shown("config-problems", &[&machine], &text);
}
