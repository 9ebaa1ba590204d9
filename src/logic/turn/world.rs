//! An engine of logic alone, for tests: the turn with its wait queue, books and cache, driven by calls, and a
//! memory of cells as llama.cpp has them, on which every step is carried out and every read is checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{RequestId, SeqId, TokenId};
use crate::logic::kv::KvPool;
use crate::logic::prefix::{EvictionOrder, PrefixCache, Want};
use crate::logic::request::{FinishReason, Outcome, RequestSpec, Terms};
use crate::logic::scheduler::policy::Policy;
use crate::logic::scheduler::step::{MemoryOp, RowResult, StepPlan, Work};
use crate::logic::scheduler::{Scheduler, Sequence, StepLimits};
use crate::logic::time::Timestamp;
use crate::logic::turn::engine::Engine;
use crate::logic::turn::{Payload, Turn};
use crate::logic::wait_queue::{QueueOrder, WaitQueue};

/// A request's prompt and reply; it ends by itself after `says` tokens.
#[derive(Debug)]
pub struct Talk {
    pub prompt: Arc<[TokenId]>,
    pub generated: Vec<TokenId>,
    pub says: u32,
    pub abandoned: bool,
    pub cached: Option<u32>,
}

impl Payload for Talk {
    fn context(&self) -> Arc<[TokenId]> {
        self.prompt.iter().chain(&self.generated).copied().collect()
    }

    fn generated(&self) -> u32 {
        self.generated.len() as u32
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    fn cacheable(&self) -> bool {
        true
    }

    fn started(&mut self, cached: u32) {
        self.cached.get_or_insert(cached);
    }
}

/// The token that follows `context`: whoever reads another's cells says something else.
pub fn next_token(context: &[TokenId]) -> TokenId {
    let mix = |h: u64, t: &TokenId| {
        (h ^ t.0 as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(23)
    };
    TokenId((context.iter().fold(7, mix) >> 40) as i32)
}

pub struct World {
    pub engine: Engine<Talk>,
    pub now: Timestamp,
    next_id: u64,
    /// How each request ended, and what it said; its absence means that it has not.
    pub ended: BTreeMap<RequestId, (Outcome, Vec<TokenId>)>,
    pub prompts: BTreeMap<RequestId, Arc<[TokenId]>>,
    pub started: Vec<RequestId>,
    pub steps: u32,
    /// Steps that only gave memory back.
    pub memory_only: u64,
    /// Steps that followed another without a turn.
    pub followed: u64,
    /// The step in flight is one of them.
    follows: bool,
    /// The step that could have followed the last one, where a turn was made instead.
    expected: Option<StepPlan>,
    /// The cells of each sequence, and what is in each cell.
    cells: BTreeMap<SeqId, Vec<usize>>,
    contents: Vec<TokenId>,
    /// All that there are; `None` where sequences have cells of their own.
    cells_total: Option<usize>,
}

impl World {
    pub fn new(policy: Policy, order: QueueOrder, pool: KvPool, caching: bool) -> Self {
        let usage = pool.usage();
        let shared = pool.sequence_tokens_max() == usage.blocks_total * 16;
        Self {
            engine: Engine::new(
                Turn::new(
                    Scheduler::new(
                        policy,
                        StepLimits {
                            prefill_budget: 5,
                            n_batch: 9,
                            lane_slowdown: 0.1,
                        },
                    ),
                    caching,
                ),
                WaitQueue::new(order, 100),
                pool,
                PrefixCache::new(EvictionOrder::Lru),
                true,
            ),
            now: Timestamp(0),
            next_id: 0,
            ended: BTreeMap::new(),
            prompts: BTreeMap::new(),
            started: Vec::new(),
            steps: 0,
            memory_only: 0,
            followed: 0,
            follows: false,
            expected: None,
            cells: BTreeMap::new(),
            contents: Vec::new(),
            cells_total: shared.then_some(usage.blocks_total as usize * 16),
        }
    }

    pub fn submit(
        &mut self,
        prompt: &[i32],
        says: u32,
        max_tokens: u32,
        deadline: u64,
    ) -> RequestId {
        self.submit_on(Terms::default(), prompt, says, max_tokens, deadline)
    }

    pub fn submit_on(
        &mut self,
        terms: Terms,
        prompt: &[i32],
        says: u32,
        max_tokens: u32,
        deadline: u64,
    ) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let prompt: Arc<[TokenId]> = prompt.iter().map(|t| TokenId(*t)).collect();
        let spec = RequestSpec {
            id,
            arrival: self.now,
            deadline: Timestamp(deadline),
            prompt_tokens: prompt.len() as u32,
            max_tokens,
            preempted: false,
            terms,
        };
        self.prompts.insert(id, Arc::clone(&prompt));
        let talk = Talk {
            prompt,
            generated: Vec::new(),
            says,
            abandoned: false,
            cached: None,
        };
        assert!(self.engine.queue.push(spec, talk).is_ok());
        id
    }

    pub fn cancel(&mut self, id: RequestId) {
        if let Some((_, talk)) = self.engine.queue.remove(id) {
            self.end(id, Outcome::Cancelled, talk.generated);
        } else {
            self.engine.turn.cancel(id);
        }
    }

    fn end(&mut self, id: RequestId, outcome: Outcome, said: Vec<TokenId>) {
        let before = self.ended.insert(id, (outcome, said));
        assert_eq!(before, None, "{id} ended twice");
    }

    /// Up to the sending of a step; false when there is nothing to do.
    pub fn begin(&mut self) -> bool {
        if std::mem::take(&mut self.follows) {
            return true;
        }
        let (turn, queue) = (&self.engine.turn, &self.engine.queue);
        let undisturbed = !turn.is_due() && (queue.is_empty() || !turn.has_room());
        let expected = self.expected.take().filter(|_| undisturbed);
        let mut ended = Vec::new();
        // A token takes a microsecond.
        let step_us = self.engine.plan.tokens().max(1).into();
        self.engine.turn(self.now, step_us, |spec, outcome, talk| {
            ended.push((spec.id, outcome, talk.generated));
        });
        for (id, outcome, said) in ended {
            self.end(id, outcome, said);
        }
        for s in self.engine.turn.scheduler().running() {
            if !self.started.contains(&s.spec.id) {
                self.started.push(s.spec.id);
            }
        }
        let plan = &self.engine.plan;
        if let Some(expected) = expected {
            assert_eq!(*plan, expected, "a turn would have planned the same");
        }
        self.memory_only += u64::from(plan.rows.is_empty() && !plan.ops.is_empty());
        !plan.is_empty()
    }

    fn write(&mut self, seq: SeqId, token: TokenId) {
        self.contents.push(token);
        self.cells
            .entry(seq)
            .or_default()
            .push(self.contents.len() - 1);
    }

    fn read(&self, seq: SeqId) -> Vec<TokenId> {
        let cells = self.cells.get(&seq).map_or(&[][..], Vec::as_slice);
        cells.iter().map(|c| self.contents[*c]).collect()
    }

    /// Carries the step's operations on memory out.
    fn remember(&mut self) {
        for op in self.engine.plan.ops.clone() {
            match op {
                MemoryOp::Copy { from, to, tokens } => {
                    let cells = self.cells[&from][..tokens as usize].to_vec();
                    let before = self.cells.insert(to, cells);
                    assert!(before.is_none_or(|b| b.is_empty()), "{to:?} is not empty");
                }
                MemoryOp::Remove { seq, from } => {
                    if let Some(cells) = self.cells.get_mut(&seq) {
                        cells.truncate(from as usize);
                    }
                }
            }
        }
    }

    fn assert_room(&self) {
        let Some(total) = self.cells_total else {
            return;
        };
        let mut used: Vec<usize> = self.cells.values().flatten().copied().collect();
        used.sort_unstable();
        used.dedup();
        assert!(used.len() <= total, "{} cells of {total}", used.len());
    }

    /// The step's results: row `fails` fails, the others do what they shall.
    pub fn finish(&mut self, fails: Option<usize>) {
        self.remember();
        let mut results = Vec::new();
        for (i, row) in self.engine.plan.rows.clone().into_iter().enumerate() {
            let running = &self.engine.turn.scheduler().running()[row.index];
            let (context, prompt_tokens) = (running.payload.context(), running.spec.prompt_tokens);
            let at = row.work.position() as usize;
            assert_eq!(self.read(row.seq), context[..at], "{}'s cells", row.request);
            if fails == Some(i) {
                results.push(RowResult::Failed(-1));
                continue;
            }
            let tokens = match row.work {
                Work::Prefill { len, .. } => context[at..at + len as usize].to_vec(),
                Work::Decode { token, .. } => vec![token],
            };
            for token in tokens {
                self.write(row.seq, token);
            }
            results.push(match row.work.samples() {
                None => RowResult::Advanced,
                Some(index) => {
                    // Who was cancelled has not heard the last token.
                    let heard = index == context.len() as u32 - prompt_tokens;
                    assert!(heard || self.engine.turn.is_due());
                    RowResult::Sampled(next_token(&self.read(row.seq)))
                }
            });
        }
        self.assert_room();
        let deliver = |s: &mut Sequence<Talk>, token: TokenId| {
            s.payload.generated.push(token);
            (s.num_generated >= s.payload.says).then_some(Outcome::Finished(FinishReason::Stop))
        };
        // The runner decides before the results are taken in, and is interrupted by what was due before.
        let uninterrupted = !self.engine.turn.is_due();
        self.engine
            .turn
            .complete(&self.engine.plan, &results, deliver)
            .unwrap();
        self.steps += 1;
        if uninterrupted && !self.steps.is_multiple_of(3) {
            self.follows = self.engine.follow(&results);
            self.followed += u64::from(self.follows);
        } else {
            let mut next = StepPlan::default();
            let may = self.engine.plan.follow(&results, &mut next);
            self.expected = may.then_some(next);
        }
        self.now = self.now + Duration::from_micros(1);
    }

    pub fn step(&mut self) -> bool {
        let ran = self.begin();
        if ran {
            self.finish(None);
        }
        ran
    }

    /// Whether a running request has some of its prompt to compute.
    pub fn prefills(&self, id: RequestId) -> bool {
        let mut running = self.engine.turn.scheduler().running().iter();
        running.any(|s| s.spec.id == id && s.prefilling())
    }

    pub fn run_dry(&mut self) {
        // Far more steps than all requests together could need one after another.
        for _ in 0..20_000 {
            if !self.step() && self.engine.queue.is_empty() {
                assert_eq!(self.engine.turn.deferred(), 0, "nobody is forgotten");
                return;
            }
            self.now = self.now + Duration::from_micros(1);
        }
        panic!(
            "work is left that nothing advances: {} wait",
            self.engine.queue.len()
        );
    }

    /// Everything that finished said what it would have said alone.
    pub fn assert_texts(&self) {
        for (id, (_, said)) in &self.ended {
            let mut context = self.prompts[id].to_vec();
            for token in said {
                assert_eq!(*token, next_token(&context), "{id}");
                context.push(*token);
            }
        }
    }

    /// All memory is free or cached, and emptying the cache frees the rest.
    pub fn assert_nothing_leaked(&mut self) {
        assert!(self.engine.is_empty());
        let leaves = self.engine.tree.usage().leaves;
        assert_eq!(leaves, self.engine.pool.usage().sequences_cached);
        let mut evicted = Vec::new();
        let all = Want {
            blocks: u32::MAX,
            sequences: u32::MAX,
        };
        self.engine.tree.evict(all, &mut evicted);
        for e in evicted.iter().filter(|e| e.keep_tokens == 0) {
            assert!(self.engine.pool.retire(e.seq));
            assert!(self.engine.pool.reusable(e.seq));
        }
        let usage = self.engine.pool.usage();
        assert_eq!(
            (usage.blocks_free, usage.sequences_free),
            (usage.blocks_total, usage.sequences_total)
        );
    }
}
