//! The prefix cache: which beginnings of prompts are already in the KV pool, and in which sequence.
//!
//! A radix tree over token paths in whole blocks of [`BLOCK_TOKENS`] tokens. It names llama.cpp sequences and
//! never sees a cell: a hit is made real by `seq_cp(hit.seq, id, 0, hit.tokens)`, what is evicted by
//! `seq_rm(seq, keep_tokens, -1)`. Sequence ids are scarce, so **each leaf owns one id, and an inner node
//! names the id of one leaf below it**, whose sequence begins with the inner node's path.
//!
//! | operation | cost | what it does |
//! | --- | --- | --- |
//! | [`match_prefix`] | O(prompt) | finds the longest cached prefix and locks it |
//! | [`probe`] | O(prompt) | the same length, and changes nothing |
//! | [`insert`] | O(path) | gives a computed sequence to the tree |
//! | [`lock`], [`unlock`] | O(depth + log leaves) | a request locks what it has computed, or lets its prefix go |
//! | [`evict`] | O(log leaves + depth) for each leaf | takes the least recently used, or the least worth |
//!
//! What is cached can be looked up from another thread in a [`PrefixIndex`], as admission does.
//!
//! A match locks every node from the root to its end, and an edge is split where a match ends, so that
//! exactly what a request uses is locked. What is locked is never evicted: the lock taken by the match lasts
//! until the request has ended, whatever is evicted to let it in. Handles carry their slot's generation: one
//! that has outlived its node is refused.
//!
//! A locked path stays, but the leaf that its node names may go. So after an eviction or an insertion,
//! [`seq`] says under which id the path is found now; what a match said holds until then.
//!
//! Tokens and blocks are the tree's own count, in which a shared prefix counts once. Two requests that
//! computed the same prefix side by side hold it twice in llama.cpp until one of them is evicted.
//!
//! The tree is that of SGLang's `RadixCache`, with sequence ids in place of cell indices.
//!
//! [`BLOCK_TOKENS`]: super::kv::BLOCK_TOKENS
//! [`match_prefix`]: PrefixCache::match_prefix
//! [`probe`]: PrefixCache::probe
//! [`insert`]: PrefixCache::insert
//! [`lock`]: PrefixCache::lock
//! [`unlock`]: PrefixCache::unlock
//! [`evict`]: PrefixCache::evict
//! [`seq`]: PrefixCache::seq

mod block;
pub mod eviction;
mod index;
mod invariants;
mod nodes;
mod radix_tree;

use crate::ids::SeqId;
pub use eviction::{Evicted, EvictionOrder, Want};
pub use index::{Beginnings, PrefixIndex};
pub use nodes::NodeHandle;
pub use radix_tree::PrefixCache;

/// A cached prefix, locked for whoever asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    /// What is locked: the node that covers the last of `tokens`. For [`PrefixCache::unlock`].
    pub node: NodeHandle,
    /// Leading tokens of the prompt to take over; at least 1.
    pub tokens: u32,
    /// The sequence whose first `tokens` cells hold them, until the next eviction or insertion: see
    /// [`PrefixCache::seq`].
    pub seq: SeqId,
}

/// What became of a sequence given to the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inserted {
    /// The node that ends with the last whole block, not locked; `None` if there is none. The tree owns the id if
    /// this node names it; if not, it stays the caller's.
    pub node: Option<NodeHandle>,
    /// An id that the tree no longer needs, because the new path extends the one it owned: the caller's to
    /// retire.
    pub redundant: Option<SeqId>,
}

/// The handle names no node that its bearer has locked: the node is gone, or the lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleHandle;

/// How much the cache holds, and what it has done since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixUsage {
    /// Nodes without the root.
    pub nodes: u32,
    /// Leaves: as many as sequence ids owned.
    pub leaves: u32,
    /// Tokens held, a shared prefix counted once.
    pub tokens_held: u32,
    /// Those among them that are locked.
    pub tokens_locked: u32,
    /// Edges split in two.
    pub splits: u64,
    /// Leaves evicted.
    pub evictions: u64,
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
