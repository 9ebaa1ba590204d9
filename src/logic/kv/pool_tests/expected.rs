//! What the books should say, counted from scratch: sets of blocks in the place of counters.

use std::collections::BTreeSet;

use super::super::super::block_pool::BlockId;
use super::super::*;
use super::world::{Request, World};

impl World<'_> {
    /// Blocks of a sequence that the prefix cache's locks cover.
    pub fn locked_blocks(&self, seq: SeqId) -> u32 {
        let prefixes = self.running.iter().filter_map(|r| r.demand.prefix);
        let locks = prefixes.filter(|p| p.seq == seq && self.shares_blocks());
        locks.map(|p| blocks_for(p.tokens)).max().unwrap_or(0)
    }

    /// Blocks that no eviction can free.
    pub fn blocks_in_use(&self) -> BTreeSet<BlockId> {
        let own = self.running.iter().flat_map(|r| self.blocks(r.seq));
        let left = self.running.iter().filter_map(|r| r.left.as_ref());
        own.chain(left).copied().collect()
    }

    /// Blocks that a request may still need, counted from scratch.
    pub fn growth(&self, r: &Request) -> u32 {
        blocks_for(r.demand.total_max).saturating_sub(self.blocks(r.seq).len() as u32)
    }

    /// Whether the books should let a request in, once all that may be evicted is.
    pub fn has_room(&self, demand: &Demand, target: u32) -> bool {
        let shared = demand.prefix.filter(|_| self.shares_blocks());
        let whole = shared.map_or(0, |p| p.tokens / BLOCK_TOKENS);
        let split = u32::from(shared.is_some_and(|p| p.tokens % BLOCK_TOKENS != 0));
        let now = blocks_for(target) - whole;
        let later = blocks_for(demand.total_max).saturating_sub(blocks_for(target));
        let mut in_use = self.blocks_in_use();
        if let Some(p) = demand.prefix {
            let kept = match self.cells.slab {
                Some(_) => self.blocks(p.seq),
                None => &self.blocks(p.seq)[..blocks_for(p.tokens) as usize],
            };
            in_use.extend(kept);
        }
        let available = self.pool.blocks.total() - in_use.len() as u32;
        let kept_free = match self.pool.reservation {
            Reservation::Paged {
                watermark_blocks,
                reserve_growth,
            } => {
                let watermark = if self.running.is_empty() {
                    0
                } else {
                    watermark_blocks
                };
                let growth = self.running.iter().map(|r| self.growth(r)).sum::<u32>() + later;
                if reserve_growth {
                    watermark.max(growth)
                } else {
                    watermark
                }
            }
            _ => self.running.iter().map(|r| self.growth(r)).sum(),
        };
        let alone = blocks_for(target) + later + split <= self.pool.sequence_blocks;
        now + kept_free <= available && alone
    }

    /// Tokens for which a request gets blocks at once.
    pub fn tokens_at_admission(&self, demand: &Demand) -> u32 {
        match self.pool.reservation {
            Reservation::Paged { .. } => demand.prompt_tokens,
            Reservation::Request => demand.total_max,
            Reservation::Contiguous { output_tokens } => demand
                .prompt_tokens
                .saturating_add(output_tokens)
                .min(self.pool.sequence_tokens_max())
                .max(demand.total_max),
        }
    }
}
