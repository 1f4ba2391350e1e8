use std::time::Duration;

use super::*;

fn load(
    file: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<DaemonConfig, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("remote-collab.json");
    std::fs::write(&path, file).unwrap();
    let flags: Vec<_> = flags
        .iter()
        .map(|(k, v)| (*k, (*v).to_owned(), "--flag"))
        .collect();
    DaemonConfig::load(Sources {
        file: Some(&path),
        env: &|name| {
            let found = env.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| OsString::from(v))
        },
        flags: &flags,
    })
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let mut file = serde_json::Map::new();
    for key in KEYS {
        let mut at = &mut file;
        let mut parts: Vec<_> = key.path.split('.').collect();
        let last = parts.pop().unwrap();
        for part in parts {
            at = at
                .entry(part)
                .or_insert_with(|| serde_json::json!({}))
                .as_object_mut()
                .unwrap();
        }
        at.insert(last.into(), serde_json::from_str(key.default).unwrap());
    }
    let written = load(&serde_json::to_string(&file).unwrap(), &[], &[]).unwrap();
    assert_eq!(written, DaemonConfig::default());
    assert_eq!(load("", &[], &[]).unwrap(), DaemonConfig::default());
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = r#"{"poll_interval": 20, "idle_threshold": "2m", "runs": {"max_turns": 5}}"#;
    let env = [
        ("REMOTE_COLLAB_POLL_INTERVAL", "30s"),
        ("REMOTE_COLLAB_RUNS_MAX_TURNS", "6"),
    ];
    let c = load(file, &env, &[("runs.max_turns", "7")]).unwrap();
    assert_eq!(c.idle_threshold, Duration::from_secs(120));
    assert_eq!(c.poll_interval, Duration::from_secs(30));
    assert_eq!(c.policy.runs.max_turns, 7);
}

#[test]
fn all_problems_are_reported_at_once_each_with_a_hint() {
    let file = r#"{"pol_interval": 1, "local_api": "0.0.0.0:80", "remote_api": "http://hub.example",
        "features": {"memory_injection": "maybe"}, "runs": {"max_turns": 0, "permission_mode": "yolo"}}"#;
    let ConfigError(problems) = load(file, &[], &[("idle_threshold", "soon")]).unwrap_err();
    let keys: Vec<_> = problems.iter().map(|p| p.key.as_str()).collect();
    for key in [
        "pol_interval",
        "local_api",
        "remote_api",
        "features.memory_injection",
        "runs.max_turns",
        "runs.permission_mode",
        "idle_threshold",
    ] {
        assert!(keys.contains(&key), "{key} is missing in {keys:?}");
    }
    assert!(problems.iter().all(|p| !p.hint.is_empty()));
    let misspelt = problems.iter().find(|p| p.key == "pol_interval").unwrap();
    assert!(misspelt.hint.contains("poll_interval"));
}

#[test]
fn a_hub_url_with_credentials_or_plain_http_beyond_loopback_is_refused() {
    for bad in [
        "http://hub.example",
        "https://user:pw@hub.example",
        "https://hub.example/?token=x",
        "ftp://hub.example",
        "hub.example",
    ] {
        let file = format!(r#"{{"remote_api": "{bad}"}}"#);
        assert!(load(&file, &[], &[]).is_err(), "{bad}");
    }
    for good in [
        "https://hub.example/base",
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
    ] {
        let file = format!(r#"{{"remote_api": "{good}"}}"#);
        assert!(load(&file, &[], &[]).is_ok(), "{good}");
    }
}

#[test]
fn a_projects_policy_by_name_lies_on_top_of_the_common_one() {
    let file = r#"{"runs": {"max_turns": 9}, "projects": {"github.com/a/b.c": {"approval": "always",
        "runs": {"allowed_tools": ["Bash(make *)"]}}}}"#;
    let c = load(file, &[], &[]).unwrap();
    let own = c.policy_of("github.com/a/b.c");
    assert_eq!(own.approval, Approval::Always);
    assert_eq!(own.runs.allowed_tools, ["Bash(make *)"]);
    assert_eq!(own.runs.max_turns, 9);
    assert_eq!(c.policy_of("other").approval, Approval::ByTrust);
    let stray = r#"{"projects": {"a": {"local_api": "127.0.0.1:1"}}}"#;
    assert!(load(stray, &[], &[]).is_err());
}

#[test]
fn a_file_that_is_not_json_is_named_and_nothing_starts() {
    let ConfigError(problems) = load("{,}", &[], &[]).unwrap_err();
    assert!(problems[0].source.ends_with("remote-collab.json"));
    assert!(load("[1]", &[], &[]).is_err());
}

#[test]
fn a_projects_own_file_can_only_make_things_stricter() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(".claude")).unwrap();
    let file = r#"{"name": "shop", "approval": "always", "claude_bin": "/evil",
        "features": {"remote_task_execution": false, "message_notification": true},
        "runs": {"max_turns": 3, "max_budget_usd": 100, "permission_mode": "bypassPermissions", "timeout": "1m"}}"#;
    std::fs::write(dir.path().join(FILE), file).unwrap();
    let base = DaemonConfig::default().policy;
    let read = read_project(dir.path(), &base);
    assert_eq!(read.name.unwrap().as_str(), "shop");
    assert!(!read.policy.features.remote_task_execution);
    assert_eq!(read.policy.approval, Approval::Always);
    assert_eq!(read.policy.runs.max_turns, 3);
    assert_eq!(read.policy.runs.timeout, Duration::from_secs(60));
    assert_eq!(read.policy.runs.permission_mode, base.runs.permission_mode);
    let mut ignored: Vec<_> = read.ignored.iter().map(|i| i.key.as_str()).collect();
    ignored.sort_unstable();
    assert_eq!(
        ignored,
        ["claude_bin", "runs.max_budget_usd", "runs.permission_mode"]
    );
}

#[cfg(unix)]
#[test]
fn the_cli_is_found_by_config_first_and_else_by_path_as_an_absolute_path() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("claude");
    std::fs::write(&bin, "#!/bin/sh\necho '2.1.332 (Claude Code)'\n").unwrap();
    let search = std::env::join_paths(["relative".as_ref(), dir.path()]).unwrap();
    let find = || find_claude(None, Some(&search));
    assert_eq!(find(), Err(ClaudeBinError::NotFound), "not executable");
    std::fs::set_permissions(&bin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let found = find().unwrap();
    assert_eq!(found.path, bin);
    assert_eq!(found.version().unwrap(), "2.1.332");
    let gone = dir.path().join("gone");
    assert!(matches!(
        find_claude(Some(&gone), Some(&search)),
        Err(ClaudeBinError::NotAProgram(_))
    ));
}

#[test]
fn a_proxy_is_checked_and_its_password_is_never_told() {
    let c = load("", &[("REMOTE_COLLAB_PROXY", "http://u:s3cret@p:1")], &[]).unwrap();
    assert!(!format!("{c:?}").contains("s3cret"));
    let proxy = c.proxies.for_host("hub.example", 443).unwrap();
    assert_eq!(proxy.unwrap().to_string(), "http://p:1");
    for (key, wrong) in [
        ("proxy", "socks5://u:s3cret@p:1"),
        ("proxy", "http://u:s3cret@p/path"),
        ("remote_api", "http://u:s3cret@hub.example"),
    ] {
        let error = load("", &[], &[(key, wrong)]).unwrap_err();
        assert_eq!(error.0[0].key, key);
        assert!(!error.to_string().contains("s3cret"), "{error}");
        assert!(!error.0[0].hint.is_empty());
    }
}

#[cfg(unix)]
#[test]
fn a_file_with_a_proxys_password_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("remote-collab.json");
    let read = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        DaemonConfig::load(Sources {
            file: Some(&path),
            env: &|_| None,
            flags: &[],
        })
    };
    let secret = r#"{"proxy": "http://u:s3cret@p:1"}"#;
    let error = read(secret, 0o644).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    read(secret, 0o600).unwrap();
    read(r#"{"proxy": "http://p:1"}"#, 0o644).unwrap();
}
