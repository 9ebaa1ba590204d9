//! The arithmetic of admission: is there room for a request, and if not, what would make it?
//!
//! Two things must hold. Evicting all that may be evicted would leave enough for what the request takes now
//! and for what is kept for those that run. And what it takes now is free, or else so much is to be evicted
//! first: the cache is not emptied for what is merely kept.

use super::pool::KvPool;
use super::sequence_ids::{Running, State};
use super::{BLOCK_TOKENS, Demand, Layout, SharedPrefix, Shortfall, blocks_for};
use crate::ids::SeqId;

/// What admitting a request costs, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    /// Free ones that it takes at once.
    now: u32,
    /// Free ones that it may take later.
    later: u32,
    /// Those that it and its prefix occupy in the end.
    lifetime: u32,
}

impl Cost {
    /// Of a request that gets blocks for `tokens` tokens, the first `shared` of them being another's.
    fn new(demand: &Demand, tokens: u32, shared: u32) -> Self {
        let copy = u32::from(!shared.is_multiple_of(BLOCK_TOKENS));
        let first = blocks_for(tokens);
        let later = blocks_for(demand.total_max).saturating_sub(first);
        Self {
            now: first - blocks_for(shared) + copy,
            later,
            lifetime: first + later + copy,
        }
    }
}

impl KvPool {
    /// The id that a request gets, if there is room for it.
    pub(super) fn room_for(
        &self,
        demand: &Demand,
        tokens: u32,
        prefix: Option<SharedPrefix>,
    ) -> Result<SeqId, Shortfall> {
        // What eviction can't free for this request: the prefix that it needs itself, if it is a cached one.
        let cached = prefix.is_some_and(|p| self.ids.get(p.seq) == State::Cached);
        let (shared, kept) = match (self.layout, prefix) {
            (_, None) => (0, 0),
            (Layout::Streams, Some(_)) => (0, self.sequence_blocks * u32::from(cached)),
            (Layout::Unified, Some(p)) => {
                let blocks = self.tables[p.seq.0 as usize].blocks();
                let blocks = &blocks[..blocks_for(p.tokens) as usize];
                let kept = blocks
                    .iter()
                    .filter(|b| self.blocks.is_evictable(**b))
                    .count();
                (p.tokens, kept as u32)
            }
        };
        let cost = Cost::new(demand, tokens, shared);
        let watermark = self.reservation.watermark_blocks() * u32::from(self.ids.any_running());
        let growth = match self.reservation.promises_growth() {
            true => self.promised() + cost.later,
            false => 0,
        };
        let available = self.blocks.free() + self.blocks.evictable() - kept;
        let missing = (cost.now + watermark.max(growth)).saturating_sub(available);
        // Alone it has the whole pool, with its own prefix in it: it must be able to finish there.
        let missing = missing.max(cost.lifetime.saturating_sub(self.sequence_blocks));

        // A slab comes with its id: there it is ids that are short.
        let to_evict = match self.layout {
            Layout::Unified => cost.now.saturating_sub(self.blocks.free()),
            Layout::Streams => 0,
        };
        let seq = self
            .ids
            .next_free()
            .filter(|_| missing == 0 && to_evict == 0);
        let no_id = self.ids.free() == 0;
        let evictable_ids = self.ids.cached() - u32::from(cached);
        let can_wait = self.ids.retiring() > 0;
        let attainable = missing == 0 && (!no_id || can_wait || evictable_ids > 0);
        seq.ok_or(Shortfall {
            blocks: if attainable { to_evict } else { missing },
            sequences: u32::from(no_id && !can_wait),
            attainable,
        })
    }

    /// Blocks that the running requests may still take.
    pub(super) fn promised(&self) -> u32 {
        let growth = |(seq, running): (SeqId, Running)| {
            self.tables[seq.0 as usize].blocks_needed(running.total_max, &self.blocks)
        };
        self.ids.running().map(growth).sum()
    }
}
