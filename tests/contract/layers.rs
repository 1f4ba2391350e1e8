//! Imports point one way, and each heavy crate is named in one place.
//!
//! The check reads the sources as text: comments and string literals are blanked, then every `crate::…` path is taken,
//! in `use` declarations (groups and aliases included) and in code, also inside macros. It knows no more of Rust than
//! that, which is enough: a path to another layer has to begin with `crate::`, or with `super::` and climb to the top.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What each top-level module may name of the others.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("wire", &["domain"]),
    ("core", &["domain", "wire"]),
    ("config", &["domain", "wire", "auth", "telemetry"]),
    ("auth", &["domain", "wire", "telemetry"]),
    ("telemetry", &["domain", "wire"]),
    ("local", &["domain", "wire", "config", "auth", "telemetry"]),
    ("claude", &["domain"]),
    ("delivery", &["domain", "claude"]),
    ("trigger", &["domain", "claude"]),
    ("hook", &["domain", "local", "claude"]),
    ("mcp", &["domain", "local", "claude"]),
    (
        "daemon",
        &[
            "domain",
            "wire",
            "core",
            "config",
            "auth",
            "local",
            "telemetry",
            "claude",
            "delivery",
            "trigger",
            "hook",
            "mcp",
        ],
    ),
    ("hub", &["domain", "wire", "core", "auth", "config"]),
    (
        "cli",
        &[
            "domain",
            "wire",
            "core",
            "config",
            "auth",
            "local",
            "telemetry",
            "claude",
            "delivery",
            "trigger",
            "hook",
            "mcp",
            "daemon",
            "hub",
        ],
    ),
];

/// A name of a heavy crate, and the files that may say it.
const HEAVY: &[(&str, &[&str])] = &[
    ("jsonwebtoken", &["auth/token.rs"]),
    ("aws_lc_rs", &["auth/crypto.rs"]),
    (
        "rusqlite",
        &[
            "hub/store/sqlite.rs",
            "hub/store/schema.rs",
            "daemon/store/sqlite.rs",
        ],
    ),
    ("tokio_tungstenite", &["daemon/dial.rs"]),
    ("axum::extract::ws", &["hub/socket.rs"]),
    ("backoff", &["daemon/retry_timer.rs"]),
    ("hyper", &["hub/listen/"]),
    ("hyper_util", &["hub/listen/mod.rs"]),
    ("reqwest", &["daemon/http.rs", "hub/webhooks/client.rs"]),
    ("rcgen", &["daemon/tls_tests.rs", "hub/tls/tests.rs"]),
];

/// The source with comments, strings and characters blanked; line breaks stay.
fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while i < chars.len() {
        let rest = &chars[i..];
        let end = match rest {
            ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => string(rest),
            ['r', ..] if !ident_before(&chars, i) => raw_string(rest).unwrap_or(0),
            ['\'', '\\', ..] => {
                3 + rest[3..]
                    .iter()
                    .take(12)
                    .position(|c| *c == '\'')
                    .unwrap_or(0)
            }
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if end == 0 {
            out.push(chars[i]);
            i += 1;
        } else {
            out.extend(rest[..end.min(rest.len())].iter().map(|c| blank(*c)));
            i += end;
        }
    }
    out
}

fn ident_before(chars: &[char], i: usize) -> bool {
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_') && chars[i - 1] != 'b'
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        match &rest[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn string(rest: &[char]) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != '"' {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    let body = 1 + hashes;
    if rest.get(body) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"')
        .chain(std::iter::repeat_n('#', hashes))
        .collect();
    let len = rest[body + 1..]
        .windows(close.len())
        .position(|w| w == close.as_slice())?;
    Some(body + 1 + len + close.len())
}

/// The text as words and single characters, without white space; `::` is one token.
fn tokens(code: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        out.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    out
}

/// The top-level modules that this source names through `crate::`.
fn named_modules(source: &str) -> BTreeSet<String> {
    let code = code_only(source);
    let tokens = tokens(&code);
    let mut named = BTreeSet::new();
    for at in 0..tokens.len() {
        if tokens[at] == "crate" && tokens.get(at + 1) == Some(&"::") {
            heads(&tokens[at + 2..], &mut named);
        }
    }
    named
}

/// The first segments of a path or of each member of a group.
fn heads(tokens: &[&str], named: &mut BTreeSet<String>) {
    if tokens.first() != Some(&"{") {
        if let Some(name) = tokens.first() {
            named.insert((*name).trim_start_matches("r#").to_owned());
        }
        return;
    }
    let (mut depth, mut expect) = (0, false);
    for token in tokens {
        match *token {
            "{" => {
                depth += 1;
                expect = depth == 1;
            }
            "}" => depth -= 1,
            "," => expect = depth == 1,
            name if expect => {
                named.insert(name.to_owned());
                expect = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
}

/// Whether the source names this crate, or path of a crate, in code.
fn names_crate(source: &str, path: &str) -> bool {
    let code = code_only(source);
    let tokens = tokens(&code);
    let wanted: Vec<&str> = path.split("::").collect();
    (0..tokens.len()).any(|at| {
        if tokens[at] != wanted[0] {
            return false;
        }
        // `a.backoff`, `x::backoff` and `fn backoff` are names of ours.
        let before = at.checked_sub(1).map(|b| tokens[b]);
        if matches!(before, Some("." | "fn" | "let" | "mod" | "mut" | "struct")) {
            return false;
        }
        let root = before != Some("::") || at < 2 || !is_word(tokens[at - 2]);
        let head = tokens.get(at + 1) == Some(&"::")
            || matches!(before, Some("use" | "crate"))
            || (before == Some("::") && at >= 2 && tokens[at - 2] == "use");
        root && head && path_follows(&tokens[at + 1..], &wanted[1..])
    })
}

fn is_word(token: &str) -> bool {
    token
        .chars()
        .next()
        .is_some_and(|c| c.is_alphanumeric() || c == '_')
        && token != "use"
}

/// Whether `::a::b` follows, each segment plainly or as a member of a group.
fn path_follows(tokens: &[&str], wanted: &[&str]) -> bool {
    let Some((first, deeper)) = wanted.split_first() else {
        return true;
    };
    if tokens.first() != Some(&"::") {
        return false;
    }
    if tokens.get(1) != Some(&"{") {
        return tokens.get(1) == Some(first) && path_follows(&tokens[2..], deeper);
    }
    let (mut depth, mut expect) = (0, false);
    for (at, token) in tokens.iter().enumerate().skip(1) {
        match *token {
            "{" => {
                depth += 1;
                expect = depth == 1;
            }
            "}" => depth -= 1,
            "," => expect = depth == 1,
            name => {
                if expect && name == *first && path_follows(&tokens[at + 1..], deeper) {
                    return true;
                }
                expect = false;
            }
        }
        if depth == 0 {
            break;
        }
    }
    false
}

/// What is wrong with one file of `src/`, told by its path below it.
fn violations(file: &str, source: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let layer = file.split(['/', '.']).next().unwrap_or_default();
    if !matches!(layer, "lib" | "main") {
        match LAYERS.iter().find(|(name, _)| *name == layer) {
            None => wrong.push(format!("{file}: `{layer}` has no place in the layer order")),
            Some((_, allowed)) => {
                for name in named_modules(source) {
                    let known = LAYERS.iter().any(|(layer, _)| *layer == name);
                    if known && name != layer && !allowed.contains(&name.as_str()) {
                        wrong.push(format!("{file}: `{layer}` may not name `crate::{name}`"));
                    }
                }
            }
        }
        if climbs_out(file, source) {
            wrong.push(format!("{file}: a `super::` path climbs out of `{layer}`"));
        }
    }
    for (heavy, places) in HEAVY {
        let at_home = places
            .iter()
            .any(|p| file == *p || (p.ends_with('/') && file.starts_with(p)));
        if !at_home && names_crate(source, heavy) {
            wrong.push(format!("{file}: only {places:?} may name `{heavy}`"));
        }
    }
    wrong
}

/// Whether a chain of `super::` is longer than the module is deep (inline modules may add one level for tests).
fn climbs_out(file: &str, source: &str) -> bool {
    let parts = file.split('/').filter(|p| *p != "mod.rs").count();
    let code = code_only(source);
    let tokens = tokens(&code);
    let inline = tokens.windows(3).any(|w| w[0] == "mod" && w[2] == "{");
    let mut run = 0;
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "super" && tokens.get(at + 1) == Some(&"::") {
            run += 1;
            at += 2;
            if run >= parts + usize::from(inline) {
                return true;
            }
        } else {
            run = 0;
            at += 1;
        }
    }
    false
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn imports_point_one_way_and_heavy_crates_stay_in_their_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 20, "the sources were not found");
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let file = path
                .strip_prefix(&root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            violations(&file, &std::fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_checker_finds_a_wrong_import_however_it_is_written() {
    for source in [
        "use crate::hub::Store;",
        "use crate::{domain::Seq, hub::Store};",
        "use crate::{domain::{Seq, Epoch}, hub};",
        "use crate::\n    hub::Store;",
        "pub(crate) use crate::hub as h;",
        "fn f() { let x = crate::hub::Store::new(); }",
        "fn f() -> Result<crate::hub::Store, ()> { Err(()) }",
        "fn f() { tracing::info!(\"{:?}\", crate::hub::name()); }",
        "use super::super::hub::Store;",
    ] {
        assert_eq!(violations("daemon/link.rs", source).len(), 1, "{source}");
    }
    assert_eq!(violations("space/mod.rs", "").len(), 1, "an unknown module");
    assert_eq!(
        violations("domain/x.rs", "use crate::wire::Hello;").len(),
        1
    );
    assert_eq!(violations("hub/x.rs", "use crate::daemon::Queue;").len(), 1);
}

#[test]
fn the_checker_leaves_alone_what_is_allowed_or_only_text() {
    for source in [
        "use crate::{domain::Seq, core::client};",
        "//! see crate::hub",
        "/* crate::hub /* nested */ crate::hub */",
        "const S: &str = \"crate::hub\";",
        "const S: &str = r#\"a \" crate::hub\"#;",
        "const C: [char; 2] = ['\"', '\\'']; // crate::hub",
        "fn f<'a>(x: &'a str) -> &'a str { x }",
        "use super::queue::Queue;",
        "use crate::domain::{hub, x};",
    ] {
        assert!(violations("daemon/link.rs", source).is_empty(), "{source}");
    }
}

#[test]
fn the_checker_finds_a_heavy_crate_outside_its_file() {
    for source in [
        "use rusqlite::Connection;",
        "use rusqlite as sql;",
        "use ::rusqlite::Connection;",
        "fn f(c: &rusqlite::Connection) {}",
        "extern crate rusqlite;",
        "use axum::extract::ws::WebSocket;",
        "use axum::{Router, extract::{State, ws::WebSocket}};",
        "use backoff::ExponentialBackoff;",
    ] {
        assert_eq!(violations("hub/routes.rs", source).len(), 1, "{source}");
    }
    for source in [
        "// rusqlite::Connection",
        "use axum::extract::State;",
        "fn backoff() {}",
        "fn f(x: &X) { x.backoff(); self::backoff(); }",
        "const S: &str = \"rusqlite::x\";",
    ] {
        assert!(violations("hub/routes.rs", source).is_empty(), "{source}");
    }
    assert!(violations("hub/store/sqlite.rs", "use rusqlite::Connection;").is_empty());
}
