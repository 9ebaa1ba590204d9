//! What is cached, for others to look up: a set of hashes, one for each cached beginning of whole blocks.
//!
//! A beginning's hash chains over its blocks. Of what is cached all shorter beginnings are cached as well, so a prompt is
//! probed by bisection: a look-up costs a cache line that another core has. The tree writes, on whatever thread it
//! lives; admission probes from another, without a message and without pinning anything: what it is told may be gone a
//! step later. The lock is held for the look-ups alone.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use super::block::{Block, chain, whole_blocks};
use crate::ids::TokenId;
use crate::logic::kv::BLOCK_TOKENS;

/// The hash of the empty beginning.
pub(super) const START: u64 = 0;

/// The hashes of a prompt's beginnings, one for each whole block of it: all that a probe looks at. Made where the
/// prompt was, so that nobody has to fetch it from there for a probe. Without any, nothing of it is cached.
#[derive(Clone, Debug, Default)]
pub struct Beginnings(Arc<[u64]>);

impl Beginnings {
    #[must_use]
    pub fn of(prompt: &[TokenId]) -> Self {
        Self(along(START, whole_blocks(prompt, u32::MAX)).collect())
    }
}

/// Of hashes, which need no other. Nothing goes through the set in its order.
type Hashes = HashSet<u64, BuildHasherDefault<AsIs>>;

/// See the module's text. Copies share one set.
#[derive(Clone, Debug, Default)]
pub struct PrefixIndex(Arc<RwLock<Hashes>>);

impl PrefixIndex {
    /// How many leading tokens of a prompt are cached, in whole blocks but at most `limit`; as the tree's own
    /// [`probe`](super::PrefixCache::probe) has it.
    #[must_use]
    pub fn probe(&self, Beginnings(hashes): &Beginnings, limit: u32) -> u32 {
        let most = limit.div_ceil(BLOCK_TOKENS) as usize;
        let hashes = &hashes[..hashes.len().min(most)];
        let cached = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let depth = hashes.partition_point(|hash| cached.contains(hash));
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

/// A hash's hash is itself.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|b| self.0 = self.0 << 8 | u64::from(*b));
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
