//! One cell: a level, a load, a seed, and what became of the promises.

use cadenced::logic::conformal::policy::Verdict;
use cadenced::logic::request::Outcome;
use serde::{Deserialize, Serialize};

use super::{Arm, CLASSES, class};
use crate::twin::cell::Promises;
use crate::twin::engine::{Fate, Request, Trial, count_within};

/// After a shift, promises that were made before so many promised requests had completed under it are counted apart.
pub const WINDOW: usize = 100;

/// What the cells of one load and seed share.
pub struct Setting<'a> {
    pub load: f64,
    pub seed: u64,
    /// When the first request of the shifted workload came.
    pub shifted_at: Option<u64>,
    pub slo_us: u64,
    /// No engine answers more of them in time.
    pub most_within: usize,
    pub requests: &'a [Request],
}

/// Promises that were seen to their end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    pub n: usize,
    pub kept: usize,
}

impl Kept {
    fn count(&mut self, kept: bool) {
        self.n += 1;
        self.kept += usize::from(kept);
    }

    pub fn share(self) -> Option<f64> {
        (self.n > 0).then(|| self.kept as f64 / self.n as f64)
    }
}

/// Admissions over time, in bins of one width.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spreading {
    /// In SLOs.
    pub width: f64,
    pub bins: usize,
    /// Variance over mean of the admissions in a bin: 1 for a Poisson process.
    pub dispersion: f64,
    /// Correlation of neighbouring bins.
    pub lag1: f64,
}

/// See the module's text. Counts are of requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CoverageCell {
    pub arm: Arm,
    pub alpha: f64,
    pub load: f64,
    pub seed: u64,
    pub shifted: bool,
    pub offered: usize,
    /// Outside of the window after a shift, and in it.
    pub promised: Kept,
    pub in_window: Kept,
    pub explored: usize,
    /// Before there was a bound.
    pub observed: usize,
    pub infeasible: usize,
    pub overloaded: usize,
    pub unsupported: usize,
    pub full: usize,
    pub within_slo: usize,
    pub most_within: usize,
    /// Means of what was promised.
    pub bound_s: Option<f64>,
    pub actual_s: Option<f64>,
    /// Prompt tokens out of the prefix cache, of those that ran.
    pub hit_rate: Option<f64>,
    pub spreading: Vec<Spreading>,
    /// By class: offered after the beginning, and promised of these.
    pub classes: Vec<(usize, usize)>,
}

impl Setting<'_> {
    pub fn run(&self, arm: Arm, alpha: f64, trial: &Trial) -> CoverageCell {
        let fates = trial.run(self.requests);
        let pairs = || fates.iter().zip(self.requests);
        let count = |verdict: Verdict| {
            let is = |f: &&Fate| f.decision.is_some_and(|d| d.verdict == verdict);
            fates.iter().filter(is).count()
        };
        let window = self
            .shifted_at
            .map(|from| from..self.window_end(&fates, from));
        let (mut promised, mut in_window) = (Kept::default(), Kept::default());
        for (fate, request) in pairs() {
            if let Some(kept) = fate.is_kept(request) {
                match &window {
                    Some(window) if window.contains(&request.at_us) => in_window.count(kept),
                    _ => promised.count(kept),
                }
            }
        }
        // Admissions of the second half: what an arm does when it has settled.
        let settled = self.requests.len() / 2;
        let mut classes = vec![(0, 0); CLASSES.len()];
        for (fate, request) in pairs().skip(settled) {
            let (offered, promised) = &mut classes[class(request.max_tokens)];
            *offered += 1;
            *promised += usize::from(fate.promised_ms().is_some());
        }
        let told = Promises::of(&fates, self.requests, self.slo_us).unwrap_or_default();
        CoverageCell {
            arm,
            alpha,
            load: self.load,
            seed: self.seed,
            shifted: self.shifted_at.is_some(),
            offered: fates.len(),
            promised,
            in_window,
            explored: count(Verdict::Explored),
            observed: count(Verdict::Observed),
            infeasible: count(Verdict::Infeasible),
            overloaded: count(Verdict::Overloaded),
            unsupported: count(Verdict::Unsupported),
            full: fates.iter().filter(|f| f.decision.is_none()).count(),
            within_slo: count_within(&fates, self.requests, self.slo_us),
            most_within: self.most_within,
            bound_s: told.bound_s,
            actual_s: told.actual_s,
            hit_rate: hit_rate(&fates, self.requests),
            spreading: self.spreading(&fates),
            classes,
        }
    }

    /// When the [`WINDOW`]-th promised request of the shifted workload ended.
    fn window_end(&self, fates: &[Fate], from: u64) -> u64 {
        let shifted = fates
            .iter()
            .zip(self.requests)
            .filter(|(f, r)| r.at_us >= from && f.is_kept(r).is_some());
        let mut ends: Vec<u64> = shifted.map(|(f, _)| f.end_us).collect();
        ends.sort_unstable();
        ends.get(WINDOW - 1).copied().unwrap_or(u64::MAX)
    }

    /// Of the second half of the arrivals, and not before the last that came before there was a bound: as long as it
    /// learns, an arm lets more and more in.
    fn spreading(&self, fates: &[Fate]) -> Vec<Spreading> {
        let learns = |f: &Fate| f.decision.is_some_and(|d| d.verdict == Verdict::Observed);
        let learning = fates.iter().rposition(learns).unwrap_or(0);
        let from = self.requests[learning.max(self.requests.len() / 2)].at_us;
        let to = self.requests[self.requests.len() - 1].at_us;
        let ran = |f: &Fate| !matches!(f.outcome, Outcome::Refused | Outcome::Invalid);
        let pairs = fates.iter().zip(self.requests);
        let at: Vec<u64> = pairs
            .filter(|(f, _)| ran(f))
            .map(|(_, r)| r.at_us)
            .collect();
        let of = |width: f64| {
            let bin_us = (width * self.slo_us as f64) as u64;
            let bins = ((to - from) / bin_us) as usize;
            let mut counts = vec![0.0; bins];
            for at in at.iter().filter(|at| **at >= from) {
                if let Some(n) = counts.get_mut(((at - from) / bin_us) as usize) {
                    *n += 1.0;
                }
            }
            spread(width, &counts)
        };
        [1.0, 2.0, 4.0, 8.0].into_iter().filter_map(of).collect()
    }
}

/// Nothing where there are too few bins or admissions to say anything.
fn spread(width: f64, counts: &[f64]) -> Option<Spreading> {
    let n = counts.len() as f64;
    let mean = counts.iter().sum::<f64>() / n;
    if counts.len() < 30 || mean < 2.0 {
        return None;
    }
    let squares: f64 = counts.iter().map(|c| (c - mean).powi(2)).sum();
    let products: f64 = counts
        .windows(2)
        .map(|w| (w[0] - mean) * (w[1] - mean))
        .sum();
    Some(Spreading {
        width,
        bins: counts.len(),
        dispersion: squares / (n - 1.0) / mean,
        lag1: products / squares.max(f64::MIN_POSITIVE),
    })
}

fn hit_rate(fates: &[Fate], requests: &[Request]) -> Option<f64> {
    let ran = fates.iter().zip(requests);
    let (cached, prompt) = ran
        .filter_map(|(f, r)| Some((f.cached_tokens?, r.prompt_tokens)))
        .fold((0.0, 0.0), |(a, b), (x, y)| {
            (a + f64::from(x), b + f64::from(y))
        });
    (prompt > 0.0).then(|| cached / prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_tells_steady_from_swinging() {
        let steady = spread(1.0, &[5.0; 40]).unwrap();
        assert_eq!((steady.dispersion, steady.lag1), (0.0, 0.0));
        let swinging: Vec<f64> = (0..40).map(|i| f64::from(i % 2) * 10.0).collect();
        let swinging = spread(1.0, &swinging).unwrap();
        assert!(
            swinging.dispersion > 5.0 && swinging.lag1 < -0.9,
            "{swinging:?}"
        );
        assert_eq!(spread(1.0, &[5.0; 29]), None);
    }
}
