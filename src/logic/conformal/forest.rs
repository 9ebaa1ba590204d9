//! Boosted trees as evaluated: perfect binary trees in level order, one after the other in an array.
//!
//! The children of node `i` are `2i + 1` and `2i + 2`, so a tree needs no pointers, descending is an addition
//! and a comparison without a branch, and the 8 bytes of a node keep a hundred trees of depth 4 within 20 kB.
//! A node that wanted no split sends everything left. Evaluation allocates nothing.
//!
//! Decisions are tens of milliseconds apart, so the trees are not in the core's cache, and waiting for them is most of
//! an evaluation. Several are descended abreast, a level at a time, so that it waits for all of them at once.

use serde::{Deserialize, Serialize};

/// Trees that are descended together: about as many as there may be cache lines under way.
const ABREAST: usize = 16;

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
        let inner = leaves - 1;
        let (nodes, values) = (
            self.nodes.chunks(ABREAST * inner),
            self.leaves.chunks(ABREAST * leaves),
        );
        nodes.zip(values).fold(self.base, |sum, (nodes, values)| {
            let mut at = [0; ABREAST];
            for _ in 0..self.depth {
                for (tree, at) in nodes.chunks_exact(inner).zip(&mut at) {
                    let node = tree[*at];
                    let right = row[usize::from(node.feature)] > node.threshold;
                    *at = 2 * *at + 1 + usize::from(right);
                }
            }
            let ends = values.chunks_exact(leaves).zip(at);
            ends.fold(sum, |sum, (values, at)| sum + values[at - inner])
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

    /// More trees than are descended together, and a rest.
    #[test]
    fn trees_are_summed_in_their_order_each_by_its_own_path() {
        let mut forest = Forest::new(2, 2, 0.25);
        let mut expected = 0.25_f32;
        let row = [3.5, 7.5];
        for tree in 0..2 * ABREAST + 3 {
            let node = |feature, threshold: usize| Node {
                feature,
                threshold: threshold as f32,
            };
            let (first, second) = (tree % 7, tree % 11);
            let nodes = [node(0, first), node(1, second), node(1, second + 1)];
            let leaves = [1.1, 10.1, 100.1, 1000.1].map(|v| v / (tree + 1) as f32);
            forest.push(&nodes, &leaves);
            let right = row[0] > first as f32;
            let below = row[1] > (second + usize::from(right)) as f32;
            expected += leaves[2 * usize::from(right) + usize::from(below)];
        }
        assert_eq!(forest.predict_row(&row), expected);
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
