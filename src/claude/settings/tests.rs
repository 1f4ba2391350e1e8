use std::path::Path;

use serde_json::Value;

use super::*;
use crate::claude::HookName;

const NEW: Option<CliVersion> = Some(CliVersion(2, 1, 332));

fn spec(name: &str) -> Spec {
    spec_for(name, NEW)
}

fn spec_for(name: &str, version: Option<CliVersion>) -> Spec {
    let data = format!("/home/u/{name}");
    Spec::new(
        Path::new("/opt/bin/remote-collab"),
        Path::new(&data),
        version,
        None,
    )
    .unwrap()
}

fn on(text: Option<&str>, name: &str) -> String {
    match enable(text, &spec(name)).unwrap() {
        Edit::Write(text) => text,
        other => panic!("{other:?}"),
    }
}

/// The text after disable; `None` if the file goes.
fn off(text: &str, name: &str) -> Option<String> {
    match disable(Some(text), &format!("/home/u/{name}")).unwrap() {
        Edit::Write(text) => Some(text),
        Edit::Remove => None,
        Edit::Unchanged => Some(text.to_owned()),
    }
}

const FILES: &[&str] = &[
    "",
    "\n\n",
    "\u{feff}",
    "// nothing yet\n",
    "{}",
    "{}\n",
    "{\n}\n",
    "{ /* empty */ }",
    "{\"hooks\":{}}",
    "{\"hooks\":{\"Stop\":[]}}",
    "{\n  \"hooks\": {\n    \"Stop\": [\n    ]\n  }\n}\n",
    "{\"a\":1}",
    "{\n\t\"a\": 1, // why\n\t\"hooks\": { // mine\n\t\t\"Stop\": [ /* keep */ {\"hooks\":[{\"type\":\"command\",\"command\":\"x\"}]}, ],\n\t},\n}",
    "\u{feff}{\r\n    \"permissions\": {\"allow\": [\"Bash(ls)\"]},\r\n    \"hooks\": {\r\n        \"PreToolUse\": [{\"matcher\": \"Bash\", \"hooks\": []}]\r\n    }\r\n}\r\n",
    "{\"hooks\":{\"Stop\":[{\"hooks\":[{\"type\":\"command\",\"command\":\"hook\",\"args\":[\"hook\"]}]}],\"Later\":[1,2]}}",
    "{\"hooks\":{\"Stop\":[7,null,\"x\",{\"hooks\":3}]}}",
    "/* a */ {\"hooks\" : {\"SessionStart\" : [ ] , } , \"z\":[{},] , } // b",
];

#[test]
fn disable_gives_back_every_byte() {
    for text in FILES {
        let enabled = on(Some(text), "a");
        assert_eq!(off(&enabled, "a").as_deref(), Some(*text), "{enabled}");
    }
}

#[test]
fn enable_twice_is_enable_once() {
    for text in FILES {
        let once = on(Some(text), "a");
        assert_eq!(enable(Some(&once), &spec("a")), Ok(Edit::Unchanged));
    }
}

#[test]
fn a_file_that_was_not_there_goes_again_unless_somebody_used_it() {
    let made = on(None, "a");
    assert!(made.ends_with("}\n"), "{made}");
    assert_eq!(off(&made, "a"), None);
    let used = made.replacen('{', "{\n  \"model\": \"opus\",", 1);
    let rest = off(&used, "a").unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&rest).unwrap(),
        serde_json::json!({"model": "opus"})
    );
    let noted = format!("// do not touch\n{made}");
    let rest = off(&noted, "a").unwrap();
    assert!(rest.starts_with("// do not touch\n{"), "{rest}");
}

#[test]
fn installations_do_not_touch_each_other_in_any_order() {
    for text in FILES.iter().map(|t| Some(*t)).chain([None]) {
        let a = on(text, "a");
        let ab = on(Some(&a), "b");
        assert_eq!(off(&ab, "b").as_deref(), Some(a.as_str()));
        let b = off(&ab, "a").unwrap();
        let data: Vec<String> = installed(&b)
            .unwrap()
            .into_iter()
            .map(|e| e.data_dir)
            .collect();
        assert_eq!(data.len(), spec("b").events().len());
        assert!(data.iter().all(|d| d == "/home/u/b"));
        assert_eq!(off(&b, "b").as_deref(), text, "{b}");
        assert_eq!(enable(Some(&ab), &spec("a")), Ok(Edit::Unchanged));
    }
}

#[test]
fn an_upgrade_replaces_our_entries_and_nothing_else() {
    for text in FILES.iter().map(|t| Some(*t)).chain([None]) {
        let old = on(text, "a");
        let moved = Spec::new(
            Path::new("/new/remote-collab"),
            Path::new("/home/u/a"),
            NEW,
            Some(600),
        )
        .unwrap();
        let Edit::Write(new) = enable(Some(&old), &moved).unwrap() else {
            panic!("unchanged");
        };
        let found = installed(&new).unwrap();
        assert!(found.iter().all(|e| e.command == "/new/remote-collab"));
        assert!(found.iter().any(|e| e.event == "PermissionRequest"));
        assert_eq!(off(&new, "a").as_deref(), text);
    }
}

#[test]
fn what_the_user_moved_into_or_wrote_around_our_entries_survives() {
    let made = on(Some("{\n  \"a\": 1\n}\n"), "a");
    let shared = made.replacen(
        "{\"hooks\":[",
        "{\"hooks\":[{\"type\":\"command\",\"command\":\"theirs\"},",
        1,
    );
    let rest = off(&shared, "a").unwrap();
    let value: Value = serde_json::from_str(&rest).unwrap();
    let hooks = value["hooks"].as_object().unwrap();
    assert_eq!(hooks.len(), 1, "{rest}");
    assert!(
        rest.contains("theirs") && !rest.contains("remote-collab"),
        "{rest}"
    );
    let noted = made.replacen("\"Stop\": [", "\"Stop\": [ // mine", 1);
    let rest = off(&noted, "a").unwrap();
    assert!(rest.contains("\"Stop\": [ // mine\n"), "{rest}");
    assert_eq!(enable(Some(&noted), &spec("a")), Ok(Edit::Unchanged));
}

#[test]
fn a_reformatted_file_is_still_recognised() {
    let made = on(Some("{\"a\":1,\"hooks\":{\"Stop\":[{\"hooks\":[]}]}}"), "a");
    let value: Value = serde_json::from_str(&made).unwrap();
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(enable(Some(&pretty), &spec("a")), Ok(Edit::Unchanged));
    let rest: Value = serde_json::from_str(&off(&pretty, "a").unwrap()).unwrap();
    assert_eq!(
        rest,
        serde_json::json!({"a": 1, "hooks": {"Stop": [{"hooks": []}]}})
    );
}

#[test]
fn a_damaged_file_is_refused() {
    for bad in [
        "{",
        "{\"a\":}",
        "{\"a\":1}}",
        "{a:1}",
        "{'a':1}",
        "[]",
        "3",
        "{\"hooks\":[]}",
        "{\"hooks\":null}",
        "{\"hooks\":{\"Stop\":{}}}",
        "{\"hooks\":{},\"hooks\":{}}",
        "{\"hooks\":{\"Stop\":[],\"Stop\":[]}}",
        "{\"a\":1 \"b\":2}",
        &"[".repeat(100_000),
    ] {
        let error = enable(Some(bad), &spec("a")).unwrap_err();
        assert_ne!(error, SettingsError::Unsafe, "{bad:.40}");
    }
}

#[test]
fn entries_are_nested_in_exec_form_and_have_a_timeout() {
    let value: Value = serde_json::from_str(&on(None, "a")).unwrap();
    let hooks = value["hooks"].as_object().unwrap();
    let names: Vec<_> = spec("a").events().iter().map(|e| e.as_str()).collect();
    assert_eq!(hooks.len(), names.len());
    for name in names {
        let hook = &hooks[name][0]["hooks"][0];
        assert_eq!(hook["type"], "command");
        assert_eq!(hook["command"], "/opt/bin/remote-collab");
        assert_eq!(hook["args"][0], "hook");
        assert!(
            hook["timeout"]
                .as_u64()
                .is_some_and(|t| (2..=10).contains(&t)),
            "{hook}"
        );
        assert_eq!(hook.get("async").is_some(), name == "PreToolUse");
        assert_eq!(hook.get("asyncRewake").is_some(), name == "FileChanged");
    }
    assert!(!hooks.contains_key("PermissionRequest"));
}

#[test]
fn only_events_that_the_version_knows_are_written() {
    let known = |a, b, c| events_known(Some(CliVersion(a, b, c)));
    assert_eq!(known(1, 0, 30), []);
    assert!(!known(1, 0, 60).contains(&HookName::SessionStart));
    assert!(known(2, 0, 0).contains(&HookName::SessionEnd));
    assert!(!known(2, 0, 0).contains(&HookName::PermissionRequest));
    assert!(!known(2, 1, 82).contains(&HookName::FileChanged));
    assert_eq!(known(2, 1, 332).len(), HookName::ALL.len());
    assert_eq!(events_known(None), known(1, 0, 85));
    let old = Spec::new(
        Path::new("/b"),
        Path::new("/d"),
        Some(CliVersion(2, 1, 138)),
        None,
    );
    assert_eq!(old, Err(SpecError::TooOld(CliVersion(2, 1, 138))));
    assert!(Spec::new(Path::new("b"), Path::new("/d"), None, None).is_err());
    assert_eq!(CliVersion::parse("2.1.332 (Claude Code)\n"), NEW);
    assert_eq!(CliVersion::parse("2.1.0-beta.1"), Some(CliVersion(2, 1, 0)));
    assert_eq!(CliVersion::parse("claude"), None);
}

#[test]
fn a_file_that_the_cli_would_ignore_is_told() {
    for (text, loaded) in [
        ("", true),
        ("\u{feff}{}\r\n", true),
        ("{\"a\":1,}", false),
        ("// c\n{}", false),
        ("{", false),
    ] {
        assert_eq!(loads(text), loaded, "{text:?}");
    }
    assert!(loads(&on(None, "a")));
}

mod random {
    use proptest::prelude::*;

    use super::*;

    /// White space and comments, in the file's own line ends.
    fn space() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => Just(String::new()),
            2 => Just(" ".to_owned()),
            2 => Just("\n  ".to_owned()),
            1 => Just("\t".to_owned()),
            1 => Just(" /* c, ] } */ ".to_owned()),
            1 => Just(" // \"x\": [\n".to_owned()),
        ]
    }

    fn scalar() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("null".to_owned()),
            Just("-1.5e3".to_owned()),
            Just("\"a\\\"]}/*😀\"".to_owned()),
            Just("true".to_owned()),
        ]
    }

    fn list(open: char, close: char, item: BoxedStrategy<String>) -> BoxedStrategy<String> {
        let items = prop::collection::vec((space(), item, space()), 0..4);
        (items, space(), any::<bool>())
            .prop_map(move |(items, end, trailing)| {
                let empty = items.is_empty();
                let body: Vec<String> = items
                    .into_iter()
                    .map(|(a, item, b)| format!("{a}{item}{b}"))
                    .collect();
                let comma = if trailing && !empty { "," } else { "" };
                format!("{open}{}{comma}{end}{close}", body.join(","))
            })
            .boxed()
    }

    fn value() -> BoxedStrategy<String> {
        scalar()
            .prop_recursive(3, 12, 3, |inner| {
                let prop = (space(), inner.clone())
                    .prop_map(|(s, v)| format!("\"k\"{s}:{s}{v}"))
                    .boxed();
                prop_oneof![list('[', ']', inner.boxed()), list('{', '}', prop)]
            })
            .boxed()
    }

    /// A foreign group: well-formed, odd, or almost ours.
    fn group() -> BoxedStrategy<String> {
        let hook = prop_oneof![
            Just("{\"type\":\"command\",\"command\":\"x\"}".to_owned()),
            Just("{\"command\":\"remote-collab\",\"args\":[\"hook\",\"--data-dir\",\"/home/u/other\",\"--made\",\"entry\"]}".to_owned()),
            Just("{\"command\":\"remote-collab\",\"args\":[\"hook\",\"--data-dir\",\"/home/u/a\"]}".to_owned()),
            scalar(),
        ];
        let hooks = list('[', ']', hook.boxed());
        prop_oneof![
            3 => (space(), hooks).prop_map(|(s, h)| format!("{{\"matcher\":\"*\",{s}\"hooks\"{s}:{h}}}")),
            1 => value(),
        ]
        .boxed()
    }

    fn events() -> BoxedStrategy<String> {
        let names: Vec<&'static str> = HookName::ALL
            .iter()
            .map(|n| n.as_str())
            .chain(["Foreign"])
            .collect();
        let chosen = prop::sample::subsequence(names, 0..6).prop_shuffle();
        (
            chosen,
            prop::collection::vec(list('[', ']', group()), 6),
            space(),
            space(),
            any::<bool>(),
        )
            .prop_map(|(names, lists, a, b, trailing)| {
                let body: Vec<String> = names
                    .iter()
                    .zip(lists)
                    .map(|(name, list)| format!("{a}\"{name}\"{b}:{a}{list}"))
                    .collect();
                let comma = if trailing && !body.is_empty() {
                    ","
                } else {
                    ""
                };
                format!("{{{}{b}{comma}{a}}}", body.join(&format!("{b},")))
            })
            .boxed()
    }

    fn settings() -> impl Strategy<Value = String> {
        let head = prop_oneof![4 => Just(""), 1 => Just("\u{feff}")];
        let props = prop::collection::vec((space(), value()), 0..3);
        let hooks = prop::option::of(events());
        (head, space(), props, hooks, space(), any::<[bool; 3]>()).prop_map(
            |(head, s, props, hooks, end, [first, trailing, crlf])| {
                let mut body: Vec<String> = props
                    .into_iter()
                    .enumerate()
                    .map(|(i, (s, v))| format!("{s}\"key{i}\"{s}:{v}"))
                    .collect();
                if let Some(hooks) = hooks {
                    let at = if first { 0 } else { body.len() };
                    body.insert(at, format!("{s}\"hooks\":{hooks}{s}"));
                }
                let comma = if trailing && !body.is_empty() {
                    ","
                } else {
                    ""
                };
                let text = format!("{head}{s}{{{}{comma}{end}}}{s}", body.join(","));
                if crlf {
                    text.replace('\n', "\r\n")
                } else {
                    text
                }
            },
        )
    }

    /// Few events, so that many cases fit into seconds.
    fn add(text: &str, name: &str) -> String {
        match enable(Some(text), &spec_for(name, None)).unwrap() {
            Edit::Write(text) => text,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn any_settings_come_back_to_the_byte(text in settings()) {
            let once = add(&text, "a");
            prop_assert_eq!(enable(Some(&once), &spec_for("a", None)), Ok(Edit::Unchanged));
            let back = off(&once, "a");
            prop_assert_eq!(back.as_deref(), Some(text.as_str()), "{}", once);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn the_first_installation_can_leave_before_the_second(text in settings()) {
            let both = add(&add(&text, "a"), "b");
            let other = off(&both, "a").unwrap();
            let back = off(&other, "b");
            prop_assert_eq!(back.as_deref(), Some(text.as_str()), "{}", both);
        }
    }
}
