//! What holds of the tree after every operation, as a function that says what does not.

use std::collections::BTreeSet;

use super::PrefixCache;
use super::block::same;
use super::nodes::{NodeIndex, ROOT};
use crate::logic::kv::BLOCK_TOKENS;

impl PrefixCache {
    /// Invariants: every leaf owns an id of its own and an inner node names that of a leaf below it; a node
    /// carries the locks taken at it and those of its children; siblings differ in their first block; the
    /// queue holds exactly the leaves without a lock; what is counted is what is there, and as much is in
    /// the index. O(tree).
    ///
    /// # Panics
    /// If one does not hold.
    pub fn assert_invariants(&self) {
        let mut owned = BTreeSet::new();
        let (mut nodes, mut blocks, mut locked, mut evictable) = (0, 0, 0, 0);
        for n in self.nodes.live() {
            let node = &self.nodes[n];
            nodes += 1;
            blocks += node.edge.len() as u32;
            locked += u32::from(node.locks > 0) * node.edge.len() as u32;
            let above = self.nodes[node.parent].depth;
            assert_eq!(node.depth, above + node.edge.len() as u32, "depth");
            let found = self.nodes.child(node.parent, &node.edge[0]);
            assert_eq!(found, Some(n), "a node can't be found");
            if node.is_leaf() {
                assert!(owned.insert(node.seq), "two leaves own {:?}", node.seq);
            }
            self.assert_children(n);
            if self.evictable(n) {
                evictable += 1;
                assert!(self.queue.contains(node.rank, n), "not in the queue");
            }
        }
        self.assert_children(ROOT);
        assert_eq!(self.queue.len(), evictable, "a stale entry in the queue");
        assert_eq!(self.index.len(), blocks as usize, "the index");
        assert_eq!(self.usage.nodes, nodes, "nodes");
        assert_eq!(self.usage.leaves as usize, owned.len(), "leaves");
        assert_eq!(self.usage.tokens_held, blocks * BLOCK_TOKENS, "held");
        assert_eq!(self.usage.tokens_locked, locked * BLOCK_TOKENS, "locked");
    }

    fn assert_children(&self, parent: NodeIndex) {
        let above = &self.nodes[parent];
        let children: Vec<_> = self.nodes.children(parent).collect();
        let mut locks = above.pins;
        for (i, &c) in children.iter().enumerate() {
            let child = &self.nodes[c];
            locks += child.locks;
            assert_eq!(child.parent, parent, "a child of another");
            assert!(
                parent == ROOT || child.rank <= above.rank,
                "outranks its parent"
            );
            let first = &child.edge[0];
            let twin = |&s: &NodeIndex| same(&self.nodes[s].edge[0], first);
            assert!(!children[..i].iter().any(twin), "siblings begin alike");
        }
        if parent != ROOT {
            assert_eq!(above.locks, locks, "locks");
            // By induction, the name is that of a leaf below.
            let named = |&c: &NodeIndex| self.nodes[c].seq == above.seq;
            assert!(
                above.is_leaf() || children.iter().any(named),
                "a name of no leaf below"
            );
        }
    }
}
