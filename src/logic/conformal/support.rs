//! Where the calibration set has been: outside of it the bound is an extrapolation, and promises nothing.
//!
//! A feature's range runs between its `DEPTH`-th smallest and `DEPTH`-th largest value, plus a margin, so
//! that one odd request doesn't open a whole regime. It only grows; idle traffic never reaches a busy state.
//!
//! The best-effort lane's load takes no state out of the support: what it can cost is bounded, and in the estimate. Else
//! a lane that fills once would take away all promises, send everybody into the lane, and keep it full.

use serde::{Deserialize, Serialize};

use super::features::{COUNT, Feature, Features, NAMES};

/// How many observations must lie at or beyond an edge.
const DEPTH: usize = 8;

/// Features of the lane that yields.
const YIELDING: [&str; 2] = [
    NAMES[Feature::BestEffortRunning as usize],
    NAMES[Feature::BestEffortTokens as usize],
];

/// See the module's text. Observing and asking are O(features).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Support {
    /// The smallest values of each feature, ascending: all features' first, then all their second. A decision looks at
    /// the last ones alone, which are a cache line.
    low: [[f32; COUNT]; DEPTH],
    /// The largest, negated: ascending too.
    high: [[f32; COUNT]; DEPTH],
}

impl Default for Support {
    fn default() -> Self {
        let none = [[f32::INFINITY; COUNT]; DEPTH];
        Self {
            low: none,
            high: none,
        }
    }
}

impl<'a> FromIterator<&'a Features> for Support {
    fn from_iter<I: IntoIterator<Item = &'a Features>>(seen: I) -> Self {
        let mut this = Self::default();
        seen.into_iter().for_each(|x| this.observe(x));
        this
    }
}

impl Support {
    /// Takes an observation into the ranges.
    pub fn observe(&mut self, x: &Features) {
        for (feature, x) in x.0.into_iter().enumerate() {
            keep_smallest(&mut self.low, feature, x);
            keep_smallest(&mut self.high, feature, -x);
        }
    }

    /// The first feature that lies outside of its range by more than `margin` × the range's width.
    #[must_use]
    pub fn outside(&self, x: &Features, margin: f32) -> Option<&'static str> {
        let ends = self.low[DEPTH - 1].iter().zip(&self.high[DEPTH - 1]);
        ends.zip(x.0)
            .zip(NAMES)
            .map(|(((low, high), x), name)| {
                let (low, high) = (*low, -*high);
                let slack = margin * (high - low).max(0.0);
                (x >= low - slack && x <= high + slack, name)
            })
            .find_map(|(inside, name)| (!inside && !YIELDING.contains(&name)).then_some(name))
    }
}

/// Puts `x` among the ascending values of a feature if it is smaller than the last, which it pushes out.
fn keep_smallest(kept: &mut [[f32; COUNT]; DEPTH], feature: usize, mut x: f32) {
    for row in kept {
        if x < row[feature] {
            std::mem::swap(&mut x, &mut row[feature]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(waiting: f32) -> Features {
        let mut x = [1.0; COUNT];
        x[7] = waiting;
        Features(x)
    }

    #[test]
    fn the_best_effort_lane_takes_no_promise_away() {
        let support: Support = [at(0.0); 100].iter().collect();
        let mut busy = at(0.0);
        busy.0[Feature::BestEffortRunning as usize] = 9.0;
        busy.0[Feature::BestEffortTokens as usize] = 900.0;
        assert_eq!(support.outside(&busy, 0.1), None);
        busy.0[Feature::StepMs as usize] = 90.0;
        assert_eq!(support.outside(&busy, 0.1), Some("step_ms"));
    }

    #[test]
    fn a_range_needs_several_witnesses_and_has_a_margin() {
        let mut support: Support = [at(0.0); 100].iter().collect();
        assert_eq!(support.outside(&at(0.0), 0.1), None);
        assert_eq!(support.outside(&at(1.0), 0.1), Some("waiting"));
        for i in 0..DEPTH {
            assert_eq!(
                support.outside(&at(10.0), 0.1),
                Some("waiting"),
                "after {i}"
            );
            support.observe(&at(10.0 + i as f32));
        }
        assert_eq!(support.outside(&at(11.0), 0.1), None);
        assert_eq!(support.outside(&at(11.5), 0.1), Some("waiting"));
        assert_eq!(support.outside(&at(f32::NAN), 0.1), Some("waiting"));
        assert_eq!(
            Support::default().outside(&at(0.0), 0.1),
            Some("prompt_tokens")
        );
    }
}
