//! The KV pool as the engine uses it: requests are admitted, grow and end; prefixes are cached, shared and
//! evicted. See the module above for what the books stand for.
//!
//! Blocks come back at once when a sequence ends, as its removal goes before everything else in the next
//! step; its id comes back when that step is done.

use super::block_pool::{BlockId, BlockPool, Holder};
use super::block_table::BlockTable;
use super::reservation::Reservation;
use super::sequence_ids::{Running, SequenceIds, State};
use super::{BLOCK_TOKENS, Demand, KvUsage, Layout, Lease, SharedPrefix, Shortfall, blocks_for};
use crate::ids::SeqId;

/// See the module's text.
#[derive(Debug)]
pub struct KvPool {
    pub(super) layout: Layout,
    pub(super) reservation: Reservation,
    /// The most blocks that a sequence can have: all of them, or a slab.
    pub(super) sequence_blocks: u32,
    pub(super) blocks: BlockPool,
    pub(super) ids: SequenceIds,
    /// One for each id.
    pub(super) tables: Vec<BlockTable>,
}

impl KvPool {
    /// A pool of `cells` cells (whole blocks of it), shared by `sequences` ids, all free.
    #[must_use]
    pub fn unified(cells: u32, sequences: u32, reservation: Reservation) -> Self {
        let blocks = cells / BLOCK_TOKENS;
        Self::new(Layout::Unified, blocks, blocks, sequences, reservation)
    }

    /// A pool of `cells` cells, divided into a slab (of whole blocks) for each of `sequences` ids.
    #[must_use]
    pub fn streams(cells: u32, sequences: u32) -> Self {
        let slab = cells / sequences / BLOCK_TOKENS;
        // A slab is what a contiguous reservation comes to when the output is bounded by the slab alone.
        let reservation = Reservation::Contiguous {
            output_tokens: u32::MAX,
        };
        let blocks = slab * sequences;
        Self::new(Layout::Streams, blocks, slab, sequences, reservation)
    }

    fn new(
        layout: Layout,
        blocks: u32,
        sequence_blocks: u32,
        sequences: u32,
        reservation: Reservation,
    ) -> Self {
        Self {
            layout,
            reservation,
            sequence_blocks,
            blocks: BlockPool::new(blocks),
            ids: SequenceIds::new(sequences),
            tables: (0..sequences).map(|_| BlockTable::default()).collect(),
        }
    }

    /// The most tokens that one sequence can hold; a request for more can never be admitted.
    #[must_use]
    pub fn sequence_tokens_max(&self) -> u32 {
        self.sequence_blocks * BLOCK_TOKENS
    }

    /// Whether a sequence can begin with another's tokens.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.layout == Layout::Streams || self.reservation.shares()
    }

    /// Lets a request run: takes an id, shares the prefix (which is not looked at where nothing is shared),
    /// and takes all the blocks that its prompt needs, so that no prefill stops half-way. The prefix, a
    /// cached sequence's, must be locked from before this until the request ends. O(blocks of the prompt +
    /// ids).
    ///
    /// # Errors
    /// With what is missing; nothing is changed then.
    pub fn admit(&mut self, demand: &Demand) -> Result<Lease, Shortfall> {
        let prefix = demand.prefix.filter(|_| self.shares());
        assert!(
            prefix.is_none_or(|p| p.tokens < demand.prompt_tokens),
            "the last prompt token is computed"
        );
        let tokens = self
            .reservation
            .tokens_at_admission(demand, self.sequence_tokens_max());
        let seq = self.room_for(demand, tokens, prefix)?;
        let pinned = prefix.and_then(|p| self.split_block(p));
        if let Some(block) = pinned {
            self.blocks.share(block, Holder::Running);
        }
        let total_max = demand.total_max;
        self.ids
            .set(seq, State::Running(Running { total_max, pinned }));
        if let Some(p) = prefix {
            self.share(p.seq, seq, p.tokens);
        }
        let table = &mut self.tables[seq.0 as usize];
        let reserved = table.reserve(tokens, Holder::Running, &mut self.blocks);
        assert_eq!(reserved, Ok(()), "there was room");
        Ok(Lease {
            seq,
            blocks: table.blocks().len() as u32,
        })
    }

    /// Makes room for a step that writes a running sequence's tokens up to `tokens_total`, the prompt
    /// included. O(blocks touched); allocates nothing once the table has had its length before.
    ///
    /// # Errors
    /// With what is missing; nothing is changed then. Never unattainable where growth is promised
    /// ([`Reservation`]).
    pub fn grow(&mut self, seq: SeqId, tokens_total: u32) -> Result<(), Shortfall> {
        let evictable = self.blocks.evictable();
        let table = &mut self.tables[seq.0 as usize];
        table
            .reserve(tokens_total, Holder::Running, &mut self.blocks)
            .map_err(|missing| Shortfall::of_blocks(missing, evictable))?;
        table.write(tokens_total, &mut self.blocks);
        Ok(())
    }

    /// A running sequence ends and is kept as a cached one, with its first `tokens` tokens. False, and
    /// nothing is changed, if it does not run.
    pub fn cache(&mut self, seq: SeqId, tokens: u32) -> bool {
        let State::Running(running) = self.ids.get(seq) else {
            return false;
        };
        self.shorten(seq, tokens, Holder::Running);
        for &block in self.tables[seq.0 as usize].blocks() {
            self.blocks.demote(block);
        }
        self.unpin(running);
        self.ids.set(seq, State::Cached);
        true
    }

    /// A cached sequence keeps its first `tokens` tokens. False, and nothing is changed, if it is not cached.
    pub fn truncate(&mut self, seq: SeqId, tokens: u32) -> bool {
        let cached = self.ids.get(seq) == State::Cached;
        if cached {
            self.shorten(seq, tokens, Holder::Cached);
        }
        cached
    }

    /// A sequence ends, is preempted or is evicted: its blocks come back at once, its id retires. False, and
    /// nothing is changed, if it is not in use.
    pub fn retire(&mut self, seq: SeqId) -> bool {
        let holder = match self.ids.get(seq) {
            State::Running(running) => {
                self.unpin(running);
                Holder::Running
            }
            State::Cached => Holder::Cached,
            State::Free | State::Retiring => return false,
        };
        self.tables[seq.0 as usize].truncate(0, 0, holder, &mut self.blocks);
        self.ids.set(seq, State::Retiring);
        true
    }

    /// The step that removed a retiring id's cells is done: it is free. False, and nothing is changed, if it
    /// does not retire.
    pub fn reusable(&mut self, seq: SeqId) -> bool {
        let retiring = self.ids.get(seq) == State::Retiring;
        if retiring {
            self.ids.set(seq, State::Free);
        }
        retiring
    }

    /// How much is free, and what holds the rest. O(1).
    #[must_use]
    pub fn usage(&self) -> KvUsage {
        KvUsage {
            blocks_total: self.blocks.total(),
            blocks_free: self.blocks.free(),
            blocks_cached: self.blocks.evictable(),
            sequences_total: self.ids.total(),
            sequences_free: self.ids.free(),
            sequences_cached: self.ids.cached(),
            tokens: self.blocks.tokens(),
            copies: self.blocks.copies(),
        }
    }

    /// The running `seq`, which holds nothing yet, begins with the first `tokens` tokens of `source`.
    fn share(&mut self, source: SeqId, seq: SeqId, tokens: u32) {
        assert!(
            tokens <= self.tables[source.0 as usize].tokens(),
            "{source:?} holds less"
        );
        // Taken out, so that both tables can be had at once; an empty table allocates nothing.
        let mut table = std::mem::take(&mut self.tables[seq.0 as usize]);
        match self.layout {
            Layout::Unified => {
                let source = &self.tables[source.0 as usize];
                table.share(source, tokens, Holder::Running, &mut self.blocks);
            }
            Layout::Streams => {
                let slab = self.sequence_tokens_max();
                let reserved = table.reserve(slab, Holder::Running, &mut self.blocks);
                assert_eq!(reserved, Ok(()), "a free id has a free slab");
                table.write(tokens, &mut self.blocks);
            }
        }
        self.tables[seq.0 as usize] = table;
    }

    fn shorten(&mut self, seq: SeqId, tokens: u32, holder: Holder) {
        let blocks = match self.layout {
            Layout::Unified => blocks_for(tokens),
            Layout::Streams => self.sequence_blocks,
        };
        self.tables[seq.0 as usize].truncate(tokens, blocks, holder, &mut self.blocks);
    }

    /// The block within which a prefix ends.
    fn split_block(&self, prefix: SharedPrefix) -> Option<BlockId> {
        let split = self.layout == Layout::Unified && !prefix.tokens.is_multiple_of(BLOCK_TOKENS);
        let blocks = self.tables[prefix.seq.0 as usize].blocks();
        split.then(|| blocks[(prefix.tokens / BLOCK_TOKENS) as usize])
    }

    fn unpin(&mut self, running: Running) {
        if let Some(block) = running.pinned {
            self.blocks.release(block, Holder::Running);
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
