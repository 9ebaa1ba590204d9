//! What must hold for the books after every operation. The property tests and, behind
//! `engine.check_invariants`, the running daemon call the same checks.

use super::block_pool::{BlockId, Holder};
use super::pool::KvPool;
use super::sequence_ids::State;
use super::{BLOCK_TOKENS, Layout, blocks_for};

impl KvPool {
    /// Invariants: a block is free if and only if nobody holds it; the ids are conserved; an id holds blocks
    /// only while it is in use, and enough for its tokens; what runs writes into blocks of its own; where
    /// growth is promised there is room for it.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn assert_conserved(&self) {
        self.ids.assert_conserved();
        self.blocks.assert_conserved(self.references());
        self.tables_fit_their_ids();
        self.promises_can_be_kept();
    }

    /// Every reference to a block that there should be.
    fn references(&self) -> impl Iterator<Item = (BlockId, Holder)> + '_ {
        let tables = self
            .ids
            .iter()
            .zip(&self.tables)
            .flat_map(|((_, state), table)| {
                let holder = match state {
                    State::Running(_) => Holder::Running,
                    _ => Holder::Cached,
                };
                table.blocks().iter().map(move |&block| (block, holder))
            });
        let pins = self.ids.running().filter_map(|(_, running)| running.pinned);
        tables.chain(pins.map(|block| (block, Holder::Running)))
    }

    fn tables_fit_their_ids(&self) {
        for ((seq, state), table) in self.ids.iter().zip(&self.tables) {
            let (tokens, blocks) = (table.tokens(), table.blocks().len() as u32);
            match state {
                State::Free | State::Retiring => {
                    assert_eq!(
                        (tokens, blocks),
                        (0, 0),
                        "{seq:?} holds blocks and is not in use"
                    );
                    continue;
                }
                State::Cached => {}
                State::Running(running) => {
                    assert!(tokens <= running.total_max, "{seq:?} outgrew its request");
                    assert!(
                        !table.copy_due(&self.blocks),
                        "{seq:?} writes into a shared block"
                    );
                }
            }
            assert!(
                tokens <= blocks * BLOCK_TOKENS,
                "{seq:?} writes beyond its blocks"
            );
            match (self.layout, state) {
                (Layout::Streams, _) => {
                    assert_eq!(
                        blocks, self.sequence_blocks,
                        "{seq:?} has no slab of its own"
                    );
                }
                (Layout::Unified, State::Cached) => {
                    assert_eq!(
                        blocks,
                        blocks_for(tokens),
                        "cached {seq:?} holds empty blocks"
                    );
                }
                (Layout::Unified, _) => {}
            }
        }
    }

    fn promises_can_be_kept(&self) {
        let available = self.blocks.free() + self.blocks.evictable();
        assert!(
            !self.reservation.promises_growth() || self.promised() <= available,
            "{} blocks are promised and {available} can be had",
            self.promised()
        );
    }
}
