//! The tree: match, lock, insert.

use super::block::{Block, same, whole_blocks};
use super::eviction::{EvictionOrder, EvictionQueue};
use super::index::PrefixIndex;
use super::nodes::{NodeHandle, NodeIndex, Nodes, ROOT};
use super::{Inserted, Match, PrefixUsage, StaleHandle};
use crate::ids::{SeqId, TokenId};
use crate::logic::kv::BLOCK_TOKENS;

/// See the module's text.
#[derive(Debug)]
pub struct PrefixCache {
    pub(super) nodes: Nodes,
    pub(super) queue: EvictionQueue,
    pub(super) usage: PrefixUsage,
    pub(super) index: PrefixIndex,
    /// Counts matches and insertions: the time by which the last use is told.
    clock: u64,
}

/// How far a path leads down the tree: `depth` blocks, the last of them on the edge of `node`.
#[derive(Clone, Copy)]
struct Reached {
    node: NodeIndex,
    depth: u32,
}

impl PrefixCache {
    /// An empty cache.
    #[must_use]
    pub fn new(order: EvictionOrder) -> Self {
        Self {
            nodes: Nodes::new(),
            queue: EvictionQueue::new(order),
            usage: PrefixUsage::default(),
            index: PrefixIndex::default(),
            clock: 0,
        }
    }

    /// The longest cached prefix of `tokens`, in whole blocks but at most `limit` tokens, is used now, and
    /// locked until [`unlock`](Self::unlock). A prompt that is cached wholly still needs its last token
    /// computed: its `limit` is its length - 1. Allocates only if the match ends inside an edge.
    pub fn match_prefix(&mut self, tokens: &[TokenId], limit: u32) -> Option<Match> {
        let reached = self.walk(whole_blocks(tokens, limit));
        if reached.depth == 0 {
            return None;
        }
        let node = self.boundary(reached);
        self.pin(node);
        self.touch(node, 1);
        let tokens = limit.min(reached.depth * BLOCK_TOKENS);
        Some(Match {
            node: self.nodes.handle(node),
            tokens,
            seq: self.nodes[node].seq,
        })
    }

    /// How many tokens [`match_prefix`](Self::match_prefix) would find. Changes nothing.
    #[must_use]
    pub fn probe(&self, tokens: &[TokenId], limit: u32) -> u32 {
        let reached = self.walk(whole_blocks(tokens, limit));
        limit.min(reached.depth * BLOCK_TOKENS)
    }

    /// Gives the tree a sequence whose cells hold `path`, of which it takes the whole blocks. It owns the id
    /// then, unless all of them are cached already. Cells beyond the whole blocks are the caller's to remove.
    pub fn insert(&mut self, path: &[TokenId], seq: SeqId) -> Inserted {
        let path = whole_blocks(path, u32::MAX);
        let mut inserted = Inserted {
            node: None,
            redundant: None,
        };
        if path.is_empty() {
            return inserted;
        }
        let reached = self.walk(path);
        let mut node = self.boundary(reached);
        self.dequeue(node);
        let rest = &path[reached.depth as usize..];
        if !rest.is_empty() {
            let end = &self.nodes[node];
            inserted.redundant = (node != ROOT && end.is_leaf()).then_some(end.seq);
            if let Some(old) = inserted.redundant {
                self.rename(node, old, seq);
            }
            self.index.add(self.nodes[node].chain, rest);
            node = self.nodes.add(node, rest, seq);
            self.usage.nodes += 1;
            self.usage.leaves += u32::from(inserted.redundant.is_none());
            self.usage.tokens_held += rest.len() as u32 * BLOCK_TOKENS;
        }
        self.touch(node, 0);
        self.enqueue(node);
        inserted.node = Some(self.nodes.handle(node));
        inserted
    }

    /// The sequence whose cells begin with the path of a node, until the next eviction or insertion.
    ///
    /// # Errors
    /// [`StaleHandle`] if the node is gone.
    pub fn seq(&self, node: NodeHandle) -> Result<SeqId, StaleHandle> {
        Ok(self.nodes[self.nodes.resolve(node)?].seq)
    }

    /// Locks the path of a node once more.
    ///
    /// # Errors
    /// [`StaleHandle`] if the node is gone.
    pub fn lock(&mut self, handle: NodeHandle) -> Result<(), StaleHandle> {
        let node = self.nodes.resolve(handle)?;
        self.pin(node);
        Ok(())
    }

    /// Takes one lock of a path away.
    ///
    /// # Errors
    /// [`StaleHandle`] if the node is gone, or not locked itself; nothing is changed then.
    pub fn unlock(&mut self, handle: NodeHandle) -> Result<(), StaleHandle> {
        let node = self.nodes.resolve(handle)?;
        if self.nodes[node].pins == 0 {
            return Err(StaleHandle);
        }
        self.unpin(node);
        Ok(())
    }

    /// What it holds, for others to look up at any time.
    #[must_use]
    pub fn index(&self) -> PrefixIndex {
        self.index.clone()
    }

    /// How much it holds and has done.
    #[must_use]
    pub fn usage(&self) -> PrefixUsage {
        self.usage
    }

    fn walk(&self, path: &[Block]) -> Reached {
        let mut at = Reached {
            node: ROOT,
            depth: 0,
        };
        while let Some(first) = path.get(at.depth as usize) {
            let Some(child) = self.nodes.child(at.node, first) else {
                break;
            };
            let edge = &self.nodes[child].edge;
            let blocks = edge.iter().zip(&path[at.depth as usize..]);
            at.node = child;
            at.depth += blocks.take_while(|(a, b)| same(a, b)).count() as u32;
            if at.depth < self.nodes[child].depth {
                break;
            }
        }
        at
    }

    /// The node that ends exactly where the walk did.
    fn boundary(&mut self, reached: Reached) -> NodeIndex {
        let n = &self.nodes[reached.node];
        let beyond = (n.depth - reached.depth) as usize;
        if beyond == 0 {
            return reached.node;
        }
        self.usage.nodes += 1;
        self.usage.splits += 1;
        let at = n.edge.len() - beyond;
        self.nodes.split(reached.node, at)
    }

    /// Marks a path as used now. Its node must not be in the queue, which orders by what this changes.
    fn touch(&mut self, node: NodeIndex, hits: u32) {
        self.clock += 1;
        let (queue, now) = (&self.queue, self.clock);
        self.nodes.on_path(node, |n| {
            n.hits = n.hits.saturating_add(hits);
            n.rank = queue.rank(n.hits, now);
        });
    }

    /// Where a path is named `old`, names it `new`.
    pub(super) fn rename(&mut self, node: NodeIndex, old: SeqId, new: SeqId) {
        self.nodes.on_path(node, |n| {
            if n.seq == old {
                n.seq = new;
            }
        });
    }

    fn pin(&mut self, node: NodeIndex) {
        self.dequeue(node);
        self.nodes[node].pins += 1;
        let locked = &mut self.usage.tokens_locked;
        self.nodes.on_path(node, |n| {
            if n.locks == 0 {
                *locked += n.edge.len() as u32 * BLOCK_TOKENS;
            }
            n.locks += 1;
        });
    }

    fn unpin(&mut self, node: NodeIndex) {
        self.nodes[node].pins -= 1;
        let locked = &mut self.usage.tokens_locked;
        self.nodes.on_path(node, |n| {
            n.locks -= 1;
            if n.locks == 0 {
                *locked -= n.edge.len() as u32 * BLOCK_TOKENS;
            }
        });
        self.enqueue(node);
    }

    /// Whether the queue holds the node.
    pub(super) fn evictable(&self, node: NodeIndex) -> bool {
        let n = &self.nodes[node];
        node != ROOT && n.is_leaf() && n.locks == 0
    }

    pub(super) fn enqueue(&mut self, node: NodeIndex) {
        if self.evictable(node) {
            self.queue.insert(self.nodes[node].rank, node);
        }
    }

    fn dequeue(&mut self, node: NodeIndex) {
        if self.evictable(node) {
            self.queue.remove(self.nodes[node].rank, node);
        }
    }
}

#[cfg(test)]
#[path = "radix_tree_tests.rs"]
mod tests;
