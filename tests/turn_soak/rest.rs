//! What must be true when nothing runs.

use cadenced::logic::scheduler::step::MemoryOp;

use crate::Soak;

impl Soak {
    /// All memory is free or cached, and nobody is forgotten.
    pub fn assert_at_rest(&mut self) {
        let (driver, ends) = (&mut self.driver, &mut self.ends);
        driver.carry_out(&mut |id, outcome, talk| ends.take(id, outcome, &talk));
        assert!(
            self.ends.ended.iter().rev().take(100).all(|e| *e),
            "one is forgotten"
        );
        assert_eq!(
            (
                driver.turn.deferred(),
                driver.turn.scheduler().running().len()
            ),
            (0, 0)
        );
        let (kv, prefixes) = (driver.pool.usage(), driver.tree.usage());
        assert_eq!(kv.blocks_free + kv.blocks_cached, kv.blocks_total, "{kv:?}");
        assert_eq!(
            kv.sequences_free + kv.sequences_cached,
            kv.sequences_total,
            "{kv:?}"
        );
        assert_eq!(
            (prefixes.leaves, prefixes.tokens_locked),
            (kv.sequences_cached, 0)
        );
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
        for seq in self.driver.tree.clear() {
            self.memory.carry_out(MemoryOp::Remove { seq, from: 0 });
            assert!(self.driver.pool.retire(seq) && self.driver.pool.reusable(seq));
        }
        let kv = self.driver.pool.usage();
        assert_eq!(
            (kv.blocks_free, kv.sequences_free, self.memory.used()),
            (kv.blocks_total, kv.sequences_total, 0)
        );
        assert!(self.ends.ended.iter().all(|e| *e), "one is forgotten");
    }
}
