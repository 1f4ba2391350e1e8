use super::*;
use crate::domain::{AccountId, TaskState};
use crate::hub::reports::{self, SILENT};

const PATIENCE: Patience = Patience {
    away_ms: 100,
    online_ms: 10_000,
};

fn running(timeout_s: u64) -> ItemRecord {
    let mut task = ItemRecord::sample(ItemKind::Task);
    task.timeout_s = Some(timeout_s);
    task.state = TaskState::new(TaskStatus::Running);
    task
}

#[test]
fn a_run_is_watched_from_its_wall_clock_on() {
    let mut task = running(2);
    watch(&mut task, WallMs(10), PATIENCE);
    assert_eq!(task.deadline, Some(WallMs(2010)));
    assert_eq!(task.watch, Some(WallMs(2110)));
    // Another report of the same run does not move it.
    watch(&mut task, WallMs(500), PATIENCE);
    assert_eq!(task.deadline, Some(WallMs(2010)));
    let away = |heard, now| look(&task, false, Some(WallMs(heard)), WallMs(now), PATIENCE);
    assert_eq!(away(20, 2109), Verdict::Wait(WallMs(2110)));
    assert_eq!(away(20, 2110), Verdict::Silent);
    // Heard after the deadline: it has the patience from then on.
    assert_eq!(away(2100, 2110), Verdict::Wait(WallMs(2200)));
    assert_eq!(away(2100, 2200), Verdict::Silent);
}

#[test]
fn a_connected_device_gets_far_longer_and_is_looked_at_in_case_it_leaves() {
    let mut task = running(2);
    watch(&mut task, WallMs(0), PATIENCE);
    let online = |now| look(&task, true, None, WallMs(now), PATIENCE);
    assert_eq!(online(2100), Verdict::Wait(WallMs(3100)));
    assert_eq!(online(12_000), Verdict::Silent);
}

#[test]
fn what_waits_at_the_device_is_watched_from_its_expiry_on() {
    for kind in [ItemKind::Task, ItemKind::Message] {
        let mut item = ItemRecord::sample(kind);
        watch(&mut item, WallMs(999), PATIENCE);
        assert_eq!(item.watch, None);
        watch(&mut item, WallMs(1000), PATIENCE);
        assert_eq!(item.watch, Some(WallMs(1100)));
        assert_eq!(
            look(&item, false, None, WallMs(1100), PATIENCE),
            Verdict::Silent
        );
    }
    let mut blocked = ItemRecord::sample(ItemKind::Task);
    blocked.state = TaskState {
        until: Some(WallMs(5000)),
        ..TaskState::because(TaskStatus::Blocked, "usage_limit")
    };
    assert_eq!(
        look(&blocked, false, None, WallMs(2000), PATIENCE),
        Verdict::Wait(WallMs(5100))
    );
}

#[test]
fn an_end_settles_it_and_a_word_after_the_conclusion_is_watched_again() {
    let mut task = running(1);
    watch(&mut task, WallMs(0), PATIENCE);
    assert_eq!(
        reports::presume_silent(&mut task, WallMs(2000)),
        reports::Effect::Changed
    );
    assert_eq!(
        task.state,
        TaskState::because(TaskStatus::Interrupted, SILENT)
    );
    watch(&mut task, WallMs(2000), PATIENCE);
    assert_eq!((task.watch, task.deadline), (None, None));
    let now = WallMs(9000);
    assert_eq!(look(&task, false, None, now, PATIENCE), Verdict::Settled);
    let body = crate::domain::ReportBody::Status(TaskState::new(TaskStatus::Running));
    reports::apply(
        &mut task,
        crate::domain::EnvelopeId::from_u128(1),
        body,
        now,
    );
    watch(&mut task, now, PATIENCE);
    assert_eq!(task.watch, Some(WallMs(10_100)));
}

#[test]
fn no_time_that_somebody_names_holds_up_the_looks_at_others() {
    let now = WallMs(1_796_000_000_000);
    let account = AccountId::new("a").unwrap();
    let due_now = running(1).watch_key(&account, now);
    let mut blocked = ItemRecord::sample(ItemKind::Task);
    blocked.expires_at = now;
    for until in [10_000_000_000_000, 17_960_000_000_000, i64::MAX] {
        blocked.state = TaskState {
            until: Some(WallMs(until)),
            ..TaskState::because(TaskStatus::Blocked, "usage_limit")
        };
        let latest = now.plus(LONGEST_MS).plus(PATIENCE.away_ms);
        let away = |at| look(&blocked, false, None, at, PATIENCE);
        assert_eq!(away(now), Verdict::Wait(latest));
        assert_eq!(away(latest), Verdict::Silent);
        assert!(blocked.watch_key(&account, latest) > due_now);
    }
    for timeout_s in [10_000_000_000, u64::MAX] {
        let mut task = running(timeout_s);
        watch(&mut task, now, PATIENCE);
        assert_eq!(task.deadline, Some(now.plus(LONGEST_MS)));
        assert!(task.watch_key(&account, task.watch.unwrap()) > due_now);
    }
}
