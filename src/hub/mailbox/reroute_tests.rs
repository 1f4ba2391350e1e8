use super::*;
use crate::auth::DeviceKey;
use crate::domain::{AccountId, Receipt, Stage, TaskState, TaskStatus};

fn item() -> ItemRecord {
    let mut item = ItemRecord::sample(ItemKind::Task);
    item.anywhere = true;
    item
}

#[test]
fn only_what_any_device_may_do_and_no_device_has_moves() {
    let (from, id) = (DeviceId::new("d").unwrap(), EnvelopeId::from_u128(1));
    assert!(may_move(&item(), id, &from));
    let other = DeviceId::new("e").unwrap();
    assert!(!may_move(&item(), id, &other));
    assert!(!may_move(&item(), EnvelopeId::from_u128(2), &from));
    let mut named = item();
    named.anywhere = false;
    assert!(!may_move(&named, id, &from));
    let mut over = item();
    over.state = TaskState::new(TaskStatus::Cancelled);
    assert!(!may_move(&over, id, &from));
    let mut has = item();
    has.receipts.push(Receipt {
        stage: Stage::OnDevice,
        at: WallMs(2),
        evidence: None,
    });
    assert!(!may_move(&has, id, &from));
}

#[test]
fn a_move_is_told_and_the_old_device_is_no_longer_heard() {
    let to = DeviceId::new("e").unwrap();
    let id = EnvelopeId::from_u128(1);
    let after = moved(&item(), &to, WallMs(7));
    assert_eq!(after.device, to);
    assert!(after.was_sent(id, &to));
    assert!(!after.was_sent(id, &DeviceId::new("d").unwrap()));
    let [m] = after.rerouted.as_slice() else {
        panic!("{:?}", after.rerouted);
    };
    assert_eq!(
        (m.from.as_str(), m.to.as_str(), m.at),
        ("d", "e", WallMs(7))
    );
    assert_eq!(after.state.status, TaskStatus::Queued);
}

#[test]
fn a_device_stays_away_after_its_time_and_every_device_has_it_after_a_start_of_the_hub() {
    let mut d = DeviceRecord {
        id: DeviceId::new("d").unwrap(),
        account: AccountId::new("a").unwrap(),
        name: "d".into(),
        public_key: DeviceKey::generate().unwrap().public().to_string(),
        os: String::new(),
        build: String::new(),
        claude_version: None,
        enrolled_at: WallMs(0),
        revoked_at: None,
        instance: None,
        shut_out: Vec::new(),
        last_seen: Some(WallMs(100)),
        handed: None,
        vouched: true,
    };
    let away = |d: &DeviceRecord, started, now| stays_away(d, WallMs(started), WallMs(now), 50);
    assert!(!away(&d, 0, 149) && away(&d, 0, 150));
    assert!(!away(&d, 120, 150) && away(&d, 120, 170));
    d.last_seen = None;
    assert!(away(&d, 0, 50));
    d.revoked_at = Some(WallMs(1));
    assert!(away(&d, 0, 2));
}
