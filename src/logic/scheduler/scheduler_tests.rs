//! The scheduler with the wait queue and the pool around it, driven synchronously as the actors drive them.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::policy::StepOrder;
use super::step::Work;
use super::*;
use crate::logic::kv::{KvPool, Reservation};
use crate::logic::request::Terms;
use crate::logic::turn::world::World;
use crate::logic::wait_queue::QueueOrder;

const POOL_BLOCKS: u32 = 6;

/// An engine without paging and sharing.
fn world(policy: Policy, order: QueueOrder) -> World {
    let sequences = 2 * policy.max_running() as u32;
    let pool = KvPool::unified(POOL_BLOCKS * 16, sequences, Reservation::Request);
    World::new(policy, order, pool, false)
}

/// Submits a prompt of `n` tokens.
fn submit(w: &mut World, n: u32, says: u32, max_tokens: u32, deadline: u64) -> RequestId {
    let prompt: Vec<i32> = (0..n as i32).collect();
    w.submit(&prompt, says, max_tokens, deadline)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Fifo),
        (1usize..4).prop_map(|batch| Policy::StaticBatch {
            batch,
            fill_timeout: Duration::from_micros(3)
        }),
        (1usize..4, any::<bool>()).prop_map(|(max_running, decode_first)| Policy::Continuous {
            max_running,
            order: if decode_first {
                StepOrder::DecodeFirst
            } else {
                StepOrder::PrefillFirst
            },
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is submitted, cancelled or fails, at whatever moment: every request ends exactly once, the
    /// others as they would have, and all memory comes back.
    #[test]
    fn every_request_ends_once_and_everything_comes_back(
        policy in policies(),
        by_deadline: bool,
        ops in prop::collection::vec((0u8..6, 0u32..12, 1u32..5, 1u32..5), 0..40),
    ) {
        let order = if by_deadline { QueueOrder::Deadline } else { QueueOrder::Arrival };
        let mut w = world(policy, order);
        let mut expected = BTreeMap::new();
        let mut touched = std::collections::BTreeSet::new();
        for (op, x, says, max_tokens) in ops {
            match op {
                0..=2 => {
                    let prompt: Vec<i32> = (0..=x as i32).collect();
                    let terms = Terms { lane: Lane::ALL[usize::from(op == 2)], ..Terms::default() };
                    let id = w.submit_on(terms, &prompt, says, max_tokens, u64::from(x));
                    let reason = if says <= max_tokens { FinishReason::Stop } else { FinishReason::Length };
                    expected.insert(id, Outcome::Finished(reason));
                }
                3 => {
                    w.step();
                }
                4 => {
                    // A cancel or a failure, in the middle of a step.
                    if w.begin() {
                        let fails = (x as usize) % 4;
                        if x % 2 == 0 {
                            touched.insert(RequestId(u64::from(x)));
                            w.cancel(RequestId(u64::from(x)));
                        }
                        let fails = Some(fails).filter(|_| says == 1);
                        let row = fails.and_then(|i| w.engine.plan.rows.get(i));
                        touched.extend(row.map(|r| r.request));
                        w.finish(fails);
                    }
                }
                _ => {
                    touched.insert(RequestId(u64::from(x)));
                    w.cancel(RequestId(u64::from(x)));
                }
            }
        }
        w.run_dry();
        prop_assert_eq!(w.ended.len(), expected.len());
        for (id, (outcome, _)) in &w.ended {
            prop_assert!(
                *outcome == expected[id]
                    || touched.contains(id) && matches!(outcome, Outcome::Cancelled | Outcome::Failed),
                "{} ended as {:?} instead of {:?}", id, outcome, expected[id]
            );
        }
        w.assert_texts();
        w.assert_nothing_leaked();
    }
}

const CONTINUOUS: Policy = Policy::Continuous {
    max_running: 3,
    order: StepOrder::DecodeFirst,
};

#[test]
fn replies_advance_beside_a_long_prefill() {
    let mut w = world(CONTINUOUS, QueueOrder::Arrival);
    submit(&mut w, 2, 9, 9, 0);
    w.step();
    let long = submit(&mut w, 20, 1, 1, 0);
    for _ in 0..4 {
        w.begin();
        let kinds: Vec<bool> = w
            .engine
            .plan
            .rows
            .iter()
            .map(|r| matches!(r.work, Work::Decode { .. }))
            .collect();
        assert_eq!(
            kinds,
            [true, false],
            "the running reply is in every step, the chunk beside it"
        );
        w.finish(None);
    }
    w.begin();
    assert!(
        w.ended.contains_key(&long),
        "20 tokens in chunks of 5 take 4 steps"
    );
}

#[test]
fn prefill_first_lets_replies_wait_while_a_prompt_is_incomplete() {
    let policy = Policy::Continuous {
        max_running: 3,
        order: StepOrder::PrefillFirst,
    };
    let mut w = world(policy, QueueOrder::Arrival);
    submit(&mut w, 2, 9, 9, 0);
    w.step();
    submit(&mut w, 7, 1, 1, 0);
    w.begin();
    assert!(
        w.engine
            .plan
            .rows
            .iter()
            .all(|r| matches!(r.work, Work::Prefill { .. }))
    );
    w.finish(None);
}

#[test]
fn a_freed_seat_is_taken_in_the_very_next_step() {
    let mut w = world(Policy::Fifo, QueueOrder::Arrival);
    let first = submit(&mut w, 2, 1, 4, 0);
    let second = submit(&mut w, 2, 1, 4, 0);
    w.step();
    w.begin();
    assert_eq!(
        w.ended.get(&first).map(|e| e.0),
        Some(Outcome::Finished(FinishReason::Stop))
    );
    assert_eq!(
        w.engine.plan.emptied().count(),
        1,
        "the first one's cells go back in this step"
    );
    assert_eq!(w.engine.plan.rows.len(), 1, "and the second one runs in it");
    assert_eq!(w.engine.plan.rows[0].request, second);
    assert_ne!(
        Some(w.engine.plan.rows[0].seq),
        w.engine.plan.emptied().next(),
        "not under an id that is still retiring"
    );
    w.finish(None);
}

#[test]
fn the_earliest_deadline_goes_first_when_a_seat_is_free() {
    let policy = Policy::Continuous {
        max_running: 1,
        order: StepOrder::DecodeFirst,
    };
    let mut w = world(policy, QueueOrder::Deadline);
    let running = submit(&mut w, 1, 2, 2, 50);
    w.step();
    let relaxed = submit(&mut w, 1, 1, 1, 90);
    let urgent = submit(&mut w, 1, 1, 1, 60);
    w.run_dry();
    assert_eq!(w.started, [running, urgent, relaxed]);
}

#[test]
fn results_of_another_step_change_nothing() {
    let mut w = world(CONTINUOUS, QueueOrder::Arrival);
    submit(&mut w, 2, 5, 5, 0);
    w.begin();
    let mut stale = w.engine.plan.clone();
    stale.id = stale.id.next();
    let results = vec![RowResult::Sampled(TokenId(0)); stale.rows.len()];
    assert_eq!(
        w.engine.turn.complete(&stale, &results, |_, _| None),
        Err(StaleStep)
    );
    assert!(w.engine.turn.scheduler().in_flight());
    w.finish(None);
    let plan = w.engine.plan.clone();
    assert_eq!(
        w.engine.turn.complete(&plan, &results, |_, _| None),
        Err(StaleStep),
        "twice"
    );
}

#[test]
fn a_cancel_during_a_step_takes_effect_when_it_is_done_and_the_memory_follows() {
    let mut w = world(CONTINUOUS, QueueOrder::Arrival);
    let id = submit(&mut w, 2, 9, 9, 0);
    w.begin();
    w.cancel(id);
    assert!(!w.ended.contains_key(&id), "its row is being computed");
    w.finish(None);
    assert!(w.begin(), "a step that only gives memory back");
    assert_eq!(w.ended[&id].0, Outcome::Cancelled);
    assert!(w.engine.plan.rows.is_empty());
    w.finish(None);
    assert_eq!(w.engine.pool.usage().blocks_free, POOL_BLOCKS);
}

#[test]
fn logic_imports_nothing_that_acts() {
    fn rust_files(dir: &std::path::Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                rust_files(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs")
                && !path.to_string_lossy().ends_with("_tests.rs")
            {
                out.push(path);
            }
        }
    }
    let mut files = Vec::new();
    rust_files(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/logic"),
        &mut files,
    );
    assert!(files.len() > 10, "the folder has moved");
    let forbidden = [
        "actix",
        "tokio",
        "llama_cpp",
        "std::env",
        "Instant::now",
        "SystemTime",
        "prometheus",
        "rand::",
        "RandomState",
        "HashMap",
        "crate::actors",
        "crate::http",
        "crate::telemetry",
    ];
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
            for word in forbidden {
                assert!(!line.contains(word), "{}: {word}: {line}", file.display());
            }
        }
    }
}
