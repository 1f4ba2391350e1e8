use super::*;

fn account(name: &str) -> AccountId {
    AccountId::new(name).unwrap()
}

fn device_id(name: &str) -> DeviceId {
    DeviceId::new(name).unwrap()
}

fn device(of: &str, id: &str, seen: i64) -> DeviceRecord {
    DeviceRecord {
        id: device_id(id),
        account: account(of),
        name: format!("name-{id}"),
        public_key: id.into(),
        os: String::new(),
        build: String::new(),
        claude_version: None,
        enrolled_at: WallMs(0),
        revoked_at: None,
        instance: None,
        shut_out: Vec::new(),
        last_seen: Some(WallMs(seen)),
        handed: None,
        vouched: true,
    }
}

fn project(device: &str, name: &str, path: &str) -> ProjectRecord {
    ProjectRecord {
        info: ProjectInfo {
            name: ProjectName::new(name).unwrap(),
            path: path.into(),
            enabled: true,
        },
        device: device_id(device),
        approved: true,
    }
}

fn session(device: &str, id: u128, lineage: &[u128]) -> SessionRecord {
    SessionRecord {
        info: SessionInfo {
            session_id: SessionId::from_u128(id),
            lineage: lineage.iter().map(|i| SessionId::from_u128(*i)).collect(),
            project: None,
            activity: Activity::Idle,
            reason: None,
            active_at: WallMs(0),
        },
        device: device_id(device),
    }
}

fn two_devices() -> Directory {
    let dir = Directory::default();
    dir.put_device(device("acme", "a", 10));
    dir.put_device(device("acme", "b", 20));
    dir.put_device(device("other", "x", 30));
    for d in ["a", "b"] {
        dir.put_project(project(d, "shop", &format!("/{d}/shop")));
    }
    dir.put_project(project("x", "secret", "/x/secret"));
    dir.put_session(&account("acme"), session("a", 2, &[1]));
    dir.put_session(&account("other"), session("x", 9, &[]));
    dir
}

fn want(session: Option<u128>, project: Option<&str>, device: Option<&str>) -> Want {
    Want {
        session: session.map(SessionId::from_u128),
        project: project.map(str::to_owned),
        device: device.map(str::to_owned),
    }
}

fn to(dir: &Directory, want: &Want, online: &[&str]) -> Result<String, NoRoute> {
    let on = |d: &DeviceId| match online
        .iter()
        .find(|o| o.trim_end_matches('!') == d.as_str())
    {
        None => Standing::Away,
        Some(full) if full.ends_with('!') => Standing::Full,
        Some(_) => Standing::Ready,
    };
    dir.route(&account("acme"), want, &on)
        .map(|r| r.device.to_string())
}

#[test]
fn a_session_is_found_by_its_present_and_its_earlier_ids() {
    let dir = two_devices();
    for id in [1, 2] {
        let route = dir
            .route(&account("acme"), &want(Some(id), None, None), &|_| {
                Standing::Away
            })
            .unwrap();
        assert_eq!(route.device.as_str(), "a");
        assert_eq!(route.to.session_id, Some(SessionId::from_u128(id)));
    }
}

#[test]
fn a_project_goes_to_the_online_device_that_was_active_last() {
    let dir = two_devices();
    let shop = want(None, Some("shop"), None);
    assert_eq!(to(&dir, &shop, &[]).unwrap(), "b");
    assert_eq!(to(&dir, &shop, &["a"]).unwrap(), "a");
    assert_eq!(to(&dir, &shop, &["a", "b"]).unwrap(), "b");
    // A device without a free run slot comes after one that has some, and before one that is away.
    assert_eq!(to(&dir, &shop, &["a", "b!"]).unwrap(), "a");
    assert_eq!(to(&dir, &shop, &["a!", "b!"]).unwrap(), "b");
    assert_eq!(to(&dir, &shop, &["a!"]).unwrap(), "a");
    let by_path = want(None, Some("/a/shop"), None);
    assert_eq!(to(&dir, &by_path, &["b"]).unwrap(), "a");
    let narrowed = want(None, Some("shop"), Some("a"));
    assert_eq!(to(&dir, &narrowed, &["b"]).unwrap(), "a");
}

#[test]
fn a_disabled_or_unapproved_project_is_no_target() {
    let dir = two_devices();
    let mut p = project("a", "shop", "/a/shop");
    p.info.enabled = false;
    dir.put_project(p);
    let mut p = project("b", "shop", "/b/shop");
    p.approved = false;
    dir.put_project(p);
    assert!(matches!(
        to(&dir, &want(None, Some("shop"), None), &[]),
        Err(NoRoute::Unknown { .. })
    ));
}

#[test]
fn without_a_target_only_an_only_device_is_chosen() {
    let dir = two_devices();
    assert_eq!(
        to(&dir, &Want::default(), &["a"]),
        Err(NoRoute::Required {
            known: vec!["a".into(), "b".into()]
        })
    );
    let mut gone = device("acme", "b", 20);
    gone.revoked_at = Some(WallMs(1));
    dir.put_device(gone);
    assert_eq!(to(&dir, &Want::default(), &[]).unwrap(), "a");
    let none = Directory::default().route(&account("acme"), &Want::default(), &|_| Standing::Ready);
    assert!(matches!(none, Err(NoRoute::Unknown { .. })));
}

#[test]
fn unknown_targets_name_what_is_known_in_this_account_only() {
    let dir = two_devices();
    for (w, known) in [
        (want(None, Some("secret"), None), "shop"),
        (want(None, None, Some("x")), "a"),
        (
            want(Some(9), None, None),
            &*SessionId::from_u128(2).to_string(),
        ),
    ] {
        let Err(NoRoute::Unknown { known: shown, .. }) = to(&dir, &w, &[]) else {
            panic!("{w:?}");
        };
        assert_eq!(shown[0], known, "{w:?}");
        let text = shown.join(" ");
        assert!(!text.contains("secret") && !text.contains('x'), "{text}");
    }
}

#[test]
fn a_session_unknown_here_is_taken_on_the_word_of_a_named_device_or_project() {
    let dir = two_devices();
    assert_eq!(
        to(&dir, &want(Some(77), None, Some("b")), &[]).unwrap(),
        "b"
    );
    assert_eq!(
        to(&dir, &want(Some(77), None, Some("name-b")), &[]).unwrap(),
        "b"
    );
    assert_eq!(
        to(&dir, &want(Some(77), Some("/a/shop"), None), &[]).unwrap(),
        "a"
    );
}

#[test]
fn a_snapshot_disables_and_closes_what_it_leaves_out() {
    let known_p = [project("a", "shop", "/shop"), project("a", "old", "/old")];
    let known_s = [session("a", 1, &[]), session("a", 2, &[])];
    let (p, s) = snapshot(
        &device_id("a"),
        true,
        &known_p,
        &known_s,
        &[known_p[0].info.clone()],
        &[known_s[0].info.clone()],
    );
    assert_eq!((p.len(), s.len()), (1, 1));
    assert!(p[0].info.name.as_str() == "old" && !p[0].info.enabled);
    assert_eq!(s[0].info.activity, Activity::Closed);
}

#[test]
fn a_session_that_lives_on_under_a_new_id_is_listed_once_and_again_when_its_old_id_is_resumed() {
    let dir = Directory::default();
    dir.put_device(device("acme", "a", 10));
    let acme = account("acme");
    let listed = |dir: &Directory| -> Vec<u128> {
        let all = dir.sessions(&acme);
        all.iter().map(|s| s.info.session_id.0.as_u128()).collect()
    };
    dir.put_session(&acme, session("a", 101, &[]));
    let heir = session("a", 102, &[101]);
    assert_eq!(dir.succeeded(&acme, &heir), [SessionId::from_u128(101)]);
    dir.put_session(&acme, heir.clone());
    assert_eq!(listed(&dir), [102]);
    dir.put_session(&acme, session("a", 101, &[]));
    assert!(dir.succeeded(&acme, &heir).is_empty());
    dir.put_session(&acme, heir);
    assert_eq!(listed(&dir), [101, 102]);
}

#[test]
fn closed_sessions_are_forgotten_in_time_with_their_earlier_ids_and_open_ones_are_not() {
    let dir = Directory::default();
    dir.put_device(device("acme", "a", 10));
    let acme = account("acme");
    let mut closed = session("a", 102, &[101]);
    closed.info.activity = Activity::Closed;
    dir.put_session(&acme, closed);
    dir.put_session(&acme, session("a", 103, &[]));
    dir.forget_sessions(WallMs(0));
    assert!(dir.session(&acme, SessionId::from_u128(101)).is_some());
    dir.forget_sessions(WallMs(1));
    assert!(dir.session(&acme, SessionId::from_u128(101)).is_none());
    assert_eq!(dir.sessions(&acme).len(), 1);
}
