//! A command as it looks in a terminal's log.

use std::fmt::Write as _;

use crate::support::sites::{Machine, Ran};

/// Replaces what differs from run to run, then compares with the snapshot of this name.
#[track_caller]
pub(crate) fn assert_shown(name: &str, machines: &[&Machine], text: &str) {
    let mut text = text.to_owned();
    for machine in machines {
        text = text.replace(&machine.root().display().to_string(), "[root]");
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (pattern, word) in [
        (
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "[id]",
        ),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "[time]"),
        (r"\b1[6-9]\d{11}\b", "[ms]"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:[port]"),
        (
            r"remote-collab/[0-9a-f]{8,}\.sock",
            "remote-collab/[hash].sock",
        ),
        (r#""next":"[^"]+""#, r#""next":"[cursor]""#),
        (r#""hub_offset_ms":-?\d+"#, r#""hub_offset_ms":[ms]"#),
        (r#""version":"\d+\.\d+\.\d+""#, r#""version":"[version]""#),
        (r#""pid":\d+"#, r#""pid":[pid]"#),
        (r"laptop-[0-9a-f]+", "[laptop]"),
    ] {
        settings.add_filter(pattern, word);
    }
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// What was typed and everything that came of it.
pub(crate) fn log(args: &[&str], ran: &Ran) -> String {
    let mut text = String::new();
    writeln!(text, "$ remote-collab {}", args.join(" ")).unwrap();
    text.push_str(&ran.out);
    if !ran.err.is_empty() {
        writeln!(text, "[stderr]").unwrap();
        text.push_str(&ran.err);
    }
    writeln!(text, "[exit {}]\n", ran.code.unwrap_or(-1)).unwrap();
    text
}

/// Runs the commands one after the other; the log of all.
pub(crate) async fn session(machine: &Machine, commands: &[&[&str]]) -> String {
    let mut text = String::new();
    for args in commands {
        text.push_str(&log(args, &machine.run(args, "").await));
    }
    text
}
