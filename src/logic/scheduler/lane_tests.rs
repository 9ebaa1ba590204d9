use super::super::policy::{Policy, StepOrder};
use super::super::{Scheduler, Start, StepLimits};
use super::*;
use crate::ids::{RequestId, SeqId};
use crate::logic::kv::Lease;
use crate::logic::request::{Lane, Terms};

const NOW: Timestamp = Timestamp(1_000_000);

fn scheduler() -> Scheduler<()> {
    let policy = Policy::Continuous {
        max_running: 8,
        order: StepOrder::DecodeFirst,
    };
    let limits = StepLimits {
        prefill_budget: 64,
        n_batch: 128,
    };
    Scheduler::new(policy, limits)
}

/// Lets a request run that is to be done `due_ms` from now and has computed all but `prompt` tokens of its prompt.
fn admit(s: &mut Scheduler<()>, lane: Lane, due_ms: Option<u64>, prompt: u32, max_tokens: u32) {
    let id = s.running().len() as u64;
    let at = |ms: u64| Timestamp(NOW.0 + 1000 * ms);
    let spec = RequestSpec {
        id: RequestId(id),
        arrival: Timestamp(0),
        deadline: Timestamp::NEVER,
        prompt_tokens: 100,
        max_tokens,
        preempted: false,
        terms: Terms {
            lane,
            due: due_ms.map_or(Timestamp::NEVER, at),
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
    s.unwrap().num_computed = 100 - prompt;
}

/// Steps of 4 ms with 4 rows, and replies that use half of their caps.
fn pace() -> Pace {
    let mut pace = Pace::default();
    pace.observe_step(4000.0, 4);
    let mut s = scheduler();
    admit(&mut s, Lane::Promised, None, 0, 100);
    pace.observe_reply(&s.running()[0].spec, 50);
    pace
}

/// What is left to the lane beside one promised request.
fn beside(due_ms: Option<u64>, prompt: u32, max_tokens: u32) -> Allowance {
    let mut s = scheduler();
    admit(&mut s, Lane::BestEffort, Some(0), 50, 400);
    admit(&mut s, Lane::Promised, due_ms, prompt, max_tokens);
    pace().allowance(s.running(), NOW)
}

#[test]
fn the_lane_gets_what_the_tightest_promise_can_spare() {
    let rows = |due_ms, prompt, max_tokens| beside(Some(due_ms), prompt, max_tokens).rows;
    // 50 of 100 tokens at 4 ms a step of 4 rows take 200 ms, so a step may have 4 rows, the promised one among them.
    assert_eq!(rows(200, 0, 100), 3);
    assert_eq!(rows(400, 0, 100), 7);
    assert_eq!(rows(199, 0, 100), 2);
    assert_eq!(rows(50, 0, 100), 0);
    // A prompt token costs a row's share of a step: 100 of them take 100 ms.
    assert_eq!(rows(200, 100, 100), 1);
    assert_eq!(rows(300, 100, 100), 3);
    // Chunks of prompts fit into what is left over.
    assert_eq!(beside(Some(207), 0, 100).prefill_tokens, 7);
    assert_eq!(beside(Some(199), 0, 100).prefill_tokens, 0);
}

#[test]
fn the_lane_gets_all_where_nothing_is_to_be_lost() {
    assert_eq!(beside(None, 0, 100), Allowance::ALL, "nothing was promised");
    assert_eq!(beside(Some(0), 0, 100), Allowance::ALL, "it is broken");
    let mut s = scheduler();
    admit(&mut s, Lane::Promised, Some(1), 0, 100);
    assert_eq!(
        Pace::default().allowance(s.running(), NOW),
        Allowance::ALL,
        "nothing was measured"
    );
    assert_eq!(pace().allowance(s.running(), NOW).rows, 0);
    s.end(RequestId(0), crate::logic::request::Outcome::Cancelled);
    assert_eq!(pace().allowance(s.running(), NOW), Allowance::ALL);
}

#[test]
fn once_the_promise_is_broken_the_deadline_counts() {
    let mut s = scheduler();
    admit(&mut s, Lane::Promised, Some(0), 0, 100);
    s.running_mut()[0].spec.deadline = Timestamp(NOW.0 + 200_000);
    assert_eq!(pace().allowance(s.running(), NOW).rows, 3);
}

#[test]
fn late_is_who_is_over_or_expected_to_be() {
    let mut s = scheduler();
    for due_ms in [None, Some(0), Some(199), Some(201)] {
        admit(&mut s, Lane::Promised, due_ms, 0, 100);
        admit(&mut s, Lane::BestEffort, due_ms, 0, 100);
    }
    assert_eq!(pace().late(s.running(), NOW), 2);
}
