//! From an estimate to a bound that holds: one-sided split-conformal calibration.
//!
//! Each calibration request is scored by how badly the model under-predicted it. If the next request is
//! exchangeable with them, its own score is equally likely to take any of the n + 1 ranks, so the
//! `ceil((n + 1)(1 − α))`-th smallest of the n is exceeded with probability at most α, whatever the model is
//! worth. Where that rank is n + 1 no observed score is high enough, and there is no such bound.

use super::predictor::Estimate;

/// The share of promises that may be broken, in (0, 1); 1 − α is the confidence of the promise.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Alpha(f64);

impl Alpha {
    #[must_use]
    pub fn new(alpha: f64) -> Option<Self> {
        (alpha > 0.0 && alpha < 1.0).then_some(Self(alpha))
    }

    /// The α of a confidence, kept within what can be calibrated at all.
    #[must_use]
    pub fn of_confidence(confidence: f64) -> Self {
        Self((1.0 - confidence).clamp(1e-6, 1.0 - 1e-6))
    }

    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// The fewest observations that support it: the smallest n with `ceil((n + 1)(1 − α)) <= n`.
    #[must_use]
    pub fn needed(self) -> usize {
        ((1.0 / self.0 - 1e-9).ceil() as usize)
            .saturating_sub(1)
            .max(1)
    }
}

/// The level has no bound: more observations are needed than there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this level needs at least {needed} observations")]
pub struct TooFew {
    pub needed: usize,
}

/// How an outcome is held against its estimate. All of them make valid bounds; they differ in width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Score {
    /// `log1p(y) − log1p(hi)`: the correction is a factor, and means the same to the fast and to the slow.
    LogRatio,
    /// `y − hi`: one addend for all, set by the slowest regime.
    Absolute,
    /// `(y − hi) / (hi − lo)`: set by the narrowest interval.
    WidthScaled,
}

impl Score {
    /// The score of a latency of `ms`.
    #[must_use]
    pub fn of(self, ms: f64, estimate: &Estimate) -> f64 {
        match self {
            Self::LogRatio => ms.ln_1p() - estimate.hi.ln_1p(),
            Self::Absolute => ms - estimate.hi,
            Self::WidthScaled => (ms - estimate.hi) / width(estimate),
        }
    }

    /// The latency, in ms and at least 0, whose score is `q`: the inverse of [`Self::of`].
    #[must_use]
    pub fn bound(self, q: f64, estimate: &Estimate) -> f64 {
        let ms = match self {
            // As (log1p(hi) + q).exp_m1(), without the logarithm.
            Self::LogRatio => estimate.hi + (1.0 + estimate.hi) * q.exp_m1(),
            Self::Absolute => estimate.hi + q,
            Self::WidthScaled => estimate.hi + q * width(estimate),
        };
        ms.max(0.0)
    }
}

/// At least a millisecond: the two quantiles may meet, or cross.
fn width(estimate: &Estimate) -> f64 {
    (estimate.hi - estimate.lo).max(1.0)
}

/// One calibration score.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scored {
    pub score: f64,
    /// The true score is this or higher.
    pub censored: bool,
}

/// Scores in order, with the probability that the next one does not exceed them.
///
/// Each score, and the next request's own (at infinity), weighs 1 / (n + 1). A censored one hands its weight
/// on, in equal parts, to all that are larger: Kaplan and Meier's estimate, which takes a lower bound for no
/// more than it says. Without censoring the quantile is exactly the order statistic of the module's text.
///
/// Adding and removing are O(n), a quantile O(log n).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scores {
    sorted: Vec<Scored>,
    /// The probability of at most `sorted[i]`.
    mass: Vec<f64>,
}

impl FromIterator<Scored> for Scores {
    fn from_iter<I: IntoIterator<Item = Scored>>(scores: I) -> Self {
        let mut sorted: Vec<Scored> = scores.into_iter().collect();
        sorted.sort_unstable_by(order);
        let mut this = Self {
            sorted,
            mass: Vec::new(),
        };
        this.weigh();
        this
    }
}

/// By score; what was observed at a value comes before what is only known to lie at it or beyond.
fn order(a: &Scored, b: &Scored) -> std::cmp::Ordering {
    a.score
        .total_cmp(&b.score)
        .then(a.censored.cmp(&b.censored))
}

impl Scores {
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Takes `new` in and, if given, one score equal to `old` out.
    pub fn replace(&mut self, old: Option<&Scored>, new: Scored) {
        if let Some(old) = old {
            self.take_out(old);
        }
        let at = self.sorted.partition_point(|s| order(s, &new).is_lt());
        self.sorted.insert(at, new);
        self.weigh();
    }

    /// Takes one score equal to `old` out.
    pub fn remove(&mut self, old: &Scored) {
        self.take_out(old);
        self.weigh();
    }

    fn take_out(&mut self, old: &Scored) {
        if let Ok(at) = self.sorted.binary_search_by(|s| order(s, old)) {
            self.sorted.remove(at);
        }
    }

    /// The smallest observed score that the next one exceeds with probability at most α.
    ///
    /// # Errors
    /// Where none is high enough.
    pub fn quantile(&self, alpha: Alpha) -> Result<f64, TooFew> {
        // The tolerance is far below one score's weight and far above what the sums have rounded away.
        let at = self.mass.partition_point(|m| *m < 1.0 - alpha.get() - 1e-9);
        match self.sorted.get(at) {
            Some(s) => Ok(s.score),
            None => Err(TooFew {
                needed: alpha.needed().max(self.len() + 1),
            }),
        }
    }

    /// The largest score that was observed.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        self.sorted.iter().rfind(|s| !s.censored).map(|s| s.score)
    }

    fn weigh(&mut self) {
        let n = self.sorted.len();
        let mut weight = 1.0 / (n + 1) as f64;
        let mut mass = 0.0;
        self.mass.clear();
        self.mass
            .extend(self.sorted.iter().enumerate().map(|(i, s)| {
                if s.censored {
                    weight += weight / (n - i) as f64;
                } else {
                    mass += weight;
                }
                mass
            }));
    }
}

#[cfg(test)]
#[path = "calibration_tests.rs"]
mod tests;
