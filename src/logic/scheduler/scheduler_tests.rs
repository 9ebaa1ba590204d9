//! The scheduler with the wait queue and the pool around it, driven synchronously as the actors drive them.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::invariants::assert_plan;
use super::*;
use crate::logic::kv::{KvPool, blocks_for};
use crate::logic::time::Timestamp;
use crate::logic::wait_queue::{QueueOrder, WaitQueue};

/// What the actors do between them, in one place and without messages. The payload of a request is how many
/// tokens it says before it ends by itself.
struct World {
    queue: WaitQueue<u32>,
    pool: KvPool,
    scheduler: Scheduler<u32>,
    plan: StepPlan,
    now: Timestamp,
    next_id: u64,
    /// How each request ended; its absence means that it has not.
    ended: BTreeMap<RequestId, Outcome>,
    started: Vec<RequestId>,
    steps: u32,
}

const POOL_BLOCKS: u32 = 6;

impl World {
    fn new(policy: Policy, order: QueueOrder) -> Self {
        let sequences = 2 * policy.max_running() as u32;
        Self {
            queue: WaitQueue::new(order, 100),
            pool: KvPool::new(POOL_BLOCKS * 16, sequences),
            scheduler: Scheduler::new(
                policy,
                StepLimits {
                    prefill_budget: 5,
                    n_batch: 9,
                },
            ),
            plan: StepPlan::default(),
            now: Timestamp(0),
            next_id: 0,
            ended: BTreeMap::new(),
            started: Vec::new(),
            steps: 0,
        }
    }

    fn submit(
        &mut self,
        prompt_tokens: u32,
        says: u32,
        max_tokens: u32,
        deadline: u64,
    ) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let spec = RequestSpec {
            id,
            arrival: self.now,
            deadline: Timestamp(deadline),
            prompt_tokens,
            max_tokens,
        };
        self.queue.push(spec, says).unwrap();
        id
    }

    fn cancel(&mut self, id: RequestId) {
        if self.queue.remove(id).is_some() {
            self.end(id, Outcome::Cancelled);
        } else {
            self.scheduler.end(id, Outcome::Cancelled);
        }
    }

    fn end(&mut self, id: RequestId, outcome: Outcome) {
        assert_eq!(self.ended.insert(id, outcome), None, "{id} ended twice");
    }

    fn sweep(&mut self) {
        let mut left = Vec::new();
        self.scheduler.sweep(&mut left);
        for (s, outcome) in left {
            self.end(s.spec.id, outcome);
        }
    }

    /// Up to the sending of a step; false when there is nothing to do.
    fn begin(&mut self) -> bool {
        self.sweep();
        if let Some(rule) = self.scheduler.take_rule() {
            let (n, _) = self.queue.ready(rule, self.now);
            for _ in 0..n {
                let Some((spec, says)) = self.queue.pop() else {
                    break;
                };
                match self.pool.reserve(blocks_for(spec.cells_max())) {
                    Some(lease) => {
                        self.started.push(spec.id);
                        self.scheduler.admit(spec, lease, 0, says);
                    }
                    None => {
                        self.queue.put_back(spec, says);
                        break;
                    }
                }
            }
        }
        self.scheduler.plan(&mut self.plan);
        assert_plan(&self.scheduler, &self.plan);
        !self.plan.is_empty()
    }

    /// The step's results: row `fails` fails, the others do what they shall.
    fn finish(&mut self, fails: Option<usize>) {
        let results: Vec<RowResult> = self
            .plan
            .rows
            .iter()
            .enumerate()
            .map(|(i, row)| match row.work.samples() {
                _ if fails == Some(i) => RowResult::Failed(-1),
                None => RowResult::Advanced,
                Some(index) => RowResult::Sampled(TokenId(index as i32)),
            })
            .collect();
        let deliver = |s: &mut Sequence<u32>, token: TokenId| {
            assert_eq!(token.0 as u32 + 1, s.num_generated, "tokens come in order");
            (s.num_generated >= s.payload).then_some(Outcome::Finished(FinishReason::Stop))
        };
        self.scheduler
            .complete(&self.plan, &results, deliver)
            .unwrap();
        for seq in &self.plan.removals {
            assert!(self.pool.release(*seq), "{seq:?} released twice");
        }
        self.pool.assert_conserved();
        self.steps += 1;
        self.now = self.now + Duration::from_micros(1);
    }

    fn step(&mut self) -> bool {
        let ran = self.begin();
        if ran {
            self.finish(None);
        }
        ran
    }

    fn run_dry(&mut self) {
        // Far more steps than all requests together could need one after another.
        for _ in 0..10_000 {
            if !self.step() && self.queue.is_empty() {
                self.sweep();
                return;
            }
            self.now = self.now + Duration::from_micros(1);
        }
        panic!(
            "work is left that nothing advances: {} wait",
            self.queue.len()
        );
    }
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
        let mut w = World::new(policy, order);
        let mut expected = BTreeMap::new();
        for (op, x, says, max_tokens) in ops {
            match op {
                0..=2 => {
                    let id = w.submit(1 + x, says, max_tokens, u64::from(x));
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
                            w.cancel(RequestId(u64::from(x)));
                        }
                        w.finish(Some(fails).filter(|_| says == 1));
                    }
                }
                _ => w.cancel(RequestId(u64::from(x))),
            }
        }
        w.run_dry();
        prop_assert_eq!(w.ended.len(), expected.len());
        for (id, outcome) in &w.ended {
            prop_assert!(
                *outcome == expected[id] || matches!(outcome, Outcome::Cancelled | Outcome::Failed),
                "{} ended as {:?} instead of {:?}", id, outcome, expected[id]
            );
        }
        prop_assert_eq!(w.pool.usage(), KvPool::new(POOL_BLOCKS * 16, 2 * policy.max_running() as u32).usage());
    }
}

const CONTINUOUS: Policy = Policy::Continuous {
    max_running: 3,
    order: StepOrder::DecodeFirst,
};

#[test]
fn replies_advance_beside_a_long_prefill() {
    let mut w = World::new(CONTINUOUS, QueueOrder::Arrival);
    w.submit(2, 9, 9, 0);
    w.step();
    let long = w.submit(20, 1, 1, 0);
    for _ in 0..4 {
        w.begin();
        let kinds: Vec<bool> = w
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
    w.sweep();
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
    let mut w = World::new(policy, QueueOrder::Arrival);
    w.submit(2, 9, 9, 0);
    w.step();
    w.submit(7, 1, 1, 0);
    w.begin();
    assert!(
        w.plan
            .rows
            .iter()
            .all(|r| matches!(r.work, Work::Prefill { .. }))
    );
    w.finish(None);
}

#[test]
fn a_freed_seat_is_taken_in_the_very_next_step() {
    let mut w = World::new(Policy::Fifo, QueueOrder::Arrival);
    let first = w.submit(2, 1, 4, 0);
    let second = w.submit(2, 1, 4, 0);
    w.step();
    w.begin();
    assert_eq!(
        w.ended.get(&first),
        Some(&Outcome::Finished(FinishReason::Stop))
    );
    assert_eq!(
        w.plan.removals.len(),
        1,
        "the first one's cells go back in this step"
    );
    assert_eq!(w.plan.rows.len(), 1, "and the second one runs in it");
    assert_eq!(w.plan.rows[0].request, second);
    assert_ne!(
        w.plan.rows[0].seq, w.plan.removals[0],
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
    let mut w = World::new(policy, QueueOrder::Deadline);
    let running = w.submit(1, 2, 2, 50);
    w.step();
    let relaxed = w.submit(1, 1, 1, 90);
    let urgent = w.submit(1, 1, 1, 60);
    w.run_dry();
    assert_eq!(w.started, [running, urgent, relaxed]);
}

#[test]
fn results_of_another_step_change_nothing() {
    let mut w = World::new(CONTINUOUS, QueueOrder::Arrival);
    w.submit(2, 5, 5, 0);
    w.begin();
    let mut stale = w.plan.clone();
    stale.id = stale.id.next();
    let results = vec![RowResult::Sampled(TokenId(0)); stale.rows.len()];
    assert_eq!(
        w.scheduler.complete(&stale, &results, |_, _| None),
        Err(StaleStep)
    );
    assert!(w.scheduler.in_flight());
    w.finish(None);
    let plan = w.plan.clone();
    assert_eq!(
        w.scheduler.complete(&plan, &results, |_, _| None),
        Err(StaleStep),
        "twice"
    );
}

#[test]
fn a_cancel_during_a_step_takes_effect_when_it_is_done_and_the_memory_follows() {
    let mut w = World::new(CONTINUOUS, QueueOrder::Arrival);
    let id = w.submit(2, 9, 9, 0);
    w.begin();
    w.cancel(id);
    w.sweep();
    assert!(!w.ended.contains_key(&id), "its row is being computed");
    w.finish(None);
    assert!(w.begin(), "a step that only gives memory back");
    assert_eq!(w.ended[&id], Outcome::Cancelled);
    assert!(w.plan.rows.is_empty());
    w.finish(None);
    assert_eq!(w.pool.usage().blocks_free, POOL_BLOCKS);
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
