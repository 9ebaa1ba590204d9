use proptest::prelude::*;

use super::*;
use crate::logic::rng::SplitMix64;

fn alpha(a: f64) -> Alpha {
    Alpha::new(a).unwrap()
}

fn exact(scores: impl IntoIterator<Item = f64>) -> Scores {
    let scored = |score| Scored {
        score,
        censored: false,
    };
    scores.into_iter().map(scored).collect()
}

#[test]
fn a_level_is_refused_until_n_supports_it() {
    for (a, needed) in [(0.2, 4), (0.1, 9), (0.05, 19), (0.01, 99), (0.001, 999)] {
        assert_eq!(alpha(a).needed(), needed);
        let scores = |n: usize| exact((1..=n).map(|i| i as f64));
        assert_eq!(
            scores(needed - 1).quantile(alpha(a)),
            Err(TooFew { needed })
        );
        assert_eq!(scores(needed).quantile(alpha(a)), Ok(needed as f64));
    }
    assert_eq!(
        exact((1..=999).map(f64::from)).quantile(alpha(0.05)),
        Ok(950.0)
    );
}

#[test]
fn a_censored_score_is_a_lower_bound() {
    let scored = |score, censored| Scored { score, censored };
    let with = |extra: Scored| -> Scores {
        (1..=39)
            .map(|i| scored(f64::from(i), false))
            .chain([extra])
            .collect()
    };
    let a = alpha(0.1);
    // Left at once: says nothing, as if it had not been there.
    assert_eq!(
        with(scored(0.0, true)).quantile(a),
        exact((1..=39).map(f64::from)).quantile(a)
    );
    // Left late: counts as beyond all others, so the bound rises.
    assert_eq!(with(scored(39.5, true)).quantile(a), Ok(37.0));
    assert_eq!(with(scored(0.0, true)).quantile(a), Ok(36.0));
    // Too many that left late leave no bound at all, and none of them is ever the bound itself.
    let late: Scores = (0..40).map(|i| scored(f64::from(i), i >= 30)).collect();
    assert_eq!(late.quantile(a), Err(TooFew { needed: 41 }));
    assert_eq!(late.max(), Some(29.0));
}

#[test]
fn every_score_is_inverted_by_its_bound() {
    let e = Estimate {
        hi: 800.0,
        lo: 150.0,
    };
    for score in [Score::LogRatio, Score::Absolute, Score::WidthScaled] {
        for ms in [0.0, 3.0, 799.0, 50_000.0] {
            assert!(
                (score.bound(score.of(ms, &e), &e) - ms).abs() < 1e-6,
                "{score:?} {ms}"
            );
        }
    }
}

proptest! {
    /// Against the rank of the text, and one that is replaced piecemeal against one that is built anew.
    #[test]
    fn the_quantile_is_the_order_statistic(
        window in prop::collection::vec((0i8..6, prop::bool::weighted(0.2)), 1..50),
        a in 1u32..99,
    ) {
        let scored: Vec<Scored> =
            window.iter().map(|(s, c)| Scored { score: f64::from(*s), censored: *c }).collect();
        let mut rolling = Scores::default();
        for (i, s) in scored.iter().enumerate() {
            rolling.replace(i.checked_sub(20).map(|old| &scored[old]), *s);
            let last: Scores = scored[(i + 1).saturating_sub(20)..=i].iter().copied().collect();
            prop_assert_eq!(&rolling, &last);
        }
        let mut plain: Vec<f64> = scored.iter().map(|s| s.score).collect();
        plain.sort_by(f64::total_cmp);
        let n = plain.len() as u64;
        // ceil((n + 1)(1 − a/100)) in whole numbers.
        let rank = ((n + 1) * u64::from(100 - a)).div_ceil(100) as usize;
        let a = alpha(f64::from(a) / 100.0);
        let expected = plain.get(rank - 1).copied().ok_or(TooFew { needed: a.needed() });
        prop_assert_eq!(exact(plain.clone()).quantile(a), expected);
    }
}

/// Over 4,000 fresh calibration sets, the number of covered ones of `m` fresh requests each is beta-binomial
/// with parameters (k, n + 1 − k): its mean is checked to 4 standard errors of the 4,000 sets, and so is the
/// share of sets below its exact lower 5% point. The model is either good, or knows nothing at all.
#[test]
fn marginal_coverage_lies_in_its_exact_band() {
    const SETS: usize = 4000;
    let (n, m) = (199_usize, 40_usize);
    for useless in [false, true] {
        let mut rng = SplitMix64::new(11);
        let draw = |rng: &mut SplitMix64| {
            let x = rng.unit();
            let ms = (6.0 + 2.0 * x + (0.2 + x) * rng.normal()).exp();
            let hi = if useless {
                5000.0 * rng.unit()
            } else {
                (6.0 + 2.0 * x + 1.28 * (0.2 + x)).exp()
            };
            (ms, Estimate { hi, lo: 0.0 })
        };
        let levels = [0.2, 0.1, 0.05, 0.01].map(alpha);
        let mut covered = levels.map(|_| Vec::with_capacity(SETS));
        for _ in 0..SETS {
            let scores = exact((0..n).map(|_| {
                let (ms, e) = draw(&mut rng);
                Score::LogRatio.of(ms, &e)
            }));
            let fresh: Vec<_> = (0..m).map(|_| draw(&mut rng)).collect();
            for (level, covered) in levels.iter().zip(&mut covered) {
                let q = scores.quantile(*level).unwrap();
                let kept = fresh
                    .iter()
                    .filter(|(ms, e)| *ms <= Score::LogRatio.bound(q, e));
                covered.push(kept.count());
            }
        }
        for (level, covered) in levels.iter().zip(covered) {
            let k = ((n + 1) as f64 * (1.0 - level.get()) - 1e-9).ceil() as usize;
            let pmf = beta_binomial(m, k as f64, (n + 1 - k) as f64);
            let mean: f64 = pmf.iter().enumerate().map(|(i, p)| i as f64 * p).sum();
            let variance: f64 = pmf
                .iter()
                .enumerate()
                .map(|(i, p)| (i as f64 - mean).powi(2) * p)
                .sum();
            assert!(mean / m as f64 >= 1.0 - level.get() - 1e-9);
            let seen = covered.iter().sum::<usize>() as f64 / SETS as f64;
            let error = 4.0 * (variance / SETS as f64).sqrt();
            assert!(
                (seen - mean).abs() < error,
                "{level:?} useless={useless}: {seen} {mean} ± {error}"
            );

            let mut below = 0.0;
            let low = pmf
                .iter()
                .position(|p| {
                    below += p;
                    below > 0.05
                })
                .unwrap();
            below -= pmf[low];
            let seen = covered.iter().filter(|c| **c < low).count() as f64 / SETS as f64;
            let error = 4.0 * (below * (1.0 - below) / SETS as f64).sqrt();
            assert!(
                (seen - below).abs() <= error + 1e-3,
                "{level:?}: {seen} below {low}, {below} ± {error}"
            );
        }
    }
}

/// P(j of m) for j of 0..=m, from the ratio of neighbouring terms.
fn beta_binomial(m: usize, a: f64, b: f64) -> Vec<f64> {
    let mut p = vec![1.0];
    for j in 0..m {
        let (j, m) = (j as f64, m as f64);
        let ratio = (m - j) / (j + 1.0) * (a + j) / (b + m - j - 1.0);
        p.push(p.last().unwrap() * ratio);
    }
    let total: f64 = p.iter().sum();
    p.iter().map(|x| x / total).collect()
}
