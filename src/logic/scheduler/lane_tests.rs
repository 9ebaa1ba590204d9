use proptest::prelude::*;

use super::super::policy::{Policy, StepOrder};
use super::super::{Scheduler, Start, StepLimits};
use super::*;
use crate::ids::{RequestId, SeqId};
use crate::logic::kv::Lease;
use crate::logic::request::{Lane, Terms};

const NOW: Timestamp = Timestamp(1_000_000);

const SLOWDOWN: f64 = 0.25;
/// A step of the lane's: twice one of a single reply.
const LONGEST_US: f64 = 10_000.0;

fn load(decodes: u32, prompt_tokens: u32) -> Load {
    Load {
        decodes,
        prompt_tokens,
    }
}

fn made_of(promised: Load, best_effort: Load) -> Loads {
    Loads {
        promised,
        best_effort,
    }
}

/// A step takes 2 ms, a sequence 3 ms and a prompt token 0.5 ms.
fn takes_us(loads: Loads) -> f64 {
    let all = loads.promised + loads.best_effort;
    f64::from(2000 + 3000 * all.decodes + 500 * all.prompt_tokens)
}

/// One that has seen steps of all kinds, the last of them without promised requests.
fn keeper() -> LaneKeeper {
    let mut keeper = LaneKeeper::new(SLOWDOWN);
    for i in 0..2000 {
        let loads = made_of(Load::default(), load(1 + i % 4, 8 * (i % 3)));
        keeper.observe_step(loads, takes_us(loads));
    }
    keeper
}

#[test]
fn alone_the_lane_makes_short_steps_and_gets_on() {
    let alone = |decodes| {
        let Allowance {
            decodes,
            prompt_tokens,
        } = keeper().allowance(None, decodes);
        (decodes, prompt_tokens)
    };
    // 8 ms beside the step itself; the fitted costs are right to some tenths of a percent.
    assert!(matches!(alone(0), (0, 15 | 16)), "{:?}", alone(0));
    assert!(matches!(alone(1), (1, 9 | 10)), "{:?}", alone(1));
    assert!(matches!(alone(9), (2, 3 | 4)), "{:?}", alone(9));
}

#[test]
fn a_step_that_costs_the_same_whatever_it_computes_is_used() {
    let mut keeper = LaneKeeper::new(SLOWDOWN);
    for i in 0..2000 {
        let loads = made_of(Load::default(), load(1 + i % 4, 8 * (i % 3)));
        keeper.observe_step(loads, 100_000.0);
    }
    let all = keeper.allowance(None, 9);
    assert!(all.decodes == 9 && all.prompt_tokens > 200, "{all:?}");
}

#[test]
fn beside_a_promise_the_lane_has_what_that_has_earned() {
    let mut keeper = keeper();
    let nothing = Allowance {
        decodes: 0,
        prompt_tokens: 0,
    };
    assert_eq!(keeper.allowance(Some(1e9), 9), nothing);
    // A quarter of 5 ms is earned in each step.
    let own = made_of(load(1, 0), Load::default());
    for _ in 0..2 {
        keeper.observe_step(own, takes_us(own));
        assert_eq!(keeper.allowance(Some(1e9), 9).decodes, 0);
    }
    keeper.observe_step(own, takes_us(own));
    let some = keeper.allowance(Some(1e9), 9);
    assert!(some.decodes == 1 && some.prompt_tokens <= 4, "{some:?}");
    let mixed = made_of(load(1, 0), load(1, 0));
    keeper.observe_step(mixed, takes_us(mixed));
    assert_eq!(keeper.allowance(Some(1e9), 9).decodes, 0, "it is spent");
    // No more is earned than a step of the lane's may take, and nothing is left once all who earned it are gone.
    for _ in 0..1000 {
        keeper.observe_step(own, takes_us(own));
    }
    let all = keeper.allowance(Some(1e9), 99);
    assert_eq!(all.decodes, 3, "{all:?}");
    let lane = made_of(Load::default(), load(1, 0));
    keeper.observe_step(lane, takes_us(lane));
    assert_eq!(keeper.allowance(Some(1e9), 9), nothing);
}

#[test]
fn where_nothing_was_measured_nobody_is_in_the_way() {
    let keeper = LaneKeeper::new(SLOWDOWN);
    assert_eq!(keeper.allowance(Some(1e9), 3), Allowance::ALL);
}

proptest! {
    /// Whatever runs: from any moment on, promised steps are longer by their share at most, but for one step of the
    /// lane's.
    #[test]
    fn a_promise_sees_the_lane_within_its_limits(
        steps in prop::collection::vec((0u32..4, 0u32..40, 0u32..6, 0u32..60), 1..80),
    ) {
        let mut keeper = keeper();
        // (own, with the lane's) of each stretch of steps with promised requests.
        let mut stretch: Vec<(f64, f64)> = Vec::new();
        for (decodes, prompt_tokens, lane_decodes, lane_prompt) in steps {
            let promised = load(decodes, prompt_tokens);
            let may = keeper.allowance((!promised.is_empty()).then_some(1e9), lane_decodes as usize);
            let lane = load(
                lane_decodes.min(may.decodes as u32),
                lane_prompt.min(may.prompt_tokens),
            );
            let loads = made_of(promised, lane);
            let us = takes_us(loads);
            keeper.observe_step(loads, us);
            if promised.is_empty() {
                prop_assert!(us <= 1.05 * LONGEST_US, "{us}");
                stretch.clear();
                continue;
            }
            stretch.push((takes_us(made_of(promised, Load::default())), us));
            for from in 0..stretch.len() {
                let (own, all) = stretch[from..]
                    .iter()
                    .fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
                let most = (1.0 + SLOWDOWN) * own + LONGEST_US;
                prop_assert!(all <= 1.05 * most, "{all} of {own}");
            }
        }
    }
}

fn scheduler() -> Scheduler<()> {
    let policy = Policy::Continuous {
        max_running: 8,
        order: StepOrder::DecodeFirst,
    };
    let limits = StepLimits {
        prefill_budget: 64,
        n_batch: 128,
        lane_slowdown: SLOWDOWN,
    };
    Scheduler::new(policy, limits)
}

/// Lets a request run that is to be done `due_ms` from now, with 100 tokens to generate.
fn admit(s: &mut Scheduler<()>, lane: Lane, due_ms: Option<u64>, deadline_ms: Option<u64>) {
    let id = s.running().len() as u64;
    let at = |ms: Option<u64>| ms.map_or(Timestamp::NEVER, |ms| Timestamp(NOW.0 + 1000 * ms));
    let spec = RequestSpec {
        id: RequestId(id),
        arrival: Timestamp(0),
        deadline: at(deadline_ms),
        prompt_tokens: 100,
        max_tokens: 100,
        preempted: false,
        terms: Terms {
            lane,
            due: at(due_ms),
            ..Terms::default()
        },
    };
    let lease = Lease {
        seq: SeqId(id as u32),
        blocks: 99,
    };
    let start = Start {
        lease,
        cached: 99,
        lock: None,
        generated: 0,
    };
    s.admit(spec, start, ());
    let s = s.running_mut().last_mut();
    s.unwrap().num_computed = 100;
}

#[test]
fn late_is_who_is_over_or_expected_to_be() {
    let mut keeper = keeper();
    let mut s = scheduler();
    for due_ms in [None, Some(0), Some(690), Some(710)] {
        admit(&mut s, Lane::Promised, due_ms, None);
        admit(&mut s, Lane::BestEffort, due_ms, None);
    }
    // Half of 100 tokens, in steps of four: 50 steps of 14 ms.
    keeper.observe_reply(&s.running()[0].spec, 50);
    assert_eq!(keeper.late(s.running(), NOW), 2);
    // Once the promise is broken the deadline counts, and it is broken all the same.
    admit(&mut s, Lane::Promised, Some(0), Some(9000));
    assert_eq!(keeper.late(s.running(), NOW), 4);
    s.end(RequestId(2), crate::logic::request::Outcome::Cancelled);
    assert_eq!(
        keeper.late(s.running(), NOW),
        2,
        "nor does it slow the others"
    );
}

proptest! {
    /// Idle time is lent, but to nobody's loss: who could use all of its cap by when it is due still can, whatever the lane
    /// does beside it.
    #[test]
    fn what_is_lent_is_nobodys_loss(dues_ms in prop::collection::vec(500u64..4000, 1..4)) {
        let mut keeper = keeper();
        keeper.pass(Timestamp(0), None);
        keeper.pass(NOW, None);
        let mut s = scheduler();
        for due_ms in &dues_ms {
            admit(&mut s, Lane::Promised, Some(*due_ms), None);
        }
        let own = load(dues_ms.len() as u32, 0);
        let alone_us = takes_us(made_of(own, Load::default()));
        let tightest_us = 1000 * *dues_ms.iter().min().unwrap();
        let mut now = NOW;
        let mut lent_us = 0;
        for _ in 0..100 {
            let slack_us = keeper.slack_us(s.running(), now);
            prop_assert!(slack_us.is_some());
            let lane = load(keeper.allowance(slack_us, 9).decodes as u32, 0);
            let loads = made_of(own, lane);
            let us = takes_us(loads);
            lent_us += us as u64 - alone_us as u64;
            keeper.observe_step(loads, us);
            now = Timestamp(now.0 + us as u64);
            keeper.pass(now, Some(loads));
            for s in s.running_mut() {
                s.num_generated += 1;
            }
        }
        // What the lane has earned it takes in any case.
        let earned_us = 100.0 * (1.0 + SLOWDOWN) * alone_us;
        let most_us = (1.05 * (earned_us + LONGEST_US)).max(tightest_us as f64);
        prop_assert!((now.0 - NOW.0) as f64 <= most_us, "{now:?}, {most_us}");
        prop_assert!(lent_us > 0 || earned_us > 0.85 * tightest_us as f64);
    }
}

#[test]
fn who_is_promised_nothing_has_all_the_time_and_nobody_none_at_all() {
    let keeper = keeper();
    let mut s = scheduler();
    admit(&mut s, Lane::BestEffort, Some(1), None);
    assert_eq!(keeper.slack_us(s.running(), NOW), None);
    admit(&mut s, Lane::Promised, None, None);
    assert_eq!(keeper.slack_us(s.running(), NOW), Some(f64::INFINITY));
    admit(&mut s, Lane::Promised, Some(1), None);
    assert_eq!(keeper.slack_us(s.running(), NOW), Some(0.0));
}
