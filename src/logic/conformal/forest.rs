//! Boosted trees as evaluated: each a run of nodes in one array, of which only the splits that were wanted are kept.
//!
//! A decision finds the processor's caches full of weights, and what it costs is the memory that it reads: most trees of
//! a fitted forest have few splits, and those with none are in the base value. The left child of a node follows it, the
//! right one comes `right` nodes after it; a leaf is a node that goes nowhere, so that every descent takes as many
//! steps, each an addition and a comparison without a branch. Evaluation allocates nothing.

use serde::{Deserialize, Serialize};

/// A split of a tree: a row goes right where its value is greater than the threshold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cut {
    pub feature: u16,
    pub threshold: f32,
}

/// 8 bytes, 8 of them a cache line.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Node {
    /// The threshold of a split, the value of a leaf.
    value: f32,
    feature: u16,
    /// How far away the right child is; 0 for a leaf.
    right: u16,
}

/// The sum of a base value and of one leaf of each tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Forest {
    features: usize,
    depth: u32,
    base: f32,
    nodes: Vec<Node>,
    /// Where each tree begins.
    roots: Vec<u32>,
}

impl Forest {
    pub(super) fn new(features: usize, depth: u32, base: f32) -> Self {
        Self {
            features,
            depth,
            base,
            nodes: Vec::new(),
            roots: Vec::new(),
        }
    }

    /// Adds a perfect binary tree in level order, the children of `splits[i]` at `2i + 1` and `2i + 2`, the leaves
    /// after them. Where there is no split everything goes left.
    pub(super) fn push(&mut self, splits: &[Option<Cut>], leaves: &[f32]) {
        assert_eq!(splits.len() + 1, leaves.len());
        assert_eq!(leaves.len(), 1 << self.depth);
        let root = self.nodes.len();
        self.grow(0, splits, leaves);
        if let [leaf] = self.nodes[root..] {
            self.base += leaf.value;
            self.nodes.truncate(root);
        } else {
            self.roots.push(root as u32);
        }
    }

    fn grow(&mut self, from: usize, splits: &[Option<Cut>], leaves: &[f32]) {
        let node = |value, feature| Node {
            value,
            feature,
            right: 0,
        };
        match splits.get(from) {
            None => self.nodes.push(node(leaves[from - splits.len()], 0)),
            Some(None) => self.grow(2 * from + 1, splits, leaves),
            Some(Some(split)) => {
                let at = self.nodes.len();
                self.nodes.push(node(split.threshold, split.feature));
                self.grow(2 * from + 1, splits, leaves);
                self.nodes[at].right = (self.nodes.len() - at) as u16;
                self.grow(2 * from + 2, splits, leaves);
            }
        }
    }

    /// The value for one row.
    ///
    /// # Panics
    /// If the row has fewer values than those that it was fitted on.
    #[must_use]
    pub fn predict_row(&self, row: &[f32]) -> f32 {
        self.roots.iter().fold(self.base, |sum, root| {
            let mut at = *root as usize;
            for _ in 0..self.depth {
                let node = self.nodes[at];
                let left = node.right.min(1);
                at += usize::from(if row[usize::from(node.feature)] > node.value {
                    node.right
                } else {
                    left
                });
            }
            sum + self.nodes[at].value
        })
    }

    /// Whether it can be evaluated on rows of `features` values without a panic and to a finite value: for a
    /// forest that was read from a file.
    #[must_use]
    pub fn is_sound(&self, features: usize) -> bool {
        let end = self.nodes.len();
        self.features == features
            && (1..=12).contains(&self.depth)
            && self.base.is_finite()
            && self.roots.iter().all(|root| (*root as usize) < end)
            && self.nodes.iter().enumerate().all(|(at, node)| {
                node.value.is_finite()
                    && usize::from(node.feature) < features
                    && at + usize::from(node.right) < end
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(feature: u16, threshold: f32) -> Option<Cut> {
        Some(Cut { feature, threshold })
    }

    fn stump(threshold: f32) -> Forest {
        let mut f = Forest::new(2, 1, 1.0);
        f.push(&[cut(1, threshold)], &[10.0, 20.0]);
        f
    }

    #[test]
    fn greater_goes_right_and_without_a_split_all_goes_left() {
        assert_eq!(stump(5.0).predict_row(&[9.0, 5.0]), 11.0);
        assert_eq!(stump(5.0).predict_row(&[0.0, 5.1]), 21.0);
        let mut whole = Forest::new(2, 1, 0.0);
        whole.push(&[None], &[1.0, 2.0]);
        assert_eq!(whole.predict_row(&[f32::INFINITY, 0.0]), 1.0);
        assert!(whole.nodes.is_empty());
    }

    /// The leaf of a tree in level order, by its definition.
    fn leaf(splits: &[Option<Cut>], leaves: &[f32], row: &[f32]) -> f32 {
        let mut at = 0;
        while let Some(split) = splits.get(at) {
            let right = split.is_some_and(|s| row[usize::from(s.feature)] > s.threshold);
            at = 2 * at + 1 + usize::from(right);
        }
        leaves[at - splits.len()]
    }

    proptest! {
        #[test]
        fn a_forest_is_the_sum_of_its_trees(
            trees in prop::collection::vec(
                (prop::collection::vec(prop::option::of((0..3_u16, 0..4_u8)), 7),
                 prop::collection::vec(0..64_u8, 8)), 0..4),
            row in prop::collection::vec(0..5_u8, 3),
        ) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            let mut forest = Forest::new(3, 3, 0.5);
            let mut expected = 0.5;
            for (splits, leaves) in trees {
                let splits: Vec<Option<Cut>> =
                    splits.into_iter().map(|s| s.and_then(|(f, t)| cut(f, f32::from(t)))).collect();
                let leaves: Vec<f32> = leaves.into_iter().map(f32::from).collect();
                forest.push(&splits, &leaves);
                expected += leaf(&splits, &leaves, &row);
            }
            prop_assert_eq!(forest.predict_row(&row), expected);
            prop_assert!(forest.is_sound(3));
        }
    }

    #[test]
    fn an_unsound_forest_is_recognised() {
        let unsound = |spoil: fn(&mut Forest)| {
            let mut forest = stump(5.0);
            assert!(forest.is_sound(2));
            spoil(&mut forest);
            !forest.is_sound(2)
        };
        assert!(!stump(5.0).is_sound(1));
        assert!(unsound(|f| f.nodes[0].value = f32::NAN));
        assert!(unsound(|f| f.nodes[2].value = f32::INFINITY));
        assert!(unsound(|f| f.nodes[0].feature = 2));
        assert!(unsound(|f| f.nodes[0].right = 3));
        assert!(unsound(|f| f.nodes.truncate(2)));
        assert!(unsound(|f| f.roots[0] = 3));
        assert!(unsound(|f| f.depth = 60));
        assert!(unsound(|f| f.base = f32::INFINITY));
    }
}
