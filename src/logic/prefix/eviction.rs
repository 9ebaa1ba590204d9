//! Which leaf goes when room is needed.
//!
//! The queue holds exactly the leaves that nothing locks, ordered by rank: O(log leaves) for each change,
//! no scan, no stale entry. Time is the tree's own count of uses, so a run can be repeated bit for bit. Two
//! leaves are never used at the same tick, so their order is never in doubt.
//!
//! By worth, a prefix weighs *tokens saved so far × hits / cells held*, and its computation counts as the
//! first of its uses. A match takes an edge whole, since it splits where it ends; tokens saved / cells held
//! then is the number of hits, and the worth their square. It ages as in GreedyDual-Size-Frequency
//! (Cherkasova 1998): priority = age + worth, where the age is the highest priority evicted so far. A
//! favourite that nobody asks for any more is overtaken by and by, and nothing is visited for it.

use std::collections::BTreeSet;

use super::PrefixCache;
use super::nodes::{NodeIndex, ROOT};
use crate::ids::SeqId;
use crate::logic::kv::BLOCK_TOKENS;

/// What is evicted first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionOrder {
    /// The least recently used.
    #[default]
    Lru,
    /// The least worth; among equals, the least recently used.
    Worth,
}

/// What must come free; eviction stops when both do, or nothing is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Want {
    pub blocks: u32,
    pub sequences: u32,
}

/// What the caller must remove from llama.cpp: the cells of `seq` from `keep_tokens` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evicted {
    pub seq: SeqId,
    /// 0: the whole sequence, and its id is the caller's again. Else the tree still owns it.
    pub keep_tokens: u32,
}

/// The place of a node in the order; the lowest goes first. A node never ranks below its children.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Rank {
    /// 0 under [`EvictionOrder::Lru`].
    pub priority: u64,
    pub last_use: u64,
}

#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    order: EvictionOrder,
    leaves: BTreeSet<(Rank, NodeIndex)>,
    /// The highest priority evicted so far.
    age: u64,
}

impl EvictionQueue {
    pub fn new(order: EvictionOrder) -> Self {
        Self {
            order,
            ..Self::default()
        }
    }

    /// The rank of what is used now, after `hits` hits.
    pub fn rank(&self, hits: u32, now: u64) -> Rank {
        let uses = u64::from(hits) + 1;
        let priority = match self.order {
            EvictionOrder::Lru => 0,
            EvictionOrder::Worth => self.age.saturating_add(uses.saturating_mul(uses)),
        };
        Rank {
            priority,
            last_use: now,
        }
    }

    pub fn insert(&mut self, rank: Rank, leaf: NodeIndex) {
        self.leaves.insert((rank, leaf));
    }

    pub fn remove(&mut self, rank: Rank, leaf: NodeIndex) {
        self.leaves.remove(&(rank, leaf));
    }

    pub fn pop(&mut self) -> Option<NodeIndex> {
        let (rank, leaf) = self.leaves.pop_first()?;
        self.age = self.age.max(rank.priority);
        Some(leaf)
    }

    pub fn contains(&self, rank: Rank, leaf: NodeIndex) -> bool {
        self.leaves.contains(&(rank, leaf))
    }

    pub fn len(&self) -> usize {
        self.leaves.len()
    }
}

impl PrefixCache {
    /// Evicts unlocked leaves until `want` is covered or none is left, and appends to `out`, in order, what
    /// the caller must remove. A leaf that was an only child leaves its id to its parent, which then is a
    /// leaf and may be next.
    pub fn evict(&mut self, want: Want, out: &mut Vec<Evicted>) {
        let (mut blocks, mut sequences) = (0, 0);
        let start = out.len();
        while blocks < want.blocks || sequences < want.sequences {
            let Some(leaf) = self.queue.pop() else { break };
            blocks += self.nodes[leaf].edge.len() as u32;
            let evicted = self.remove_leaf(leaf);
            sequences += u32::from(evicted.keep_tokens == 0);
            match out[start..].last_mut() {
                // The rest of the path follows its end: one removal does both.
                Some(last) if last.seq == evicted.seq => *last = evicted,
                _ => out.push(evicted),
            }
        }
    }

    /// Removes a leaf that the queue no longer holds.
    fn remove_leaf(&mut self, leaf: NodeIndex) -> Evicted {
        let n = &self.nodes[leaf];
        let (seq, parent) = (n.seq, n.parent);
        self.usage.nodes -= 1;
        self.usage.tokens_held -= n.edge.len() as u32 * BLOCK_TOKENS;
        self.usage.evictions += 1;
        self.index.remove(self.nodes[parent].chain, &n.edge);
        self.nodes.remove(leaf);
        if parent != ROOT && self.nodes[parent].is_leaf() {
            // Its name already is the id that it now owns, and so it is further up.
            self.enqueue(parent);
            let keep_tokens = self.nodes[parent].depth * BLOCK_TOKENS;
            return Evicted { seq, keep_tokens };
        }
        self.usage.leaves -= 1;
        let heir = self.nodes.children(parent).next();
        if let Some(heir) = heir.map(|n| self.nodes[n].seq) {
            self.rename(parent, seq, heir);
        }
        Evicted {
            seq,
            keep_tokens: 0,
        }
    }
}
