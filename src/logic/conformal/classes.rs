//! Mondrian classes: calibration within classes of reply cap and load, so that a promise holds for the long
//! and for the loaded as well, and not only on average over all.
//!
//! Classes that are too small are pooled with their neighbours in length, but never across loads: what is
//! known of an idle engine must not arm promises for a busy one.

/// Where the classes are cut: a class begins at each edge. Ascending; without any, all are one class.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Edges {
    pub max_tokens: Vec<u32>,
    /// Promised requests that wait or run.
    pub load: Vec<u32>,
}

impl Edges {
    /// Those that are reported: replies of up to 63, 127, 255 and more tokens; an idle engine, one that batches, one
    /// that is about full and one with a queue.
    #[must_use]
    pub fn reported() -> Self {
        Self {
            max_tokens: vec![64, 128, 256],
            load: vec![1, 8, 24],
        }
    }

    fn lengths(&self) -> usize {
        self.max_tokens.len() + 1
    }

    fn class(&self, max_tokens: u32, load: u32) -> usize {
        let bin = |edges: &[u32], x| edges.partition_point(|e| *e <= x);
        bin(&self.load, load) * self.lengths() + bin(&self.max_tokens, max_tokens)
    }
}

/// Classes and the groups that they are pooled in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Classes {
    edges: Edges,
    /// Of each class, by load and then by length.
    group_of: Vec<usize>,
    counts: Vec<usize>,
    groups: usize,
}

/// Neighbouring classes that are calibrated together. A range begins with its first number and ends before its
/// second; the last has no end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Group {
    pub load: (u32, Option<u32>),
    pub max_tokens: (u32, Option<u32>),
    pub classes: usize,
    pub members: usize,
}

impl Classes {
    /// Pools the classes of each load until every group of it holds at least `minimum` of `members`
    /// (max_tokens, load), or one group is left: the smallest group joins the smaller of its neighbours.
    #[must_use]
    pub fn pooled(
        edges: Edges,
        members: impl IntoIterator<Item = (u32, u32)>,
        minimum: usize,
    ) -> Self {
        let lengths = edges.lengths();
        let mut counts = vec![0; lengths * (edges.load.len() + 1)];
        for (max_tokens, load) in members {
            counts[edges.class(max_tokens, load)] += 1;
        }
        let mut group_of = Vec::with_capacity(counts.len());
        let mut groups = 0;
        for row in counts.chunks_exact(lengths) {
            for classes in pool(row, minimum) {
                group_of.extend(std::iter::repeat_n(groups, classes));
                groups += 1;
            }
        }
        Self {
            edges,
            group_of,
            counts,
            groups,
        }
    }

    /// Every group, by number.
    #[must_use]
    pub fn describe(&self) -> Vec<Group> {
        let lengths = self.edges.lengths();
        let range = |edges: &[u32], from: usize, to: usize| {
            let begin = from.checked_sub(1).map_or(0, |i| edges[i]);
            (begin, edges.get(to).copied())
        };
        let group = |number: usize| {
            let of = |class: &usize| self.group_of[*class] == number;
            let classes: Vec<usize> = (0..self.group_of.len()).filter(of).collect();
            let (first, last) = (classes[0], classes[classes.len() - 1]);
            Group {
                load: range(&self.edges.load, first / lengths, first / lengths),
                max_tokens: range(&self.edges.max_tokens, first % lengths, last % lengths),
                classes: classes.len(),
                members: classes.iter().map(|c| self.counts[*c]).sum(),
            }
        };
        (0..self.groups).map(group).collect()
    }

    /// How many groups there are; they are numbered from 0.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The group of a request with this cap at this load.
    #[must_use]
    pub fn group(&self, max_tokens: u32, load: u32) -> usize {
        self.group_of[self.edges.class(max_tokens, load)]
    }
}

/// How many neighbouring classes each group takes.
fn pool(counts: &[usize], minimum: usize) -> Vec<usize> {
    let mut groups: Vec<(usize, usize)> = counts.iter().map(|n| (*n, 1)).collect();
    while groups.len() > 1 {
        let Some((at, (n, _))) = groups.iter().copied().enumerate().min_by_key(|(_, g)| g.0) else {
            break;
        };
        if n >= minimum {
            break;
        }
        let left = match at {
            0 => 0,
            _ if at + 1 == groups.len() || groups[at - 1].0 <= groups[at + 1].0 => at - 1,
            _ => at,
        };
        let (n, classes) = groups.remove(left + 1);
        groups[left].0 += n;
        groups[left].1 += classes;
    }
    groups.into_iter().map(|(_, classes)| classes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_classes_join_their_smaller_neighbour_but_never_another_load() {
        assert_eq!(pool(&[50, 3, 9], 10), [1, 2]);
        assert_eq!(pool(&[1, 1, 1], 10), [3]);
        assert_eq!(pool(&[50, 0, 50], 0), [1, 1, 1]);
        let edges = Edges {
            max_tokens: vec![100],
            load: vec![4],
        };
        // 20 idle requests of each length, and none under load.
        let idle = (0..40).map(|i| (if i % 2 == 0 { 10 } else { 100 }, i % 4));
        let classes = Classes::pooled(edges, idle, 10);
        assert_eq!(classes.groups(), 3);
        assert_ne!(classes.group(99, 3), classes.group(100, 3));
        assert_eq!(classes.group(99, 4), classes.group(100, 9));
        let group = |load, max_tokens, classes, members| Group {
            load,
            max_tokens,
            classes,
            members,
        };
        let expected = [
            group((0, Some(4)), (0, Some(100)), 1, 20),
            group((0, Some(4)), (100, None), 1, 20),
            group((4, None), (0, None), 2, 0),
        ];
        assert_eq!(classes.describe(), expected);
    }

    proptest! {
        #[test]
        fn pools_are_a_partition_and_large_enough(
            counts in prop::collection::vec(0usize..9, 1..8), minimum in 0usize..12,
        ) {
            let groups = pool(&counts, minimum);
            prop_assert_eq!(groups.iter().sum::<usize>(), counts.len());
            let mut rest = &counts[..];
            for classes in &groups {
                let (group, after) = rest.split_at(*classes);
                prop_assert!(groups.len() == 1 || group.iter().sum::<usize>() >= minimum);
                rest = after;
            }
        }
    }
}
