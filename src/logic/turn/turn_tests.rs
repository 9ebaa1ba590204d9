use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::engine::Seen;
use super::world::{World, next_token};
use super::*;
use crate::logic::kv::{KvPool, Reservation};
use crate::logic::request::{FinishReason, Terms};
use crate::logic::scheduler::StepLimits;
use crate::logic::scheduler::policy::{Policy, StepOrder};
use crate::logic::wait_queue::{QueueOrder, TakeRule};

const PAGED: Reservation = Reservation::Paged {
    reserve_growth: false,
    watermark_blocks: 1,
};
const PROMISED: Reservation = Reservation::Paged {
    reserve_growth: true,
    watermark_blocks: 0,
};

fn continuous(max_running: usize) -> Policy {
    Policy::Continuous {
        max_running,
        order: StepOrder::DecodeFirst,
    }
}

fn world(max_running: usize, blocks: u32, reservation: Reservation) -> World {
    let pool = KvPool::unified(blocks * 16, 3 * max_running as u32, reservation);
    World::new(continuous(max_running), QueueOrder::Arrival, pool, true)
}

/// `n` tokens, the same for the same `seed`.
fn text(seed: i32, n: usize) -> Vec<i32> {
    (0..n as i32).map(|i| seed * 1000 + i).collect()
}

fn cached(w: &World, id: RequestId) -> Option<u32> {
    let running = w.engine.turn.scheduler().running();
    running.iter().find(|s| s.spec.id == id)?.payload.cached
}

#[test]
fn a_second_request_starts_where_the_first_ones_prompt_ends() {
    let mut w = world(2, 20, PROMISED);
    w.submit(&text(1, 40), 2, 4, 0);
    w.run_dry();
    for (shared, expected) in [(0, 0), (15, 0), (16, 16), (17, 16), (39, 32), (40, 32)] {
        let mut prompt = text(1, shared);
        prompt.extend(text(7 + shared as i32, 3));
        let id = w.submit(&prompt, 1, 1, 0);
        w.step();
        assert_eq!(cached(&w, id), Some(expected), "{shared} tokens in common");
        w.run_dry();
    }
    w.assert_texts();
    w.assert_nothing_leaked();
}

/// Two have computed the same path side by side, and a third goes on from the one while the cache names the other.
#[test]
fn a_path_that_is_held_twice_is_in_nobodys_way() {
    let mut w = world(3, 7, PAGED);
    let mut path = text(1, 16);
    w.submit(&path, 17, 17, 0);
    for _ in 0..18 {
        w.step();
    }
    // The next turn of the first's conversation, whose reply is not cached before it ends.
    for _ in 0..16 {
        let context: Vec<_> = path.iter().map(|t| TokenId(*t)).collect();
        path.push(next_token(&context).0);
    }
    let beside = w.submit(&[path.clone(), text(2, 17)].concat(), 1, 1, 0);
    w.step();
    assert_eq!(cached(&w, beside), Some(16));
    w.step();
    let last = w.submit(&[path, text(3, 5)].concat(), 75, 75, 0);
    w.step();
    assert_eq!(cached(&w, last), Some(32), "the first's reply");
    w.run_dry();
    let (outcome, said) = &w.ended[&last];
    assert_eq!(*outcome, Outcome::Finished(FinishReason::Stop));
    assert_eq!(said.len(), 75, "all seven blocks");
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn a_prompt_that_is_wholly_cached_computes_its_last_token() {
    let mut w = world(2, 20, PROMISED);
    w.submit(&text(1, 32), 2, 4, 0);
    w.run_dry();
    let id = w.submit(&text(1, 32), 2, 4, 0);
    w.step();
    assert_eq!(cached(&w, id), Some(31));
    w.run_dry();
    assert_eq!(
        w.engine.pool.usage().copies,
        1,
        "the last block was shared and partly filled"
    );
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn the_next_turn_of_a_conversation_finds_the_reply_too() {
    let mut w = world(2, 20, PROMISED);
    let first = w.submit(&text(1, 20), 15, 15, 0);
    w.run_dry();
    let mut prompt = text(1, 20);
    prompt.extend(w.ended[&first].1.iter().map(|t| t.0));
    prompt.extend(text(2, 5));
    let next = w.submit(&prompt, 1, 1, 0);
    w.step();
    assert_eq!(
        cached(&w, next),
        Some(32),
        "20 of the prompt and 14 of the reply, in whole blocks"
    );
    w.run_dry();
    w.assert_texts();
}

#[test]
fn a_cold_burst_of_one_prompt_computes_it_once() {
    let mut w = world(4, 40, PROMISED);
    let prompt = text(1, 50);
    let ids: Vec<_> = (0..4).map(|_| w.submit(&prompt, 3, 3, 0)).collect();
    let mut prefilled = 0;
    while w.begin() {
        prefilled += w
            .engine
            .plan
            .rows
            .iter()
            .filter(|r| {
                r.work.samples().is_none_or(|_| {
                    matches!(r.work, crate::logic::scheduler::step::Work::Prefill { .. })
                })
            })
            .map(|r| r.work.tokens())
            .sum::<u32>();
        w.finish(None);
    }
    assert_eq!(
        prefilled,
        50 + 3 * 2,
        "the others compute what is beyond the whole blocks"
    );
    assert_eq!(w.ended.len(), ids.len());
    assert!(w.engine.seen.deferred > 0);
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn who_shares_only_the_beginning_joins_when_that_is_computed() {
    let mut w = world(2, 40, PROMISED);
    w.submit(&text(1, 60), 1, 1, 0);
    let mut prompt = text(1, 20);
    prompt.extend(text(2, 9));
    let second = w.submit(&prompt, 1, 1, 0);
    for _ in 0..4 {
        w.step();
    }
    assert_eq!(
        w.engine.turn.scheduler().running().len(),
        1,
        "20 tokens are computed"
    );
    w.step();
    assert_eq!(cached(&w, second), Some(16), "while the first one goes on");
    assert_eq!(w.engine.turn.scheduler().running().len(), 2);
    w.run_dry();
    w.assert_texts();
}

#[test]
fn under_pressure_the_one_with_the_most_slack_yields_and_resumes_as_it_was() {
    let mut w = world(3, 8, PAGED);
    let far = Timestamp::NEVER.0;
    let oldest = w.submit(&text(1, 16), 40, 40, far);
    w.step();
    let urgent = w.submit(&text(2, 16), 40, 40, 100);
    let relaxed = w.submit(&text(3, 16), 40, 40, 1_000_000);
    while w.engine.seen.preempted == 0 {
        assert!(w.step(), "memory runs out");
    }
    let mut rule = TakeRule {
        seats: 1,
        free: 1,
        fill: None,
    };
    let waits = w.engine.queue.take(&mut rule).map(|(spec, talk)| {
        let id = spec.id;
        w.engine.queue.put_back(spec, talk);
        id
    });
    assert_eq!(waits, Some(relaxed), "neither {oldest} nor {urgent}");
    w.run_dry();
    for id in [oldest, urgent, relaxed] {
        assert_eq!(w.ended[&id].1.len(), 40);
    }
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn with_growth_promised_nobody_ever_yields() {
    let mut w = world(4, 8, PROMISED);
    for i in 0..6 {
        w.submit(&text(i, 16), 40, 40, 0);
    }
    w.run_dry();
    assert_eq!(w.engine.seen.preempted, 0);
    assert_eq!(w.ended.len(), 6);
    w.assert_texts();
}

#[test]
fn a_request_that_needs_the_whole_pool_gets_it_from_the_cache() {
    let mut w = world(2, 6, PROMISED);
    w.submit(&text(1, 48), 2, 2, 0);
    w.run_dry();
    // The same prompt, so that the cached blocks are its own and the copy of the last has no room beside it.
    let id = w.submit(&text(1, 48), 48, 48, 0);
    w.run_dry();
    assert_eq!(w.ended[&id].1.len(), 48);
    w.assert_texts();
    w.assert_nothing_leaked();
}

/// It is the promise to those that run that a newcomer fails on: nothing that is cached would help.
#[test]
fn a_newcomer_that_cannot_fit_leaves_the_cache_alone() {
    let mut w = world(3, 8, PROMISED);
    w.submit(&text(1, 32), 1, 1, 0);
    w.run_dry();
    w.submit(&text(2, 16), 60, 60, 0);
    w.step();
    let newcomer = w.submit(&text(3, 16), 40, 40, 0);
    for _ in 0..20 {
        w.step();
    }
    assert_eq!(w.engine.seen.evicted, 0);
    w.run_dry();
    assert_eq!(w.ended[&newcomer].1.len(), 40);
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn two_newcomers_that_each_need_an_eviction_start_in_one_turn() {
    let mut w = world(3, 6, PROMISED);
    for seed in 1..=3 {
        w.submit(&text(seed, 32), 1, 1, 0);
        w.run_dry();
    }
    w.submit(&text(4, 32), 8, 8, 0);
    w.submit(&text(5, 32), 8, 8, 0);
    w.step();
    assert_eq!(w.engine.turn.scheduler().running().len(), 2);
    w.run_dry();
    w.assert_texts();
    w.assert_nothing_leaked();
}

/// An engine that has nothing to compute goes to sleep, and nobody may be left in it.
#[test]
fn who_leaves_within_a_turn_is_gone_at_its_end() {
    for caching in [true, false] {
        let mut w = world(2, 20, PROMISED);
        w.engine.turn = Turn::new(
            Scheduler::new(
                continuous(2),
                StepLimits {
                    prefill_budget: 5,
                    n_batch: 9,
                    lane_slowdown: 0.05,
                },
            ),
            caching,
        );
        let id = w.submit(&text(1, 20), 9, 9, 0);
        for _ in 0..6 {
            w.step();
        }
        // As a message between two questions would: its turn has begun, its step is not planned.
        let ask = w.engine.turn.begin(w.now, 1.0);
        assert!(w.engine.turn.cancel(id));
        let mut gone = 0;
        w.engine.answer(ask, w.now, |spec, outcome, _| {
            assert_eq!((spec.id, outcome), (id, Outcome::Cancelled));
            gone += 1;
        });
        assert_eq!(gone, 1);
        assert!(w.engine.turn.scheduler().running().is_empty());
        assert!(w.engine.plan.rows.is_empty());
    }
}

#[test]
fn a_failed_request_leaves_what_others_share_whole() {
    let mut w = world(3, 30, PROMISED);
    w.submit(&text(1, 40), 20, 20, 0);
    for _ in 0..10 {
        w.step();
    }
    let mut prompt = text(1, 32);
    prompt.extend(text(2, 9));
    let sharer = w.submit(&prompt, 9, 9, 0);
    w.begin();
    w.finish(Some(0));
    w.run_dry();
    assert_eq!(w.ended[&RequestId(0)].0, Outcome::Failed);
    assert_eq!(w.ended[&sharer].0, Outcome::Finished(FinishReason::Stop));
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn next_token_depends_on_all_that_went_before() {
    let t = |x: &[i32]| next_token(&x.iter().map(|t| TokenId(*t)).collect::<Vec<_>>());
    assert_ne!(t(&[1, 2, 3]), t(&[4, 2, 3]));
    assert_ne!(t(&[1, 2, 3]), t(&[1, 2]));
}

fn pool(which: usize) -> (KvPool, bool) {
    match which {
        0 => (KvPool::unified(6 * 16, 6, Reservation::Request), true),
        1 => (KvPool::unified(6 * 16, 6, PROMISED), true),
        2 => (KvPool::unified(6 * 16, 7, PAGED), true),
        3 => (KvPool::unified(6 * 16, 6, PAGED), false),
        _ => (KvPool::streams(6 * 6 * 16, 6), true),
    }
}

/// One random run; what it reached.
fn run(
    which: usize,
    order: QueueOrder,
    max_running: usize,
    ops: Vec<(u8, i32, usize, u32)>,
) -> (Seen, u64, u64) {
    let (pool, caching) = pool(which);
    let mut w = World::new(continuous(max_running), order, pool, caching);
    let mut expected = BTreeMap::new();
    let mut touched = BTreeSet::new();
    for (op, seed, shared, says) in ops {
        match op {
            0..=2 => {
                let mut prompt = text(seed, shared);
                prompt.extend(text(8 + says as i32, 1 + (says as usize) % 7));
                let soon = |often: u32| says.is_multiple_of(often).then(|| w.now.0 + shared as u64);
                let at = |us: Option<u64>| us.map_or(Timestamp::NEVER, Timestamp);
                let terms = Terms {
                    lane: Lane::ALL[usize::from(op == 2)],
                    due: at(soon(3)),
                    drop_at: at(soon(7)),
                    ..Terms::default()
                };
                let id = w.submit_on(terms, &prompt, says, 20, u64::from(says) * 7);
                expected.insert(id, says.min(20));
            }
            3 | 4 => {
                for _ in 0..says / 3 {
                    w.step();
                }
            }
            5 => {
                let id = RequestId(shared as u64 % 8);
                touched.insert(id);
                w.cancel(id);
            }
            _ => {
                if w.begin() {
                    touched.extend(w.engine.plan.rows.get(shared % 4).map(|r| r.request));
                    w.finish(Some(shared % 4));
                }
            }
        }
    }
    w.run_dry();
    w.assert_texts();
    assert_eq!(w.ended.len(), expected.len());
    for (id, (outcome, said)) in &w.ended {
        match outcome {
            Outcome::Finished(FinishReason::Slo) => assert!(said.len() as u32 <= expected[id]),
            Outcome::Expired => assert!(said.is_empty(), "{id}"),
            Outcome::Finished(_) => assert_eq!(said.len() as u32, expected[id], "{id}"),
            _ => assert!(touched.contains(id), "{id} ended as {outcome:?}"),
        }
    }
    w.assert_nothing_leaked();
    (w.engine.seen, w.memory_only, w.followed)
}

/// Whatever is submitted, cancelled or fails, under whatever pressure: every request ends exactly once with the
/// text that it would have had alone, no step reads another's cells, and all memory comes back.
#[test]
fn texts_are_right_and_nothing_leaks() {
    let ops = prop::collection::vec((0u8..7, 0i32..3, 0usize..36, 1u32..30), 0..25);
    let order = prop_oneof![Just(QueueOrder::Arrival), Just(QueueOrder::Deadline)];
    let reached = std::cell::Cell::new([0; 7]);
    TestRunner::new(ProptestConfig::with_cases(2000))
        .run(
            &(0usize..5, order, 1usize..4, ops),
            |(which, order, max_running, ops)| {
                let (seen, memory_only, followed) = run(which, order, max_running, ops);
                let Seen {
                    hits,
                    deferred,
                    preempted,
                    evicted,
                    starved,
                } = seen;
                let more = [
                    hits,
                    deferred,
                    preempted,
                    evicted,
                    starved,
                    memory_only,
                    followed,
                ];
                let so_far = reached.get();
                reached.set(std::array::from_fn(|i| so_far[i] + more[i]));
                Ok(())
            },
        )
        .unwrap();
    let reached = reached.get();
    println!("hits, deferred, preempted, evicted, starved, memory only, followed: {reached:?}");
    assert!(reached.iter().all(|n| *n > 0), "{reached:?}");
}
