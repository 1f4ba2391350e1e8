use super::*;
use serde_json::json;

const T: WallMs = WallMs(1_000_000);
const OWNER: Owner = Owner { pid: 7, start: 70 };

fn id(n: u128) -> SessionId {
    SessionId::from_u128(n)
}

fn origin() -> Origin {
    Origin {
        owner: Some(OWNER),
        entrypoint: Some("cli".into()),
        attended: Some(true),
        ..Origin::default()
    }
}

fn hear(registry: &mut Registry, session: u128, event: &serde_json::Value, at: WallMs) -> Changed {
    let mut input = event.clone();
    input["session_id"] = json!(id(session));
    registry.hear(&HookInput::read(&input).unwrap(), &origin(), at)
}

fn start(source: &str) -> serde_json::Value {
    json!({"hook_event_name": "SessionStart", "source": source})
}

fn activity(registry: &Registry, session: u128) -> Activity {
    registry.resolve(id(session)).unwrap().activity
}

#[test]
fn hook_events_tell_what_a_session_does() {
    let mut r = Registry::default();
    for (event, expected) in [
        (start("startup"), Activity::Idle),
        (
            json!({"hook_event_name": "UserPromptSubmit", "prompt": "x"}),
            Activity::Busy,
        ),
        (json!({"hook_event_name": "PreToolUse"}), Activity::Busy),
        (
            json!({"hook_event_name": "Notification", "notification_type": "permission_prompt"}),
            Activity::Waiting,
        ),
        (json!({"hook_event_name": "PostToolUse"}), Activity::Busy),
        (
            json!({"hook_event_name": "SessionStart", "source": "compact"}),
            Activity::Busy,
        ),
        (json!({"hook_event_name": "Stop"}), Activity::Idle),
        (json!({"hook_event_name": "SomethingNew"}), Activity::Idle),
        (
            json!({"hook_event_name": "SessionEnd", "reason": "other"}),
            Activity::Closed,
        ),
        (start("resume"), Activity::Idle),
    ] {
        hear(&mut r, 1, &event, T);
        assert_eq!(activity(&r, 1), expected, "{event}");
    }
}

#[test]
fn a_start_that_several_hooks_report_is_one_start() {
    let mut r = Registry::default();
    let mut is_new = |source: &str, at: i64| {
        hear(&mut r, 1, &start(source), T.plus(at));
        r.get_mut(id(1)).unwrap().is_new_start(T.plus(at))
    };
    assert_eq!(
        [
            ("startup", 0),
            ("startup", 900),
            ("startup", 4_999),
            ("compact", 5_000)
        ]
        .map(|(source, at)| is_new(source, at)),
        [true, false, false, true]
    );
    for event in [
        json!({"hook_event_name": "PreCompact", "trigger": "manual"}),
        json!({"hook_event_name": "SessionEnd", "reason": "other"}),
    ] {
        hear(&mut r, 1, &event, T.plus(5_100));
        hear(&mut r, 1, &start("compact"), T.plus(5_200));
        let session = r.get_mut(id(1)).unwrap();
        assert!(session.is_new_start(T.plus(5_200)), "{event}");
        assert!(!session.is_new_start(T.plus(5_201)), "{event}");
    }
}

#[test]
fn mail_for_a_cleared_session_reaches_its_successor() {
    let mut r = Registry::default();
    hear(&mut r, 1, &start("startup"), T);
    hear(
        &mut r,
        1,
        &json!({"hook_event_name": "SessionEnd", "reason": "clear"}),
        T,
    );
    hear(&mut r, 2, &start("clear"), T);
    hear(
        &mut r,
        2,
        &json!({"hook_event_name": "SessionEnd", "reason": "clear"}),
        T,
    );
    let changed = hear(&mut r, 3, &start("clear"), T);
    assert_eq!(changed.forgotten, [id(2)]);
    let session = r.resolve(id(1)).unwrap();
    assert_eq!(
        (session.id, session.lineage.clone()),
        (id(3), vec![id(1), id(2)])
    );
    // The lineage outlives a restart.
    let again = Registry::load(r.iter().map(Session::row).collect());
    assert_eq!(again.resolve(id(1)).unwrap().id, id(3));
}

#[test]
fn another_conversation_taken_up_in_the_same_process_is_no_successor() {
    let mut r = Registry::default();
    hear(&mut r, 1, &start("startup"), T);
    hear(
        &mut r,
        1,
        &json!({"hook_event_name": "SessionEnd", "reason": "resume"}),
        T,
    );
    hear(&mut r, 2, &start("resume"), T);
    assert_eq!(r.resolve(id(1)).unwrap().id, id(1));
    assert_eq!(activity(&r, 1), Activity::Closed);
}

#[test]
fn a_session_whose_process_died_is_closed() {
    let mut r = Registry::default();
    hear(
        &mut r,
        1,
        &json!({"hook_event_name": "UserPromptSubmit", "prompt": "x"}),
        T,
    );
    assert_eq!(r.sight(&[], |_| true, T), Changed::default());
    r.sight(&[], |_| false, T.plus(5));
    assert_eq!(activity(&r, 1), Activity::Closed);
    assert!(!r.resolve(id(1)).unwrap().snapshot().is_live());
}

#[test]
fn the_clis_own_registry_corrects_an_interrupted_turn_but_not_a_younger_hook() {
    let mut r = Registry::default();
    hear(
        &mut r,
        1,
        &json!({"hook_event_name": "UserPromptSubmit", "prompt": "x"}),
        T,
    );
    let sighting = |at| Sighting {
        session: id(1),
        owner: OWNER,
        activity: Some(Activity::Idle),
        at,
        cwd: None,
        entrypoint: None,
        project: None,
    };
    r.sight(&[sighting(T.plus(-1))], |_| true, T);
    assert_eq!(activity(&r, 1), Activity::Busy);
    r.sight(&[sighting(T.plus(1))], |_| true, T.plus(9));
    assert_eq!(activity(&r, 1), Activity::Idle);
    assert_eq!(r.resolve(id(1)).unwrap().idle_since, Some(T.plus(1)));
}

#[test]
fn a_session_that_no_hook_announced_is_known_from_the_clis_registry() {
    let mut r = Registry::default();
    let changed = r.sight(&[seen_in(Some("shop"), 4)], |_| true, T);
    assert_eq!(changed.sessions, [id(4)]);
    assert!(r.resolve(id(4)).unwrap().snapshot().is_live());
}

fn seen_in(project: Option<&str>, session: u128) -> Sighting {
    Sighting {
        session: id(session),
        owner: OWNER,
        activity: None,
        at: T,
        cwd: Some("/p".into()),
        entrypoint: Some("cli".into()),
        project: project.map(|p| ProjectName::new(p).unwrap()),
    }
}

#[test]
fn a_session_outside_every_project_is_no_concern_of_ours_until_a_hook_of_ours_speaks_there() {
    let mut r = Registry::default();
    let foreign = [seen_in(None, 4)];
    assert_eq!(r.sight(&foreign, |_| true, T), Changed::default());
    assert!(r.resolve(id(4)).is_none());
    hear(&mut r, 4, &start("startup"), T);
    r.sight(&foreign, |_| true, T);
    assert_eq!(activity(&r, 4), Activity::Idle);
}

#[test]
fn a_cleared_session_lives_on_also_when_the_clis_registry_is_faster_than_the_hook() {
    let mut r = Registry::default();
    hear(&mut r, 1, &start("startup"), T);
    let cleared = json!({"hook_event_name": "SessionEnd", "reason": "clear"});
    hear(&mut r, 1, &cleared, T);
    r.sight(&[seen_in(Some("shop"), 2)], |_| true, T);
    hear(&mut r, 2, &start("clear"), T);
    let heir = r.resolve(id(1)).unwrap();
    assert_eq!(
        (heir.id, heir.lineage.as_slice()),
        (id(2), [id(1)].as_slice())
    );
}

#[test]
fn after_a_restart_sessions_are_unknown_until_a_sign_comes() {
    let mut r = Registry::default();
    hear(&mut r, 1, &start("startup"), T);
    hear(
        &mut r,
        2,
        &json!({"hook_event_name": "SessionEnd", "reason": "other"}),
        T,
    );
    let again = Registry::load(r.iter().map(Session::row).collect());
    assert_eq!(activity(&again, 1), Activity::Unknown);
    assert_eq!(activity(&again, 2), Activity::Closed);
    assert_eq!(again.resolve(id(1)).unwrap().owner, Some(OWNER));
}

#[test]
fn a_row_reads_back_as_the_session_that_wrote_it() {
    let mut r = Registry::default();
    hear(
        &mut r,
        1,
        &json!({"hook_event_name": "SessionEnd", "reason": "other"}),
        T,
    );
    r.get_mut(id(1)).unwrap().told.insert("d".into());
    let session = r.resolve(id(1)).unwrap();
    assert_eq!(&Session::from_row(session.row()), session);
}

#[test]
fn old_closed_sessions_are_forgotten_and_live_ones_are_not() {
    let mut r = Registry::default();
    hear(
        &mut r,
        1,
        &json!({"hook_event_name": "SessionEnd", "reason": "other"}),
        T,
    );
    hear(
        &mut r,
        2,
        &json!({"hook_event_name": "SessionEnd", "reason": "other"}),
        T.plus(10),
    );
    hear(&mut r, 3, &start("startup"), T);
    assert_eq!(r.sweep(T.plus(5), 100).forgotten, [id(1)]);
    assert_eq!(r.sweep(T, 0).forgotten, [id(2)]);
    assert!(r.resolve(id(3)).is_some());
}

#[test]
fn a_folder_belongs_to_the_deepest_enabled_project() {
    let (a, b) = (
        ProjectName::new("a").unwrap(),
        ProjectName::new("b").unwrap(),
    );
    let projects = [(&a, Path::new("/w")), (&b, Path::new("/w/b"))];
    assert_eq!(project_of(Path::new("/w/b/src"), projects), Some(&b));
    assert_eq!(project_of(Path::new("/w/bc"), projects), Some(&a));
    assert_eq!(project_of(Path::new("/x"), projects), None);
}
