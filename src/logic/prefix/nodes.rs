//! The nodes of the tree: an arena of slots that are used again, the links between them, and a hash table
//! from (parent, first block) to the child.
//!
//! The table is chained through the nodes themselves: its key is the node's own parent and edge, so it copies
//! none, and it is never iterated, so no result depends on its order. A client could make blocks collide on
//! purpose, but no chain is longer than there are nodes, and each of those cost it a computed block.

use std::ops::{Index, IndexMut};

use super::StaleHandle;
use super::block::{Block, hash, same};
use super::eviction::Rank;
use super::index::{START, end_of};
use crate::ids::SeqId;

/// The slot of a node.
pub type NodeIndex = u32;

/// The node of the empty path. It has no edge and no sequence, and it is never removed.
pub const ROOT: NodeIndex = 0;

/// No node.
const NIL: NodeIndex = NodeIndex::MAX;

/// Names a node for as long as it lives; its slot's next node has another generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHandle {
    index: NodeIndex,
    generation: u32,
}

/// A piece of a path, and all that is known of it.
#[derive(Debug)]
pub struct Node {
    /// Empty for the root and for a free slot.
    pub edge: Box<[Block]>,
    /// Blocks from the root to the end of the edge.
    pub depth: u32,
    /// The hash of the path to the end of the edge, as the index has it.
    pub chain: u64,
    /// The id that a leaf owns, or that of a leaf below.
    pub seq: SeqId,
    /// Locks taken at this very node.
    pub pins: u32,
    /// Locks at this node and below: whoever uses a path uses all of its beginning.
    pub locks: u32,
    /// Matches that went through.
    pub hits: u32,
    pub rank: Rank,
    pub parent: NodeIndex,
    first_child: NodeIndex,
    next_sibling: NodeIndex,
    prev_sibling: NodeIndex,
    /// Of the parent and the first block.
    hash: u32,
    next_in_bucket: NodeIndex,
    generation: u32,
}

impl Node {
    pub fn is_leaf(&self) -> bool {
        self.first_child == NIL
    }
}

#[derive(Debug)]
pub struct Nodes {
    slots: Vec<Node>,
    free: Vec<NodeIndex>,
    /// First node of each chain; as many as a power of two.
    buckets: Vec<NodeIndex>,
}

impl Nodes {
    pub fn new() -> Self {
        let mut nodes = Self {
            slots: Vec::new(),
            free: Vec::new(),
            buckets: vec![NIL; 16],
        };
        nodes.occupy(Box::default(), 0, START, SeqId(u32::MAX));
        nodes
    }

    pub fn handle(&self, node: NodeIndex) -> NodeHandle {
        let generation = self[node].generation;
        NodeHandle {
            index: node,
            generation,
        }
    }

    pub fn resolve(&self, handle: NodeHandle) -> Result<NodeIndex, StaleHandle> {
        match self.slots.get(handle.index as usize) {
            Some(node) if node.generation == handle.generation => Ok(handle.index),
            _ => Err(StaleHandle),
        }
    }

    /// Every node but the root.
    pub fn live(&self) -> impl Iterator<Item = NodeIndex> {
        (0..self.slots.len() as NodeIndex).filter(|&n| !self[n].edge.is_empty())
    }

    pub fn children(&self, parent: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        let some = |n: NodeIndex| (n != NIL).then_some(n);
        std::iter::successors(some(self[parent].first_child), move |&n| {
            some(self[n].next_sibling)
        })
    }

    /// The child of `parent` whose edge begins with `block`.
    pub fn child(&self, parent: NodeIndex, block: &Block) -> Option<NodeIndex> {
        let hash = hash(parent, block);
        let mut at = self.buckets[self.bucket(hash)];
        while at != NIL {
            let n = &self[at];
            if n.hash == hash && n.parent == parent && same(&n.edge[0], block) {
                return Some(at);
            }
            at = n.next_in_bucket;
        }
        None
    }

    /// Applies `f` to `node` and to those above it, the root left out.
    pub fn on_path(&mut self, mut node: NodeIndex, mut f: impl FnMut(&mut Node)) {
        while node != ROOT {
            f(&mut self[node]);
            node = self[node].parent;
        }
    }

    /// A new leaf under `parent`, which has no child that begins with the same block.
    pub fn add(&mut self, parent: NodeIndex, edge: &[Block], seq: SeqId) -> NodeIndex {
        let depth = self[parent].depth + edge.len() as u32;
        let chain = end_of(self[parent].chain, edge);
        let leaf = self.occupy(edge.into(), depth, chain, seq);
        self.link(parent, leaf);
        leaf
    }

    /// Cuts the edge of `node` after its first `at` blocks. The new node above takes them; `node` keeps its
    /// index, its pins and the rest.
    pub fn split(&mut self, node: NodeIndex, at: usize) -> NodeIndex {
        self.unlink(node);
        let edge = std::mem::take(&mut self[node].edge);
        let (head, tail) = edge.split_at(at);
        let n = &self[node];
        let (parent, seq, locks, hits, rank) = (n.parent, n.seq, n.locks, n.hits, n.rank);
        let upper = self.add(parent, head, seq);
        let n = &mut self[upper];
        (n.locks, n.hits, n.rank) = (locks, hits, rank);
        self[node].edge = tail.into();
        self.link(upper, node);
        upper
    }

    /// Removes a leaf.
    pub fn remove(&mut self, leaf: NodeIndex) {
        self.unlink(leaf);
        self.vacate(leaf);
    }

    fn occupy(&mut self, edge: Box<[Block]>, depth: u32, chain: u64, seq: SeqId) -> NodeIndex {
        let mut node = Node {
            edge,
            depth,
            chain,
            seq,
            pins: 0,
            locks: 0,
            hits: 0,
            rank: Rank::default(),
            parent: NIL,
            first_child: NIL,
            next_sibling: NIL,
            prev_sibling: NIL,
            hash: 0,
            next_in_bucket: NIL,
            generation: 0,
        };
        if let Some(slot) = self.free.pop() {
            node.generation = self[slot].generation;
            self[slot] = node;
            return slot;
        }
        self.slots.push(node);
        (self.slots.len() - 1) as NodeIndex
    }

    fn vacate(&mut self, node: NodeIndex) {
        let n = &mut self[node];
        n.edge = Box::default();
        n.generation = n.generation.wrapping_add(1);
        self.free.push(node);
    }

    /// Makes `node` the first child of `parent`.
    fn link(&mut self, parent: NodeIndex, node: NodeIndex) {
        let next = std::mem::replace(&mut self[parent].first_child, node);
        if next != NIL {
            self[next].prev_sibling = node;
        }
        let hash = hash(parent, &self[node].edge[0]);
        let n = &mut self[node];
        (n.parent, n.hash) = (parent, hash);
        (n.prev_sibling, n.next_sibling) = (NIL, next);
        self.enter(node);
        if self.slots.len() > self.buckets.len() {
            self.grow();
        }
    }

    fn unlink(&mut self, node: NodeIndex) {
        let n = &self[node];
        let (parent, prev, next) = (n.parent, n.prev_sibling, n.next_sibling);
        let (bucket, after) = (self.bucket(n.hash), n.next_in_bucket);
        if next != NIL {
            self[next].prev_sibling = prev;
        }
        if prev == NIL {
            self[parent].first_child = next;
        } else {
            self[prev].next_sibling = next;
        }
        let mut at = self.buckets[bucket];
        if at == node {
            self.buckets[bucket] = after;
            return;
        }
        while self[at].next_in_bucket != node {
            at = self[at].next_in_bucket;
        }
        self[at].next_in_bucket = after;
    }

    /// Puts `node` into its chain.
    fn enter(&mut self, node: NodeIndex) {
        let bucket = self.bucket(self[node].hash);
        self[node].next_in_bucket = std::mem::replace(&mut self.buckets[bucket], node);
    }

    /// Doubles the table. Only with every live node linked.
    fn grow(&mut self) {
        self.buckets = vec![NIL; self.buckets.len() * 2];
        for n in 0..self.slots.len() as NodeIndex {
            if !self[n].edge.is_empty() {
                self.enter(n);
            }
        }
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}

impl Index<NodeIndex> for Nodes {
    type Output = Node;

    fn index(&self, node: NodeIndex) -> &Node {
        &self.slots[node as usize]
    }
}

impl IndexMut<NodeIndex> for Nodes {
    fn index_mut(&mut self, node: NodeIndex) -> &mut Node {
        &mut self.slots[node as usize]
    }
}
