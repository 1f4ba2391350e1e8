//! The help of every command.

use crate::shown::{assert_shown, log};
use crate::support::sites::Machine;

/// The commands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let Some((_, rest)) = help.split_once("Commands:\n") else {
        return Vec::new();
    };
    rest.lines()
        .take_while(|l| !l.trim().is_empty())
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn every_command_says_what_it_does_and_takes() {
    let machine = Machine::new();
    let mut text = String::new();
    let mut waiting = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(path) = waiting.pop() {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let ran = machine.run(&args, "").await;
        let mut below = listed(&ran.out);
        below.reverse();
        waiting.extend(below.into_iter().map(|name| {
            let mut path = path.clone();
            path.push(name);
            path
        }));
        text.push_str(&log(&args, &ran));
        seen += 1;
    }
    assert!(seen > 25, "{seen} commands were found");
    assert_shown("help", &[&machine], &text);
}

#[tokio::test]
async fn a_mistyped_command_is_told_what_was_meant() {
    let machine = Machine::new();
    let text = crate::shown::session(
        &machine,
        &[
            &["stauts"],
            &["task"],
            &["send", "x", "--priority", "now"],
            &["tasks", "show", "not-an-id"],
            &["task", "x", "--wait-for", "5m"],
        ],
    )
    .await;
    assert_shown("usage", &[&machine], &text);
}
