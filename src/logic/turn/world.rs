//! An engine of logic alone, for tests: the turn with its wait queue, books and cache, driven by calls, and a
//! memory of cells as llama.cpp has them, on which every step is carried out and every read is checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{RequestId, SeqId, TokenId};
use crate::logic::kv::KvPool;
use crate::logic::prefix::{EvictionOrder, PrefixCache};
use crate::logic::request::{FinishReason, Outcome, RequestSpec};
use crate::logic::scheduler::invariants::assert_plan;
use crate::logic::scheduler::policy::Policy;
use crate::logic::scheduler::step::{MemoryOp, RowResult, StepPlan, Work};
use crate::logic::scheduler::{Scheduler, Sequence, StepLimits};
use crate::logic::time::Timestamp;
use crate::logic::turn::{Ask, Payload, Turn};
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

/// What was seen to happen.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Seen {
    pub hits: u64,
    pub deferred: u64,
    pub preempted: u64,
    pub evicted: u64,
    pub starved: u64,
    pub memory_only: u64,
}

pub struct World {
    pub queue: WaitQueue<Talk>,
    pub pool: KvPool,
    pub tree: PrefixCache,
    pub turn: Turn<Talk>,
    pub plan: StepPlan,
    pub now: Timestamp,
    next_id: u64,
    /// How each request ended, and what it said; its absence means that it has not.
    pub ended: BTreeMap<RequestId, (Outcome, Vec<TokenId>)>,
    pub prompts: BTreeMap<RequestId, Arc<[TokenId]>>,
    pub started: Vec<RequestId>,
    pub steps: u32,
    pub seen: Seen,
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
            queue: WaitQueue::new(order, 100),
            turn: Turn::new(
                Scheduler::new(
                    policy,
                    StepLimits {
                        prefill_budget: 5,
                        n_batch: 9,
                    },
                ),
                caching,
            ),
            tree: PrefixCache::new(EvictionOrder::Lru),
            plan: StepPlan::default(),
            now: Timestamp(0),
            next_id: 0,
            ended: BTreeMap::new(),
            prompts: BTreeMap::new(),
            started: Vec::new(),
            steps: 0,
            seen: Seen::default(),
            cells: BTreeMap::new(),
            contents: Vec::new(),
            cells_total: shared.then_some(usage.blocks_total as usize * 16),
            pool,
        }
    }

    pub fn submit(
        &mut self,
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
        };
        self.prompts.insert(id, Arc::clone(&prompt));
        let talk = Talk {
            prompt,
            generated: Vec::new(),
            says,
            abandoned: false,
            cached: None,
        };
        assert!(self.queue.push(spec, talk).is_ok());
        id
    }

    pub fn cancel(&mut self, id: RequestId) {
        if let Some((_, talk)) = self.queue.remove(id) {
            self.end(id, Outcome::Cancelled, talk.generated);
        } else {
            self.turn.cancel(id);
        }
    }

    fn end(&mut self, id: RequestId, outcome: Outcome, said: Vec<TokenId>) {
        let before = self.ended.insert(id, (outcome, said));
        assert_eq!(before, None, "{id} ended twice");
    }

    fn carry_out(&mut self) {
        let effects = std::mem::take(&mut self.turn.effects);
        for (s, outcome) in effects.ended {
            self.end(s.spec.id, outcome, s.payload.generated);
        }
        for (spec, talk) in effects.abandoned {
            self.end(spec.id, Outcome::Cancelled, talk.generated);
        }
        self.seen.preempted += effects.preempted;
        self.seen.starved += effects.put_back.len() as u64 - effects.preempted;
        for (spec, talk) in effects.put_back {
            self.queue.put_back(spec, talk);
        }
        for node in effects.unlock {
            self.tree.unlock(node).expect("a lock outlived its node");
        }
        for entry in effects.books {
            assert!(
                entry.enter(&mut self.pool),
                "the books disagree with {entry:?}"
            );
        }
        self.pool.assert_conserved();
        self.tree.assert_invariants();
    }

    /// Up to the sending of a step; false when there is nothing to do.
    pub fn begin(&mut self) -> bool {
        let mut ask = self.turn.begin(self.now, 1.0);
        loop {
            self.carry_out();
            ask = match ask {
                Ask::Insert(insertions) => {
                    let tree = &mut self.tree;
                    let answers: Vec<_> = insertions.iter().map(|i| i.into_tree(tree)).collect();
                    self.turn.inserted(&answers)
                }
                Ask::Take(rule) => {
                    let (n, _) = self.queue.ready(rule, self.now);
                    let taken: Vec<_> = (0..n).filter_map(|_| self.queue.pop()).collect();
                    self.started.extend(taken.iter().map(|(s, _)| s.id));
                    self.turn.taken(taken)
                }
                Ask::Match(queries) => {
                    let tree = &mut self.tree;
                    let hits: Vec<_> = queries.iter().map(|q| q.ask(tree)).collect();
                    self.seen.hits += hits.iter().flatten().count() as u64;
                    let ask = self.turn.matched(&hits);
                    self.seen.deferred += self.turn.deferred() as u64;
                    ask
                }
                Ask::Reserve(reserve) => {
                    let reserved = reserve.from(&mut self.pool);
                    self.turn.reserved(&reserved)
                }
                Ask::Evict(want) => {
                    let given = want.from(&mut self.tree);
                    self.seen.evicted += given.evicted.len() as u64;
                    self.turn.evicted(&given)
                }
                Ask::Run => break,
            };
        }
        self.turn.plan(&mut self.plan);
        assert_plan(self.turn.scheduler(), &self.plan);
        self.seen.memory_only += u64::from(self.plan.rows.is_empty() && !self.plan.ops.is_empty());
        !self.plan.is_empty()
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
        for op in self.plan.ops.clone() {
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
        for (i, row) in self.plan.rows.clone().into_iter().enumerate() {
            let running = &self.turn.scheduler().running()[row.index];
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
                    assert_eq!(index, context.len() as u32 - prompt_tokens);
                    RowResult::Sampled(next_token(&self.read(row.seq)))
                }
            });
        }
        self.assert_room();
        let deliver = |s: &mut Sequence<Talk>, token: TokenId| {
            s.payload.generated.push(token);
            (s.num_generated >= s.payload.says).then_some(Outcome::Finished(FinishReason::Stop))
        };
        self.turn.complete(&self.plan, &results, deliver).unwrap();
        self.steps += 1;
        self.now = self.now + Duration::from_micros(1);
    }

    pub fn step(&mut self) -> bool {
        let ran = self.begin();
        if ran {
            self.finish(None);
        }
        ran
    }

    pub fn run_dry(&mut self) {
        // Far more steps than all requests together could need one after another.
        for _ in 0..20_000 {
            if !self.step() && self.queue.is_empty() {
                self.carry_out();
                assert_eq!(self.turn.deferred(), 0, "nobody is forgotten");
                return;
            }
            self.now = self.now + Duration::from_micros(1);
        }
        panic!(
            "work is left that nothing advances: {} wait",
            self.queue.len()
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

    /// All memory is free or cached, and clearing the cache frees the rest.
    pub fn assert_nothing_leaked(&mut self) {
        let usage = self.pool.usage();
        assert_eq!(usage.blocks_free + usage.blocks_cached, usage.blocks_total);
        assert_eq!(
            usage.sequences_free + usage.sequences_cached,
            usage.sequences_total
        );
        let prefixes = self.tree.usage();
        assert_eq!(prefixes.leaves, usage.sequences_cached);
        assert_eq!(prefixes.tokens_locked, 0);
        for seq in self.tree.clear() {
            assert!(self.pool.retire(seq));
            assert!(self.pool.reusable(seq));
        }
        let usage = self.pool.usage();
        assert_eq!(
            (usage.blocks_free, usage.sequences_free),
            (usage.blocks_total, usage.sequences_total)
        );
    }
}
