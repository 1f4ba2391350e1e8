//! The law of the link under random trouble: accepted means durable at the hub, acked means durable at the device, in
//! order, once per id; reports once and in order; and when the trouble ends, everything arrives.
//!
//! A failing plan is shrunk and printed as the list of its steps; put it into [`replay`] to run it again.

mod device;
mod hub;
mod law;
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use world::{Step, World};

fn step() -> impl Strategy<Value = Step> {
    let few = 1u8..6;
    prop_oneof![
        12 => (1u8..5).prop_map(Step::Post),
        6 => prop::bool::weighted(0.15).prop_map(|large| Step::Report { large }),
        2 => any::<u8>().prop_map(Step::Finish),
        16 => (prop_oneof![4 => Just(0u8), 1 => 0u8..3], few.clone())
            .prop_map(|(back, count)| Step::Up { back, count }),
        16 => few.clone().prop_map(|count| Step::Down { count }),
        16 => few.clone().prop_map(Step::Device),
        18 => few.clone().prop_map(Step::Hub),
        16 => few.clone().prop_map(Step::Answers),
        8 => few.clone().prop_map(Step::Notes),
        3 => few.prop_map(Step::SkipNotes),
        16 => (1u8..12).prop_map(Step::Flow),
        12 => Just(Step::Dial),
        8 => prop_oneof![6 => 1u32..3_000, 1 => 3_000u32..50_000].prop_map(Step::Pass),
        3 => (0u8..6, any::<bool>()).prop_map(|(keep_up, hub_knows)| Step::Cut { keep_up, hub_knows }),
        2 => (0u8..6).prop_map(|keep_down| Step::HubCut { keep_down }),
        1 => Just(Step::Stall),
        2 => any::<bool>().prop_map(|hub_knows| Step::CrashDevice { hub_knows }),
        2 => any::<bool>().prop_map(|device_knows| Step::CrashHub { device_knows }),
        1 => Just(Step::LoseQueue),
        1 => (0u8..8).prop_map(Step::RestoreHub),
        3 => Just(Step::RestoreOutbox),
        1 => Just(Step::RefuseToken),
        1 => Just(Step::Expire),
        2 => any::<u8>().prop_map(Step::FailDial),
        1 => Just(Step::Drain),
        2 => Just(Step::Connect),
        1 => Just(Step::Disconnect),
        1 => Just(Step::Woke),
    ]
}

/// Runs a plan, then lets the network calm down.
fn replay(window: u32, window_bytes: u64, plan: &[Step]) {
    let mut world = World::new(window, window_bytes);
    for step in plan {
        world.step(step);
        world.check();
    }
    world.calm();
}

#[test]
fn the_law_holds_under_loss_crash_and_restart_on_both_sides() {
    let mut runner = TestRunner::new(Config {
        cases: 800,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Config::default()
    });
    let plans = (
        prop_oneof![Just(1u32), 2u32..6, Just(256u32)],
        prop_oneof![1 => 1u64..2_000, 2 => Just(1u64 << 20)],
        prop::collection::vec(step(), 1..160),
    );
    let outcome = runner.run(&plans, |(window, window_bytes, plan)| {
        replay(window, window_bytes, &plan);
        Ok(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

#[test]
fn a_quiet_link_delivers_everything() {
    let mut plan = vec![Step::Dial];
    plan.extend((0..20).map(|_| Step::Post(4)));
    plan.extend((0..100).map(|n| Step::Report { large: n % 10 == 3 }));
    for window in [1, 2, 256] {
        replay(window, 1 << 20, &plan);
    }
}

#[test]
fn a_row_committed_while_a_load_is_under_way_is_not_lost() {
    let plan = [
        Step::Post(1),
        Step::Hub(1),
        Step::Dial,
        Step::Device(1),
        Step::Up { back: 0, count: 1 },
        Step::Hub(1),
        Step::Answers(1),
        Step::Post(1),
    ];
    replay(4, 1 << 20, &plan);
}
