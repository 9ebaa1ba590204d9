//! Whether a variant differs from the default, by replicates in which both had the same arrivals.

use crate::stats::Spread;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// Nothing beyond what the replicates differ by themselves.
    Same,
    /// The median over the replicates of variant ÷ default.
    Differs(f64),
    /// There is no such ratio, or only one.
    Open,
}

impl Verdict {
    /// Of (default, variant) in each replicate. A difference is one whose median factor is farther from 1 than the
    /// replicates' factors are from one another; all of them are on one side of 1 then.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let logs: Vec<f64> = pairs.iter().map(|(a, b)| (b / a).ln()).collect();
        if logs.len() < 2 || !logs.iter().all(|l| l.is_finite()) {
            return Self::Open;
        }
        let spread = Spread::of(&logs);
        if spread.median.abs() > spread.max - spread.min {
            Self::Differs(spread.median.exp())
        } else {
            Self::Same
        }
    }

    pub fn show(self) -> String {
        match self {
            Self::Same => "none".into(),
            Self::Differs(ratio) => format!("× {ratio:.2}"),
            Self::Open => "–".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::Xoshiro256PlusPlus;
    use rand_distr::{Distribution, StandardNormal};

    fn of(ratios: &[f64]) -> Verdict {
        // Each replicate has a level of its own, which says nothing.
        let pairs: Vec<_> = (1..)
            .zip(ratios)
            .map(|(i, r)| (f64::from(i), f64::from(i) * r))
            .collect();
        Verdict::of(&pairs)
    }

    #[test]
    fn a_difference_inside_the_replicates_spread_is_none() {
        assert_eq!(of(&[1.0, 1.0, 1.0]), Verdict::Same);
        assert_eq!(of(&[0.9, 1.2, 1.3]), Verdict::Same);
        // All on one side, and no farther from 1 than from one another.
        assert_eq!(of(&[1.1, 1.2, 1.5]), Verdict::Same);
        let Verdict::Differs(ratio) = of(&[1.4, 1.5, 1.6]) else {
            panic!("a difference");
        };
        assert!((ratio - 1.5).abs() < 1e-9);
        // Half is as far from 1 as twice.
        assert_eq!(of(&[0.5, 0.45, 0.55]).show(), "× 0.50");
        assert_eq!(of(&[1.0 / 1.1, 1.0 / 1.2, 1.0 / 1.5]), Verdict::Same);
    }

    #[test]
    fn where_there_is_no_ratio_or_no_spread_nothing_is_said() {
        assert_eq!(of(&[]), Verdict::Open);
        assert_eq!(of(&[2.0]), Verdict::Open);
        assert_eq!(Verdict::of(&[(0.0, 1.0), (1.0, 2.0)]), Verdict::Open);
        assert_eq!(Verdict::of(&[(1.0, 0.0), (1.0, 2.0)]), Verdict::Open);
        assert_eq!(Verdict::of(&[(0.0, 0.0), (0.0, 0.0)]).show(), "–");
    }

    /// What the tables say of chance.
    #[test]
    fn one_in_eleven_of_three_replicates_that_differ_by_chance_alone_pass() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut noise = || -> f64 {
            let z: f64 = StandardNormal.sample(&mut rng);
            (0.1 * z).exp()
        };
        let trials = 20_000;
        let passed = (0..trials)
            .filter(|_| of(&[noise(), noise(), noise()]) != Verdict::Same)
            .count();
        let share = passed as f64 / f64::from(trials);
        assert!((share - 1.0 / 11.0).abs() < 0.01, "{share}");
    }
}
