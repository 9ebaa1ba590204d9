//! What a controller without a calibration file learns its models from: the latest completions, and how many of them
//! the last model was not fitted on.
//!
//! A model that was learnt from a flood says little of the calm after it. So the controller goes on fitting: each
//! time on all that is kept but the newest, which calibrate it.

use std::collections::VecDeque;

use super::predictor::Row;

/// Completions that calibrate a model, other than the first, when it comes: of half as many the 99% is the highest score.
const HELD_BACK: usize = 256;
/// What is kept beside these, in multiples of what the first model is fitted on.
const KEPT: usize = 4;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct History {
    rows: VecDeque<Row>,
    /// Completions before the first model; 0 to learn nothing.
    wanted: usize,
    /// Since something was given out to be fitted on.
    since: usize,
    /// The newest rows, which were not given out.
    fresh: usize,
}

impl History {
    pub fn new(wanted: usize) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Whether anything is to be learnt at all.
    pub fn learns(&self) -> bool {
        self.wanted > 0
    }

    /// Completions that are kept.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn push(&mut self, row: Row) {
        if self.wanted == 0 {
            return;
        }
        if self.rows.len() >= KEPT * self.wanted + HELD_BACK {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        self.since += 1;
        self.fresh = (self.fresh + 1).min(self.rows.len());
    }

    /// What the next model is to be fitted on, if one is due: the first when `wanted` have completed, another one
    /// each time that half as many have.
    pub fn due(&mut self, is_first: bool) -> Option<Vec<Row>> {
        let (needed, held_back) = match is_first {
            true => (self.wanted, 0),
            false => (self.wanted.div_ceil(2), HELD_BACK),
        };
        let n = self.rows.len().saturating_sub(held_back);
        if self.wanted == 0 || self.since < needed || n < needed {
            return None;
        }
        (self.since, self.fresh) = (0, held_back);
        Some(self.rows.iter().take(n).copied().collect())
    }

    /// What calibrates the model that was fitted on what was last given out; `None` if it is too little for more than
    /// the first.
    pub fn fresh(&self) -> Option<impl Iterator<Item = &Row>> {
        let from = self.rows.len() - self.fresh;
        (self.fresh >= HELD_BACK).then(|| self.rows.range(from..))
    }
}

#[cfg(test)]
mod tests {
    use super::super::features::{COUNT, Features};
    use super::super::predictor::Latency;
    use super::*;

    fn row(ms: usize) -> Row {
        Row {
            features: Features([0.0; COUNT]),
            latency: Latency::Exact(ms as f64),
        }
    }

    #[test]
    fn a_model_is_never_calibrated_on_what_it_was_fitted_on() {
        let mut history = History::new(200);
        let mut given = Vec::new();
        for i in 0..3000 {
            history.push(row(i));
            let fitted = history.due(given.is_empty());
            if let Some(fitted) = fitted {
                let newest = fitted.last().unwrap().latency.ms() as usize;
                let fresh: Vec<usize> = history
                    .fresh()
                    .map(|rows| rows.map(|r| r.latency.ms() as usize).collect())
                    .unwrap_or_default();
                assert_eq!(newest + fresh.len(), i);
                assert!(given.is_empty() || fresh.len() == HELD_BACK);
                assert!(fitted.len() <= KEPT * 200 + HELD_BACK - fresh.len());
                given.push(i + 1);
            }
        }
        assert_eq!(given[..4], [200, 356, 456, 556]);
        assert_eq!(History::new(0).due(true), None);
    }
}
