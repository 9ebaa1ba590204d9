//! Blocks of KV cells: a free list and flat reference counts.
//!
//! Every operation is O(1) for a block and allocates nothing. The free list is last in, first out. Each
//! reference is held for a sequence that runs or for one that is cached; blocks held by cached sequences
//! alone are counted as they become so, since admission asks for their number all the time.

use super::BLOCK_TOKENS;

/// A block of [`BLOCK_TOKENS`] cells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

/// For whom a reference is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    Running,
    Cached,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Block {
    /// References; at most two for each sequence id, of which there are at most 256.
    held: u16,
    /// Those of them that are for running sequences.
    held_running: u16,
    /// Tokens in it, as far as its holders ever filled it.
    filled: u8,
}

impl Block {
    fn evictable(self) -> bool {
        self.held > 0 && self.held_running == 0
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    evictable: u32,
    tokens: u64,
    copies: u64,
}

impl BlockPool {
    /// `total` blocks, all free.
    #[must_use]
    pub fn new(total: u32) -> Self {
        Self {
            blocks: vec![Block::default(); total as usize],
            free: (0..total).rev().map(BlockId).collect(),
            evictable: 0,
            tokens: 0,
            copies: 0,
        }
    }

    /// Takes a free block, with one reference.
    pub fn allocate(&mut self, holder: Holder) -> Option<BlockId> {
        let id = self.free.pop()?;
        self.share(id, holder);
        Some(id)
    }

    /// Adds a reference.
    pub fn share(&mut self, id: BlockId, holder: Holder) {
        self.update(id, |block| {
            block.held += 1;
            block.held_running += u16::from(holder == Holder::Running);
        });
    }

    /// Drops a reference; with the last one the block is free.
    pub fn release(&mut self, id: BlockId, holder: Holder) {
        let left = self.update(id, |block| {
            block.held -= 1;
            block.held_running -= u16::from(holder == Holder::Running);
        });
        if left.held == 0 {
            self.set_filled(id, 0);
            self.free.push(id);
        }
    }

    /// Turns a running sequence's reference into a cached one's.
    pub fn demote(&mut self, id: BlockId) {
        self.update(id, |block| block.held_running -= 1);
    }

    /// Gives a holder that is about to write into a shared block one of its own in its stead. `None`, and
    /// nothing is changed, if none is free.
    pub fn copy_on_write(
        &mut self,
        shared: BlockId,
        tokens: u32,
        holder: Holder,
    ) -> Option<BlockId> {
        let own = self.allocate(holder)?;
        self.fill(own, tokens);
        self.release(shared, holder);
        self.copies += 1;
        Some(own)
    }

    /// A holder has filled the block up to `tokens`.
    pub fn fill(&mut self, id: BlockId, tokens: u32) {
        if tokens > u32::from(self.block(id).filled) {
            self.set_filled(id, tokens);
        }
    }

    /// A holder keeps no more than its first `tokens` tokens; what others hold of it is theirs still.
    pub fn trim(&mut self, id: BlockId, tokens: u32) {
        if !self.is_shared(id) && tokens < u32::from(self.block(id).filled) {
            self.set_filled(id, tokens);
        }
    }

    /// Whether more than one reference is held.
    #[must_use]
    pub fn is_shared(&self, id: BlockId) -> bool {
        self.block(id).held > 1
    }

    /// Whether cached sequences hold it, and none that runs.
    #[must_use]
    pub fn is_evictable(&self, id: BlockId) -> bool {
        self.block(id).evictable()
    }

    /// Blocks altogether.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks without a reference.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks for which [`Self::is_evictable`] holds.
    #[must_use]
    pub fn evictable(&self) -> u32 {
        self.evictable
    }

    /// Tokens in all blocks, as far as they were filled.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Blocks copied on write since the start.
    #[must_use]
    pub fn copies(&self) -> u64 {
        self.copies
    }

    fn block(&self, id: BlockId) -> Block {
        self.blocks[id.0 as usize]
    }

    /// The only place where reference counts change, so that `evictable` follows them.
    fn update(&mut self, id: BlockId, change: impl FnOnce(&mut Block)) -> Block {
        let block = &mut self.blocks[id.0 as usize];
        let before = block.evictable();
        change(block);
        let after = *block;
        self.evictable += u32::from(after.evictable());
        self.evictable -= u32::from(before);
        after
    }

    fn set_filled(&mut self, id: BlockId, tokens: u32) {
        assert!(tokens <= BLOCK_TOKENS, "a block holds no more");
        let filled = &mut self.blocks[id.0 as usize].filled;
        self.tokens += u64::from(tokens);
        self.tokens -= u64::from(*filled);
        *filled = tokens as u8;
    }

    /// Invariant: the counts are those of `held`, all the references that there are; a block is on the free
    /// list, once, if and only if it has none.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn assert_conserved(&self, held: impl Iterator<Item = (BlockId, Holder)>) {
        let mut counted = vec![Block::default(); self.blocks.len()];
        for (id, holder) in held {
            let block = &mut counted[id.0 as usize];
            block.held += 1;
            block.held_running += u16::from(holder == Holder::Running);
        }
        for (id, (block, counted)) in self.blocks.iter().zip(&mut counted).enumerate() {
            counted.filled = block.filled;
            assert_eq!(block, counted, "block {id} is not held as its tables say");
            assert!(
                block.held > 0 || block.filled == 0,
                "free block {id} holds tokens"
            );
        }
        let evictable = self.blocks.iter().filter(|b| b.evictable()).count();
        assert_eq!(
            evictable, self.evictable as usize,
            "evictable blocks miscounted"
        );
        let tokens: u64 = self.blocks.iter().map(|b| u64::from(b.filled)).sum();
        assert_eq!(tokens, self.tokens, "tokens miscounted");

        let mut listed = vec![false; self.blocks.len()];
        for id in &self.free {
            assert_eq!(self.block(*id).held, 0, "{id:?} is free and held");
            let twice = std::mem::replace(&mut listed[id.0 as usize], true);
            assert!(!twice, "{id:?} is free twice");
        }
        let unheld = self.blocks.iter().filter(|b| b.held == 0).count();
        assert_eq!(unheld, self.free.len(), "a block leaked");
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockPool, Holder};

    #[test]
    fn a_block_is_free_with_its_last_reference_and_evictable_while_only_cached() {
        let mut pool = BlockPool::new(2);
        let a = pool.allocate(Holder::Running).unwrap();
        pool.fill(a, 9);
        pool.share(a, Holder::Cached);
        pool.share(a, Holder::Cached);
        assert_eq!((pool.free(), pool.evictable(), pool.tokens()), (1, 0, 9));
        pool.release(a, Holder::Running);
        assert_eq!((pool.free(), pool.evictable()), (1, 1), "counted once");
        pool.release(a, Holder::Cached);
        pool.share(a, Holder::Running);
        assert_eq!(pool.evictable(), 0, "one that runs took it up");
        pool.demote(a);
        assert_eq!(pool.evictable(), 1);
        pool.release(a, Holder::Cached);
        pool.release(a, Holder::Cached);
        assert_eq!((pool.free(), pool.evictable(), pool.tokens()), (2, 0, 0));
        assert_eq!(
            pool.allocate(Holder::Running),
            Some(a),
            "last in, first out"
        );
        pool.assert_conserved([(a, Holder::Running)].into_iter());
    }

    #[test]
    fn a_copy_needs_a_free_block_and_leaves_the_shared_one_to_the_others() {
        let mut pool = BlockPool::new(2);
        let a = pool.allocate(Holder::Cached).unwrap();
        pool.fill(a, 16);
        pool.share(a, Holder::Running);
        let own = pool.copy_on_write(a, 15, Holder::Running).unwrap();
        assert!(own != a && !pool.is_shared(a) && pool.is_evictable(a));
        assert_eq!((pool.tokens(), pool.copies()), (31, 1));
        pool.share(a, Holder::Running);
        assert_eq!(
            pool.copy_on_write(a, 15, Holder::Running),
            None,
            "none is free"
        );
        assert!(pool.is_shared(a));
    }
}
