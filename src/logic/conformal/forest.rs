//! Boosted trees as evaluated: perfect binary trees in level order, one after the other in an array.
//!
//! The children of node `i` are `2i + 1` and `2i + 2`, so a tree needs no pointers, descending is an addition
//! and a comparison without a branch, and the 8 bytes of a node keep a hundred trees of depth 4 within 20 kB.
//! A node that wanted no split sends everything left. Evaluation allocates nothing.

use serde::{Deserialize, Serialize};

/// A row goes right where its value is greater than the threshold.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub feature: u16,
    pub threshold: f32,
}

impl Node {
    /// Everything left.
    pub const PASS: Self = Self {
        feature: 0,
        threshold: f32::INFINITY,
    };
}

/// The sum of a base value and of one leaf of each tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Forest {
    features: usize,
    depth: u32,
    base: f32,
    nodes: Vec<Node>,
    leaves: Vec<f32>,
}

impl Forest {
    pub(super) fn new(features: usize, depth: u32, base: f32) -> Self {
        Self {
            features,
            depth,
            base,
            nodes: Vec::new(),
            leaves: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, nodes: &[Node], leaves: &[f32]) {
        assert_eq!(nodes.len() + 1, leaves.len());
        assert_eq!(leaves.len(), 1 << self.depth);
        self.nodes.extend_from_slice(nodes);
        self.leaves.extend_from_slice(leaves);
    }

    /// The value for one row.
    ///
    /// # Panics
    /// If the row has fewer values than those that it was fitted on.
    #[must_use]
    pub fn predict_row(&self, row: &[f32]) -> f32 {
        let leaves = 1_usize << self.depth;
        let trees = self
            .nodes
            .chunks_exact(leaves - 1)
            .zip(self.leaves.chunks_exact(leaves));
        trees.fold(self.base, |sum, (nodes, values)| {
            let mut at = 0;
            for _ in 0..self.depth {
                let node = nodes[at];
                at = 2 * at + 1 + usize::from(row[usize::from(node.feature)] > node.threshold);
            }
            sum + values[at + 1 - leaves]
        })
    }

    /// Whether it can be evaluated on rows of `features` values without a panic and to a finite value: for a
    /// forest that was read from a file.
    #[must_use]
    pub fn is_sound(&self, features: usize) -> bool {
        if self.features != features || !(1..=12).contains(&self.depth) {
            return false;
        }
        let leaves = 1_usize << self.depth;
        self.leaves.len().is_multiple_of(leaves)
            && self.nodes.len() == self.leaves.len() / leaves * (leaves - 1)
            && self.base.is_finite()
            && self.leaves.iter().all(|v| v.is_finite())
            && self
                .nodes
                .iter()
                .all(|n| usize::from(n.feature) < features && !n.threshold.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stump(threshold: f32) -> Forest {
        let mut f = Forest::new(2, 1, 1.0);
        f.push(
            &[Node {
                feature: 1,
                threshold,
            }],
            &[10.0, 20.0],
        );
        f
    }

    #[test]
    fn greater_goes_right_and_a_pass_goes_left() {
        assert_eq!(stump(5.0).predict_row(&[9.0, 5.0]), 11.0);
        assert_eq!(stump(5.0).predict_row(&[0.0, 5.1]), 21.0);
        let mut pass = Forest::new(2, 1, 0.0);
        pass.push(&[Node::PASS], &[1.0, 2.0]);
        assert_eq!(pass.predict_row(&[f32::INFINITY, 0.0]), 1.0);
    }

    #[test]
    fn an_unsound_forest_is_recognised() {
        assert!(stump(5.0).is_sound(2));
        assert!(!stump(5.0).is_sound(1));
        assert!(!stump(f32::NAN).is_sound(2));
        let mut short = stump(5.0);
        short.leaves.pop();
        assert!(!short.is_sound(2));
        let mut endless = stump(5.0);
        endless.depth = 60;
        assert!(!endless.is_sound(2));
    }
}
