//! What is cached, for others to look up: a set of hashes, one for each cached beginning of whole blocks.
//!
//! A beginning's hash chains over its blocks. Of what is cached all shorter beginnings are cached as well, so a prompt is
//! probed stretch by stretch, and in the first stretch that is not cached as a whole by bisection: a look-up costs a
//! cache line that another core has, many more than the hashing does. The tree writes, on whatever thread it lives;
//! admission probes from another, without a message and without pinning anything: what it is told may be gone a step
//! later. The lock is held for the look-ups alone.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use super::block::{Block, chain, whole_blocks};
use crate::ids::TokenId;
use crate::logic::kv::BLOCK_TOKENS;

/// The hash of the empty beginning.
pub(super) const START: u64 = 0;

/// Blocks that are hashed and looked up together.
const STRETCH: usize = 16;

/// Of hashes, which need no other. Nothing goes through the set in its order.
type Hashes = HashSet<u64, BuildHasherDefault<AsIs>>;

/// See the module's text. Copies share one set.
#[derive(Clone, Debug, Default)]
pub struct PrefixIndex(Arc<RwLock<Hashes>>);

impl PrefixIndex {
    /// How many leading tokens of a prompt are cached, in whole blocks but at most `limit`; as the tree's own
    /// [`probe`](super::PrefixCache::probe) has it.
    #[must_use]
    pub fn probe(&self, tokens: &[TokenId], limit: u32) -> u32 {
        let (mut depth, mut above) = (0, START);
        for stretch in whole_blocks(tokens, limit).chunks(STRETCH) {
            let mut hashes = [START; STRETCH];
            let hashes = &mut hashes[..stretch.len()];
            hashes
                .iter_mut()
                .zip(along(above, stretch))
                .for_each(|(to, hash)| *to = hash);
            let cached = self.0.read().unwrap_or_else(PoisonError::into_inner);
            above = hashes[stretch.len() - 1];
            if !cached.contains(&above) {
                depth += hashes.partition_point(|hash| cached.contains(hash));
                break;
            }
            depth += stretch.len();
        }
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
