//! When requests arrive: offsets from the run's beginning, a pure function of process, rate, extent and seed.
//!
//! The gaps have a generator of their own, so the same seed gives the same sequence whatever else is drawn, and
//! a longer run begins with the shorter one. The draws do not depend on the rate: two rates of one seed are one
//! sequence at two speeds.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// How arrivals follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Process {
    /// Exponential gaps: each arrival knows nothing of the others.
    Poisson,
    /// Equal gaps: the gentlest load there is at a rate.
    Fixed,
    /// Several at once, the groups a Poisson process; all of them at once if no size is given.
    Burst,
    /// As a file has them.
    Trace,
}

/// Where a sequence ends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    Seconds(f64),
    Requests(usize),
}

/// A sequence of arrivals, not yet drawn.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    pub process: Process,
    /// Requests per second in the mean.
    pub rate: f64,
    pub extent: Extent,
    pub seed: u64,
    /// Requests that arrive together under [`Process::Burst`].
    pub burst: Option<usize>,
}

impl Schedule {
    /// Microseconds from the beginning to each arrival, ascending. A trace is not drawn: see [`replayed_us`].
    pub fn offsets_us(&self) -> Vec<u64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let mut exponential = move || -(1.0 - rng.random::<f64>()).ln();
        let group = match (self.process, self.burst, self.extent) {
            (Process::Burst, Some(size), _) => size.max(1),
            (Process::Burst, None, Extent::Requests(n)) => return vec![0; n],
            (Process::Burst, None, Extent::Seconds(s)) => {
                return vec![0; (self.rate * s).round() as usize];
            }
            _ => 1,
        };
        let mean_gap_s = group as f64 / self.rate;
        let (limit_s, limit_n) = match self.extent {
            Extent::Seconds(s) => (s, usize::MAX),
            Extent::Requests(n) => (f64::INFINITY, n),
        };
        let mut offsets = Vec::new();
        let mut at_s = 0.0;
        loop {
            at_s += mean_gap_s
                * match self.process {
                    Process::Fixed => 1.0,
                    _ => exponential(),
                };
            // A rate that offers nothing leads out of the range at once, whatever it is.
            if !(0.0..limit_s).contains(&at_s) || offsets.len() >= limit_n {
                return offsets;
            }
            let room = limit_n - offsets.len();
            offsets.extend(std::iter::repeat_n(us(at_s), group.min(room)));
        }
    }
}

/// Timestamps of a trace in seconds as offsets from the first of them, at `speed` times the trace's own pace.
pub fn replayed_us(timestamps_s: &[f64], speed: f64) -> Vec<u64> {
    let first = timestamps_s.first().copied().unwrap_or(0.0);
    timestamps_s
        .iter()
        .map(|t| us(((t - first) / speed).max(0.0)))
        .collect()
}

/// The gaps between arrivals in seconds, the first one counted from the beginning.
pub fn gaps_s(offsets_us: &[u64]) -> Vec<f64> {
    let before = std::iter::once(0).chain(offsets_us.iter().copied());
    before
        .zip(offsets_us)
        .map(|(a, b)| (b - a) as f64 * 1e-6)
        .collect()
}

fn us(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn poisson(rate: f64, extent: Extent, seed: u64) -> Vec<u64> {
        drawn(Process::Poisson, rate, extent, seed, None)
    }

    fn drawn(
        process: Process,
        rate: f64,
        extent: Extent,
        seed: u64,
        burst: Option<usize>,
    ) -> Vec<u64> {
        Schedule {
            process,
            rate,
            extent,
            seed,
            burst,
        }
        .offsets_us()
    }

    proptest! {
        #[test]
        fn a_sequence_is_ascending_within_its_extent_and_begins_as_any_longer_one(
            seed: u64, rate in 0.1..500.0, seconds in 0.0..20.0,
        ) {
            let short = poisson(rate, Extent::Seconds(seconds), seed);
            prop_assert!(short.is_sorted());
            prop_assert!(short.iter().all(|t| *t <= us(seconds)));
            prop_assert_eq!(&short, &poisson(rate, Extent::Seconds(seconds), seed));
            let long = poisson(rate, Extent::Seconds(seconds * 2.0), seed);
            prop_assert_eq!(&long[..short.len()], &short[..]);
            let counted = poisson(rate, Extent::Requests(short.len()), seed);
            prop_assert_eq!(counted, short);
        }

        #[test]
        fn bursts_come_in_whole_groups(seed: u64, size in 1..9usize, n in 1..80usize) {
            let all = drawn(Process::Burst, 10.0, Extent::Requests(n), seed, Some(size));
            prop_assert_eq!(all.len(), n);
            for group in all.chunks(size) {
                prop_assert!(group.iter().all(|t| t == &group[0]));
            }
        }
    }

    #[test]
    fn rates_of_one_seed_are_one_sequence_at_several_speeds() {
        let slow = poisson(1.0, Extent::Requests(100), 7);
        let fast = poisson(4.0, Extent::Requests(100), 7);
        assert!(
            slow.iter()
                .zip(&fast)
                .all(|(s, f)| (s / 4).abs_diff(*f) <= 1)
        );
        assert_ne!(slow, poisson(1.0, Extent::Requests(100), 8));
    }

    #[test]
    fn the_mean_number_of_arrivals_is_rate_times_time() {
        let counts: Vec<usize> = (0..400)
            .map(|seed| poisson(5.0, Extent::Seconds(60.0), seed).len())
            .collect();
        let mean = counts.iter().sum::<usize>() as f64 / 400.0;
        // 300 ± √300 each, so ± 0.87 for the mean of 400.
        assert!((mean - 300.0).abs() < 3.0, "{mean}");
    }

    #[test]
    fn fixed_gaps_are_equal_and_a_burst_without_a_size_is_everything_at_once() {
        let fixed = drawn(Process::Fixed, 4.0, Extent::Requests(3), 0, None);
        assert_eq!(fixed, [250_000, 500_000, 750_000]);
        assert_eq!(gaps_s(&fixed), [0.25; 3]);
        assert_eq!(
            drawn(Process::Burst, 1.0, Extent::Requests(8), 0, None),
            [0; 8]
        );
    }

    #[test]
    fn a_rate_of_zero_or_worse_offers_nothing() {
        for rate in [0.0, -1.0, f64::NAN] {
            assert!(poisson(rate, Extent::Seconds(10.0), 0).is_empty());
        }
    }

    #[test]
    fn a_trace_begins_at_its_first_row_and_can_be_replayed_faster() {
        assert_eq!(
            replayed_us(&[10.0, 10.5, 12.0], 2.0),
            [0, 250_000, 1_000_000]
        );
        assert!(replayed_us(&[], 1.0).is_empty());
    }
}
