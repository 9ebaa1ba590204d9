//! Features cut into bins, and the best splits over them.
//!
//! A row's value in a feature is kept as the number of cuts below it, one byte. Finding the best split of
//! every node of a level is then one pass over the rows a feature, and one over the bins.

/// A split of a node: rows whose bin in `feature` is greater than `cut` go right.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Split {
    pub feature: usize,
    pub cut: u8,
    /// By how much it reduces the sum of squares that one gradient per node leaves over.
    pub gain: f64,
}

/// What a split must leave on either side, and gain.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SplitLimits {
    pub rows: usize,
    pub gain: f64,
}

/// Rows by their bins.
#[derive(Debug)]
pub struct Binned {
    /// One column a feature.
    bins: Vec<Vec<u8>>,
    /// Ascending thresholds a feature; bin b holds what exceeds exactly b of them.
    cuts: Vec<Vec<f32>>,
}

/// Sum and number of the gradients in a bin.
type Cell = (f64, u32);

impl Binned {
    /// Cuts each of `columns` (finite, equally long) into at most `bins_max` bins of about as many rows each,
    /// or one for each distinct value where there are no more.
    #[must_use]
    pub fn new(columns: &[Vec<f32>], bins_max: usize) -> Self {
        let cuts: Vec<Vec<f32>> = columns.iter().map(|c| cuts(c, bins_max)).collect();
        let bins = columns
            .iter()
            .zip(&cuts)
            .map(|(column, cuts)| {
                let bin = |v: &f32| cuts.partition_point(|cut| v > cut) as u8;
                column.iter().map(bin).collect()
            })
            .collect();
        Self { bins, cuts }
    }

    #[must_use]
    pub fn features(&self) -> usize {
        self.bins.len()
    }

    /// The value that rows must exceed to go right at this cut.
    #[must_use]
    pub fn threshold(&self, feature: usize, cut: u8) -> f32 {
        self.cuts[feature][usize::from(cut)]
    }

    /// The best split of each of `nodes` nodes, over the rows in `sample`; `None` where no split keeps
    /// to the limits. Ties go to the first feature and the lowest cut.
    #[must_use]
    pub fn best_splits(
        &self,
        sample: &[u32],
        gradient: &[f32],
        node_of: &[u16],
        nodes: usize,
        limits: SplitLimits,
    ) -> Vec<Option<Split>> {
        let mut best: Vec<Option<Split>> = vec![None; nodes];
        let mut histogram: Vec<Cell> = Vec::new();
        for (feature, (bins, cuts)) in self.bins.iter().zip(&self.cuts).enumerate() {
            let width = cuts.len() + 1;
            if width == 1 {
                continue;
            }
            histogram.clear();
            histogram.resize(nodes * width, (0.0, 0));
            for &row in sample {
                let r = row as usize;
                let cell = &mut histogram[usize::from(node_of[r]) * width + usize::from(bins[r])];
                cell.0 += f64::from(gradient[r]);
                cell.1 += 1;
            }
            for (node, best) in histogram.chunks_exact(width).zip(&mut best) {
                if let Some((cut, gain)) = best_cut(node, limits)
                    && best.is_none_or(|b| gain > b.gain)
                {
                    *best = Some(Split { feature, cut, gain });
                }
            }
        }
        best
    }

    /// Moves every row from its node of this level to its node of the next.
    pub fn descend(&self, splits: &[Option<Split>], node_of: &mut [u16]) {
        for (row, node) in node_of.iter_mut().enumerate() {
            let right =
                splits[usize::from(*node)].is_some_and(|s| self.bins[s.feature][row] > s.cut);
            *node = 2 * *node + u16::from(right);
        }
    }
}

/// The cut with the largest gain over a node's bins.
fn best_cut(node: &[Cell], limits: SplitLimits) -> Option<(u8, f64)> {
    let (sum, count) = node.iter().fold((0.0, 0), |(s, n), (g, c)| (s + g, n + c));
    if (count as usize) < 2 * limits.rows {
        return None;
    }
    let score = |s: f64, n: u32| s * s / f64::from(n);
    let whole = score(sum, count);
    let mut left = (0.0, 0);
    let mut best = None;
    for (cut, (g, c)) in node[..node.len() - 1].iter().enumerate() {
        left = (left.0 + g, left.1 + c);
        let right = (sum - left.0, count - left.1);
        if (left.1.min(right.1) as usize) < limits.rows {
            continue;
        }
        let gain = score(left.0, left.1) + score(right.0, right.1) - whole;
        if gain > best.map_or(limits.gain.max(1e-6), |(_, g)| g) {
            best = Some((cut as u8, gain));
        }
    }
    best
}

/// At most `bins_max - 1` thresholds between distinct values of the column.
fn cuts(column: &[f32], bins_max: usize) -> Vec<f32> {
    let mut sorted = column.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let distinct = 1 + sorted.windows(2).filter(|w| w[0] < w[1]).count();
    let step = if distinct <= bins_max {
        1
    } else {
        sorted.len().div_ceil(bins_max)
    };
    let mut cuts = Vec::new();
    let mut next = step;
    for (i, pair) in sorted.windows(2).enumerate() {
        let (low, high) = (pair[0], pair[1]);
        if low < high && i + 1 >= next {
            // Half way, unless rounding made it the upper one, which would go left with the lower.
            let middle = low + (high - low) / 2.0;
            cuts.push(if middle < high { middle } else { low });
            next = i + 1 + step;
        }
    }
    cuts.truncate(bins_max - 1);
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbouring_floats_still_fall_into_two_bins() {
        let (a, b) = (1.0_f32, 1.0_f32.next_up());
        let binned = Binned::new(&[vec![b, a, a]], 8);
        assert_eq!(binned.bins[0], [1, 0, 0]);
        assert!(a <= binned.threshold(0, 0) && b > binned.threshold(0, 0));
    }

    proptest! {
        /// Against all splits of all nodes, each summed anew from the raw values.
        #[test]
        fn best_split_is_the_best_of_all(
            rows in prop::collection::vec((0u8..4, 0u8..3, prop::bool::ANY, 0u16..2), 1..40),
            leaf_rows in 1usize..4,
        ) {
            let columns = [
                rows.iter().map(|r| f32::from(r.0)).collect::<Vec<_>>(),
                rows.iter().map(|r| f32::from(r.1) * 7.0 - 3.0).collect(),
            ];
            let gradient: Vec<f32> = rows.iter().map(|r| if r.2 { 0.75 } else { -0.25 }).collect();
            let limits = SplitLimits { rows: leaf_rows, gain: 0.0 };
            let node_of: Vec<u16> = rows.iter().map(|r| r.3).collect();
            let sample: Vec<u32> = (0..rows.len() as u32).filter(|i| i % 5 != 4).collect();
            let binned = Binned::new(&columns, 8);
            let found = binned.best_splits(&sample, &gradient, &node_of, 2, limits);
            let mut below = node_of.clone();
            binned.descend(&found, &mut below);
            for (row, node) in node_of.iter().enumerate() {
                let right = found[usize::from(*node)]
                    .is_some_and(|s| columns[s.feature][row] > binned.threshold(s.feature, s.cut));
                prop_assert_eq!(below[row], 2 * node + u16::from(right));
            }
            let part = |keep: &dyn Fn(usize) -> bool| {
                let in_it = sample.iter().map(|r| *r as usize).filter(|r| keep(*r));
                let (s, n) = in_it.fold((0.0, 0), |(s, n), r| (s + f64::from(gradient[r]), n + 1));
                (n, if n == 0 { 0.0 } else { s * s / f64::from(n) })
            };
            for (node, found) in found.iter().enumerate() {
                let inside = |r: usize| usize::from(node_of[r]) == node;
                let mut best = 0.0_f64;
                for column in &columns {
                    for t in column {
                        let (n_left, left) = part(&|r| inside(r) && column[r] <= *t);
                        let (n_right, right) = part(&|r| inside(r) && column[r] > *t);
                        if n_left as usize >= leaf_rows && n_right as usize >= leaf_rows {
                            best = best.max(left + right - part(&inside).1);
                        }
                    }
                }
                let gain = found.map_or(0.0, |s| s.gain);
                prop_assert!((gain - best).abs() < 1e-6, "{gain} {best}");
            }
        }
    }
}
