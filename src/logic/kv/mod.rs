//! Accounting of the KV pool and of the sequence ids that name its cells.
//!
//! The pool is counted in blocks of [`BLOCK_TOKENS`] cells. Every sequence reserves all that it can come to
//! need (prompt + `max_tokens`) before it starts, so that nothing that runs can ever die for want of memory.
//! The scheduler releases an id only after the step that carried its removal to llama.cpp has been done, so
//! what is called free here is free there.
//!
//! Reserve and release are O(1) for each sequence, without allocation.

use crate::ids::SeqId;

/// Cells in a block.
pub const BLOCK_TOKENS: u32 = 16;

/// Blocks that hold `cells` cells.
#[must_use]
pub fn blocks_for(cells: u32) -> u32 {
    cells.div_ceil(BLOCK_TOKENS)
}

/// A sequence id with the blocks reserved for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub seq: SeqId,
    pub blocks: u32,
}

/// How much of the pool is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvUsage {
    pub blocks_total: u32,
    pub blocks_free: u32,
    pub sequences_total: u32,
    pub sequences_free: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct KvPool {
    /// Blocks that each id in use holds; `None` is a free id.
    held: Vec<Option<u32>>,
    /// Ids that are free, last in first out: the one used last is the one whose memory is warm.
    free: Vec<SeqId>,
    blocks_total: u32,
    blocks_free: u32,
}

impl KvPool {
    /// A pool of `cells` cells (whole blocks of it) and `sequences` ids, all free.
    #[must_use]
    pub fn new(cells: u32, sequences: u32) -> Self {
        let blocks = cells / BLOCK_TOKENS;
        Self {
            held: vec![None; sequences as usize],
            free: (0..sequences).rev().map(SeqId).collect(),
            blocks_total: blocks,
            blocks_free: blocks,
        }
    }

    /// Reserves an id with `blocks` blocks, or nothing.
    pub fn reserve(&mut self, blocks: u32) -> Option<Lease> {
        if blocks > self.blocks_free {
            return None;
        }
        let seq = self.free.pop()?;
        self.blocks_free -= blocks;
        self.held[seq.0 as usize] = Some(blocks);
        Some(Lease { seq, blocks })
    }

    /// Gives an id back whose cells are gone from llama.cpp. False for an id that is not in use.
    pub fn release(&mut self, seq: SeqId) -> bool {
        let Some(blocks) = self.held.get_mut(seq.0 as usize).and_then(Option::take) else {
            return false;
        };
        self.blocks_free += blocks;
        self.free.push(seq);
        true
    }

    /// How much is free.
    #[must_use]
    pub fn usage(&self) -> KvUsage {
        KvUsage {
            blocks_total: self.blocks_total,
            blocks_free: self.blocks_free,
            sequences_total: self.held.len() as u32,
            sequences_free: self.free.len() as u32,
        }
    }

    /// Invariant: every block is free or held once, and the free list is the ids that hold nothing.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn assert_conserved(&self) {
        let held: u32 = self.held.iter().flatten().sum();
        assert_eq!(
            held + self.blocks_free,
            self.blocks_total,
            "a block leaked or is counted twice"
        );
        let free = self.held.iter().filter(|h| h.is_none()).count();
        assert_eq!(free, self.free.len(), "a sequence id leaked");
        assert!(
            self.free.iter().all(|s| self.held[s.0 as usize].is_none()),
            "a sequence id in use is on the free list"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_and_its_blocks_come_back_once() {
        let mut p = KvPool::new(64, 1);
        let a = p.reserve(2).unwrap();
        assert_eq!(p.reserve(1), None, "no id left");
        assert!(p.release(a.seq));
        assert!(!p.release(a.seq), "not twice");
        assert_eq!(p.reserve(5), None, "more than the pool");
        assert_eq!(
            p.reserve(4),
            Some(Lease {
                seq: a.seq,
                blocks: 4
            })
        );
    }

    proptest! {
        #[test]
        fn nothing_leaks(ops in prop::collection::vec((any::<bool>(), 0u32..4), 0..80)) {
            let mut p = KvPool::new(6 * BLOCK_TOKENS, 3);
            for (reserve, x) in ops {
                if reserve { p.reserve(x); } else { p.release(SeqId(x)); }
                p.assert_conserved();
            }
            for s in 0..3 { p.release(SeqId(s)); }
            prop_assert_eq!(p.usage(), KvPool::new(6 * BLOCK_TOKENS, 3).usage());
        }
    }
}
