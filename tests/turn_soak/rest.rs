//! What must be true when nothing runs.

use cadenced::logic::prefix::Want;
use cadenced::logic::scheduler::step::MemoryOp;

use crate::Soak;

impl Soak {
    /// All memory is free or cached, and nobody is forgotten.
    pub fn assert_at_rest(&mut self) {
        assert!(
            self.ends.ended.iter().rev().take(100).all(|e| *e),
            "one is forgotten"
        );
        let engine = &self.driver.engine;
        let (kv, prefixes) = (engine.pool.usage(), engine.tree.usage());
        assert!(engine.is_empty(), "{kv:?} {prefixes:?}");
        assert_eq!(prefixes.leaves, kv.sequences_cached);
        let held = self
            .memory
            .sequences
            .iter()
            .filter(|cells| !cells.is_empty());
        assert_eq!(
            held.count() as u32,
            kv.sequences_cached,
            "cells without an owner"
        );
        assert!(
            self.memory.used() <= kv.blocks_cached as usize * 16,
            "{kv:?}"
        );
    }

    /// Empties the cache: all memory is free then.
    pub fn assert_nothing_leaked(&mut self) {
        let mut evicted = Vec::new();
        let all = Want {
            blocks: u32::MAX,
            sequences: u32::MAX,
        };
        self.driver.engine.tree.evict(all, &mut evicted);
        for e in evicted.iter().filter(|e| e.keep_tokens == 0) {
            let (seq, from) = (e.seq, 0);
            self.memory.carry_out(MemoryOp::Remove { seq, from });
            assert!(self.driver.engine.pool.retire(seq) && self.driver.engine.pool.reusable(seq));
        }
        let kv = self.driver.engine.pool.usage();
        assert_eq!(
            (kv.blocks_free, kv.sequences_free, self.memory.used()),
            (kv.blocks_total, kv.sequences_total, 0)
        );
        assert!(self.ends.ended.iter().all(|e| *e), "one is forgotten");
    }
}
