//! The blocks of one sequence, in order of position.
//!
//! A table can hold more blocks than its tokens fill: those reserved ahead. It can share its blocks with
//! others as far as they hold the same tokens, and writes only into blocks of its own: the next token's
//! block, if it is partly filled and shared, is copied first. (In llama.cpp nothing is copied: the new cell
//! simply lies elsewhere. The copy keeps the books on the safe side.)
//!
//! O(1) for each block touched; nothing is allocated once the table has had its length before.

use super::block_pool::{BlockId, BlockPool, Holder};
use super::{BLOCK_TOKENS, blocks_for};

/// See the module's text. An empty one holds nothing; one that is dropped must be empty.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    tokens: u32,
}

impl BlockTable {
    /// Tokens written, or shared from another.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Blocks held, those reserved ahead included.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Free blocks that it takes to write up to `tokens` tokens altogether. Exact.
    #[must_use]
    pub fn blocks_needed(&self, tokens: u32, pool: &BlockPool) -> u32 {
        if tokens <= self.tokens {
            return 0;
        }
        self.missing(tokens) + u32::from(self.copy_due(pool))
    }

    /// Whether the next token needs a copy of the block that it goes to.
    #[must_use]
    pub fn copy_due(&self, pool: &BlockPool) -> bool {
        self.partly_filled()
            .is_some_and(|i| pool.is_shared(self.blocks[i]))
    }

    /// Takes the blocks that it needs to write up to `tokens` tokens.
    ///
    /// # Errors
    /// With how many more blocks would have to be free; nothing is changed then.
    pub fn reserve(
        &mut self,
        tokens: u32,
        holder: Holder,
        pool: &mut BlockPool,
    ) -> Result<(), u32> {
        let needed = self.blocks_needed(tokens, pool);
        if needed == 0 {
            return Ok(());
        }
        if needed > pool.free() {
            return Err(needed - pool.free());
        }
        let missing = self.missing(tokens);
        if needed > missing {
            let filled = self.tokens % BLOCK_TOKENS;
            let shared = &mut self.blocks[(self.tokens / BLOCK_TOKENS) as usize];
            *shared = pool
                .copy_on_write(*shared, filled, holder)
                .unwrap_or(*shared);
        }
        self.blocks
            .extend((0..missing).map_while(|_| pool.allocate(holder)));
        Ok(())
    }

    /// The next step writes up to `tokens` tokens altogether, into blocks reserved before.
    pub fn write(&mut self, tokens: u32, pool: &mut BlockPool) {
        for i in self.tokens / BLOCK_TOKENS..blocks_for(tokens) {
            let filled = (tokens - i * BLOCK_TOKENS).min(BLOCK_TOKENS);
            pool.fill(self.blocks[i as usize], filled);
        }
        self.tokens = self.tokens.max(tokens);
    }

    /// An empty table holds `source`'s blocks of its first `tokens` tokens, too.
    pub fn share(&mut self, source: &Self, tokens: u32, holder: Holder, pool: &mut BlockPool) {
        assert!(self.blocks.is_empty(), "it would lose what it holds");
        for &id in &source.blocks[..blocks_for(tokens) as usize] {
            pool.share(id, holder);
            self.blocks.push(id);
        }
        self.tokens = tokens;
    }

    /// Forgets the tokens after the first `tokens`, and releases the blocks after the first `blocks`.
    pub fn truncate(&mut self, tokens: u32, blocks: u32, holder: Holder, pool: &mut BlockPool) {
        self.tokens = self.tokens.min(tokens);
        let keep = self.blocks.len().min(blocks as usize);
        for id in self.blocks.drain(keep..) {
            pool.release(id, holder);
        }
        let first = (self.tokens / BLOCK_TOKENS) as usize;
        for (i, id) in self.blocks.iter().enumerate().skip(first) {
            pool.trim(*id, self.tokens.saturating_sub(i as u32 * BLOCK_TOKENS));
        }
    }

    fn missing(&self, tokens: u32) -> u32 {
        blocks_for(tokens).saturating_sub(self.blocks.len() as u32)
    }

    /// The place of the block that the next token goes to, if there are tokens in it already.
    fn partly_filled(&self) -> Option<usize> {
        (!self.tokens.is_multiple_of(BLOCK_TOKENS)).then_some((self.tokens / BLOCK_TOKENS) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block_pool::{BlockPool, Holder};
    use super::BlockTable;

    #[test]
    fn a_full_hit_shares_two_blocks_and_copies_the_second() {
        let mut pool = BlockPool::new(4);
        let mut cached = BlockTable::default();
        cached.reserve(32, Holder::Cached, &mut pool).unwrap();
        cached.write(32, &mut pool);

        // 32 tokens are cached; the last one is computed again.
        let mut hit = BlockTable::default();
        hit.share(&cached, 31, Holder::Running, &mut pool);
        assert_eq!(hit.blocks(), cached.blocks());
        assert_eq!(hit.blocks_needed(31, &pool), 0);
        assert_eq!(hit.blocks_needed(32, &pool), 1, "the copy");
        assert_eq!(hit.blocks_needed(33, &pool), 2, "the copy and one more");
        hit.reserve(33, Holder::Running, &mut pool).unwrap();
        hit.write(33, &mut pool);
        assert_eq!(hit.blocks()[0], cached.blocks()[0]);
        assert_ne!(hit.blocks()[1], cached.blocks()[1]);
        assert_eq!((pool.free(), pool.evictable(), pool.copies()), (0, 1, 1));
        assert_eq!(
            hit.reserve(49, Holder::Running, &mut pool),
            Err(1),
            "no block is left"
        );
        assert_eq!(
            (hit.tokens(), hit.blocks().len()),
            (33, 3),
            "nothing was changed"
        );
    }

    #[test]
    fn blocks_reserved_ahead_are_neither_shared_nor_needed_again() {
        let mut pool = BlockPool::new(4);
        let mut table = BlockTable::default();
        table.reserve(40, Holder::Running, &mut pool).unwrap();
        table.write(17, &mut pool);
        assert_eq!((table.blocks().len(), pool.tokens()), (3, 17));
        assert_eq!(table.blocks_needed(40, &pool), 0);

        let mut fork = BlockTable::default();
        fork.share(&table, 17, Holder::Cached, &mut pool);
        assert_eq!(fork.blocks().len(), 2);
        assert_eq!(
            table.blocks_needed(18, &pool),
            1,
            "its block of token 17 is shared now"
        );
        fork.truncate(0, 0, Holder::Cached, &mut pool);
        assert_eq!(table.blocks_needed(18, &pool), 0);
        table.truncate(5, 1, Holder::Running, &mut pool);
        assert_eq!(
            (table.blocks().len(), pool.tokens(), pool.free()),
            (1, 5, 3)
        );
    }
}
