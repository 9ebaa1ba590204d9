//! A pool, the cells that it keeps the books of, and what a scheduler and a prefix cache would do with them.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::super::super::block_pool::BlockId;
use super::super::*;
use super::cells::Cells;

/// A request that runs, and the prefix that it locks; none when the sequence that it came from has left.
#[derive(Clone, Copy)]
pub struct Request {
    pub seq: SeqId,
    pub demand: Demand,
    /// The block within which its prefix ended, and of which it has a copy.
    pub left: Option<BlockId>,
}

/// How often the run came where it should.
#[derive(Default)]
pub struct Reached {
    pub cases: Cell<u64>,
    pub operations: Cell<u64>,
    pub admitted: Cell<u64>,
    pub hits: Cell<u64>,
    pub hits_on_running: Cell<u64>,
    pub sources_left: Cell<u64>,
    pub evicted_for_admission: Cell<u64>,
    pub exhausted: Cell<u64>,
    pub no_id: Cell<u64>,
    pub truncated: Cell<u64>,
    pub copies: Cell<u64>,
    pub grown_after_evicting: Cell<u64>,
    pub promised_after_evicting: Cell<u64>,
    pub preempted: Cell<u64>,
}

pub fn hit(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// The pool, the cells, and what a scheduler and a prefix cache know.
pub struct World<'a> {
    pub pool: KvPool,
    pub cells: Cells,
    /// In order of admission.
    pub running: Vec<Request>,
    /// In order of eviction.
    pub cached: Vec<SeqId>,
    pub retiring: Vec<SeqId>,
    pub reached: &'a Reached,
}

impl<'a> World<'a> {
    pub fn new(pool: KvPool, sequences: u32, reached: &'a Reached) -> Self {
        let cells = pool.usage().blocks_total * BLOCK_TOKENS;
        let slab = (pool.layout == Layout::Streams).then(|| pool.sequence_tokens_max());
        let cells = Cells {
            tags: vec![BTreeSet::new(); cells as usize],
            at: vec![Vec::new(); sequences as usize],
            slab,
        };
        let (running, cached, retiring) = Default::default();
        Self {
            pool,
            cells,
            running,
            cached,
            retiring,
            reached,
        }
    }

    pub fn blocks(&self, seq: SeqId) -> &[BlockId] {
        self.pool.tables[seq.0 as usize].blocks()
    }

    pub fn shares_blocks(&self) -> bool {
        self.cells.slab.is_none()
    }

    pub fn admit(&mut self, mut demand: Demand) {
        if !self.pool.shares() {
            demand.prefix = None;
        }
        let target = self.tokens_at_admission(&demand);
        let (before, has_room) = (self.pool.usage(), self.has_room(&demand, target));
        let admitted = self.pool.admit(&demand).or_else(|s| {
            assert_eq!(self.pool.usage(), before, "a refusal changes nothing");
            let prefixes = demand.prefix.filter(|p| self.cached.contains(&p.seq));
            let prefixes = usize::from(prefixes.is_some());
            let has_id = before.sequences_free > 0
                || !self.retiring.is_empty()
                || self.cached.len() > prefixes;
            assert_eq!(s.attainable, has_room && has_id, "{demand:?}: {s:?}");
            if !s.attainable {
                hit(&self.reached.exhausted);
                return Err(s);
            }
            if before.sequences_free == 0 {
                hit(&self.reached.no_id);
                assert_eq!(s.sequences, u32::from(self.retiring.is_empty()));
            } else {
                assert!(s.blocks > 0, "nothing is missing");
            }
            // A request locks its prefix before it is admitted.
            self.running.push(Request {
                seq: SeqId(u32::MAX),
                demand,
                left: None,
            });
            let enough = self.evict(s.blocks, s.sequences);
            self.running.pop();
            self.step_done();
            if !enough {
                // Every id may be locked; blocks that can be evicted never are.
                assert!(s.sequences > 0);
                return Err(s);
            }
            hit(&self.reached.evicted_for_admission);
            Ok(self.pool.admit(&demand).expect("enough was evicted"))
        });
        let Ok(lease) = admitted else { return };
        assert!(has_room, "{demand:?} was let in");
        assert_eq!(lease.blocks, blocks_for(target));
        assert_eq!(self.cells.tokens(lease.seq), 0);
        hit(&self.reached.admitted);
        let mut left = None;
        if let Some(p) = demand.prefix {
            hit(&self.reached.hits);
            if self.running.iter().any(|r| r.seq == p.seq) {
                hit(&self.reached.hits_on_running);
            }
            self.cells.seq_cp(p.seq, lease.seq, p.tokens);
            if self.shares_blocks() && !p.tokens.is_multiple_of(BLOCK_TOKENS) {
                left = Some(self.blocks(p.seq)[(p.tokens / BLOCK_TOKENS) as usize]);
            }
        }
        self.running.push(Request {
            seq: lease.seq,
            demand,
            left,
        });
    }

    /// Grows a request, evicting and preempting as a scheduler would. False if it was preempted itself.
    pub fn grow(&mut self, index: usize, by: u32) -> bool {
        let Request { seq, demand, .. } = self.running[index];
        let tokens = self.cells.tokens(seq);
        let end = if tokens < demand.prompt_tokens {
            demand.prompt_tokens
        } else {
            demand.total_max
        };
        let total = (tokens + by).min(end);
        let promised = self.pool.reservation.promises_growth();
        loop {
            let before = self.pool.usage();
            let needed = self.pool.tables[seq.0 as usize].blocks_needed(total, &self.pool.blocks);
            let Err(s) = self.pool.grow(seq, total) else {
                let taken = before.blocks_free - self.pool.usage().blocks_free;
                assert_eq!(taken, needed, "blocks_needed is exact");
                break;
            };
            assert_eq!(self.pool.usage(), before, "a refusal changes nothing");
            assert!(s.blocks > 0);
            if s.attainable {
                assert!(self.evict(s.blocks, 0), "what is evictable can be evicted");
                hit(&self.reached.grown_after_evicting);
                if promised {
                    hit(&self.reached.promised_after_evicting);
                }
                self.pool.grow(seq, total).expect("enough was evicted");
                break;
            }
            assert!(!promised, "a promise was broken");
            assert!(self.running.len() > 1, "the last one always can finish");
            hit(&self.reached.preempted);
            let youngest = self.running.pop().unwrap();
            self.retire(youngest.seq);
            if youngest.seq == seq {
                return false;
            }
        }
        for _ in tokens..total {
            self.cells.append(seq);
        }
        true
    }

    /// Frees at least so much, or all that the locks allow; whether it was enough.
    pub fn evict(&mut self, blocks: u32, sequences: u32) -> bool {
        let (free, retiring) = (self.pool.usage().blocks_free, self.retiring.len() as u32);
        for seq in self.cached.clone() {
            if self.pool.usage().blocks_free >= free.saturating_add(blocks)
                && self.retiring.len() as u32 >= retiring.saturating_add(sequences)
            {
                return true;
            }
            let locked = self.locked_blocks(seq) * BLOCK_TOKENS;
            let prefix_of_newcomer = self.running.last().is_some_and(|r| {
                r.seq == SeqId(u32::MAX) && r.demand.prefix.is_some_and(|p| p.seq == seq)
            });
            if locked > 0 {
                self.truncate(seq, locked);
            } else if !prefix_of_newcomer {
                self.cached.retain(|s| *s != seq);
                self.retire(seq);
            }
        }
        self.pool.usage().blocks_free >= free.saturating_add(blocks)
            && self.retiring.len() as u32 >= retiring.saturating_add(sequences)
    }

    pub fn truncate(&mut self, seq: SeqId, tokens: u32) {
        if tokens < self.cells.tokens(seq) {
            hit(&self.reached.truncated);
        }
        assert!(self.pool.truncate(seq, tokens));
        self.cells.seq_rm(seq, tokens);
    }

    pub fn retire(&mut self, seq: SeqId) {
        assert!(self.pool.retire(seq));
        assert!(!self.pool.retire(seq), "not twice");
        self.cells.seq_rm(seq, 0);
        self.retiring.push(seq);
        // Their prefix goes on under another name, or under none: their cells are theirs.
        for r in &mut self.running {
            if r.demand.prefix.is_some_and(|p| p.seq == seq) {
                r.demand.prefix = None;
                hit(&self.reached.sources_left);
            }
        }
    }

    pub fn step_done(&mut self) {
        for seq in self.retiring.drain(..) {
            assert!(self.pool.reusable(seq));
            assert!(!self.pool.reusable(seq), "not twice");
        }
    }
}
