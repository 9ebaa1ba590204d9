//! What is cached, for others to look up: a set of hashes, one for each cached beginning of whole blocks.
//!
//! A beginning's hash chains over its blocks, so a prompt is probed by walking it until the first miss. The
//! tree writes, on whatever thread it lives; admission probes from another, without a message and without
//! pinning anything: what it is told may be gone a step later. The lock is held for the look-ups alone.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use super::block::{Block, chain, whole_blocks};
use crate::ids::TokenId;
use crate::logic::kv::BLOCK_TOKENS;

/// The hash of the empty beginning.
pub(super) const START: u64 = 0;

/// See the module's text. Copies share one set.
#[derive(Clone, Debug, Default)]
pub struct PrefixIndex(Arc<RwLock<BTreeSet<u64>>>);

impl PrefixIndex {
    /// How many leading tokens of a prompt are cached, in whole blocks but at most `limit`; as the tree's own
    /// [`probe`](super::PrefixCache::probe) has it.
    #[must_use]
    pub fn probe(&self, tokens: &[TokenId], limit: u32) -> u32 {
        let blocks = whole_blocks(tokens, limit);
        let hashes: Vec<u64> = along(START, blocks).collect();
        let cached = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let depth = hashes.iter().take_while(|h| cached.contains(h)).count();
        limit.min(depth as u32 * BLOCK_TOKENS)
    }

    /// The blocks of an edge below the beginning `above` are cached now.
    pub(super) fn add(&self, above: u64, edge: &[Block]) {
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        cached.extend(along(above, edge));
    }

    /// They are no longer.
    pub(super) fn remove(&self, above: u64, edge: &[Block]) {
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for hash in along(above, edge) {
            cached.remove(&hash);
        }
    }

    pub(super) fn len(&self) -> usize {
        let cached = self.0.read().unwrap_or_else(PoisonError::into_inner);
        cached.len()
    }
}

/// The hashes of the beginnings that end with each block of `edge`, which follows the beginning `above`.
fn along(above: u64, edge: &[Block]) -> impl Iterator<Item = u64> {
    edge.iter().scan(above, |hash, block| {
        *hash = chain(*hash, block);
        Some(*hash)
    })
}

/// The hash of the beginning that ends with `edge`.
pub(super) fn end_of(above: u64, edge: &[Block]) -> u64 {
    along(above, edge).last().unwrap_or(above)
}
