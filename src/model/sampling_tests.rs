use super::*;
use proptest::prelude::*;

fn params(temperature: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        seed: 0,
    }
}

/// The tokens kept, in id order, with their probability. Sorts everything, in double precision.
fn naive(logits: &[f32], params: &SamplingParams) -> Vec<(usize, f64)> {
    let mut ids: Vec<usize> = (0..logits.len())
        .filter(|&id| logits[id] > f32::NEG_INFINITY)
        .collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let max = logits[ids[0]];
    let mass = |id: usize| f64::from(logits[id] - max).exp();
    if params.top_k > 0 {
        ids.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let total: f64 = ids.iter().map(|&id| mass(id)).sum();
        let mut sum = 0.0;
        let kept = ids.iter().position(|&id| {
            sum += mass(id);
            sum >= total * f64::from(params.top_p)
        });
        ids.truncate(kept.map_or(ids.len(), |at| at + 1));
    }
    if params.min_p > 0.0 {
        ids.retain(|&id| logits[id] >= max + params.min_p.ln());
    }
    ids.sort_unstable();
    let weight = |id: usize| (f64::from(logits[id] - max) / f64::from(params.temperature)).exp();
    let total: f64 = ids.iter().map(|&id| weight(id)).sum();
    ids.iter().map(|&id| (id, weight(id) / total)).collect()
}

/// Logits from a tiny alphabet, so that ties and unusable values are frequent. The masses are such
/// that no sum of them is near one of the `top_p` tried: a difference is a bug, never a rounding.
fn logits(longest: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop::sample::select(vec![
        0.0,
        -0.7,
        1.3,
        2.9,
        -30.0,
        -200.0,
        f32::NEG_INFINITY,
        f32::NAN,
    ]);
    prop::collection::vec(value, 1..longest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn draws_what_the_naive_sampler_draws(
        logits in logits(300),
        temperature in prop::sample::select(vec![0.3f32, 1.0, 2.5]),
        top_k in prop::sample::select(vec![0u32, 2, 3, 5, 40, 1000]),
        top_p in prop::sample::select(vec![0.0613f32, 0.5171, 0.9137, 1.0]),
        min_p in prop::sample::select(vec![0.0f32, 0.02, 0.4]),
        seed in any::<u64>(),
        index in 0u32..4,
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let params = SamplingParams { temperature, top_p, top_k, min_p, seed };
        let drawn = Sampler::new().sample(&logits, &params, index).0 as usize;
        let (mut sum, at) = (0.0, uniform(seed, index));
        let found = naive(&logits, &params).into_iter().find(|&(id, p)| {
            sum += p;
            // A draw this near a boundary may fall on either side of it.
            id == drawn && (sum - p - 1e-5..sum + 1e-5).contains(&at)
        });
        prop_assert!(found.is_some(), "drew {} at {}", drawn, at);
    }

    /// No value of any parameter, and no logits, lead out of the vocabulary or to a NaN.
    #[test]
    fn always_answers_with_a_token(
        logits in prop::collection::vec(prop::sample::select(vec![0.0, -1.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]), 1..300),
        temperature in prop::sample::select(vec![0.0, 1e-45, 1e-38, 1.0, f32::MAX, f32::INFINITY, f32::NAN, -1.0]),
        top_p in prop::sample::select(vec![0.0f32, 1e-45, 0.9, 0.999_999_94, 1.0, 2.0, f32::NAN, -1.0]),
        min_p in prop::sample::select(vec![0.0f32, 1e-45, 0.1, 1.0, 2.0, f32::NAN, -1.0]),
        top_k in prop::sample::select(vec![0u32, 1, 2, 300, u32::MAX]),
        seed in any::<u64>(),
    ) {
        let params = SamplingParams { temperature, top_p, top_k, min_p, seed };
        let drawn = Sampler::new().sample(&logits, &params, 7).0 as usize;
        let best = logits.iter().copied().filter(|logit| !logit.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        prop_assert!(drawn < logits.len());
        prop_assert!(best == f32::NEG_INFINITY || logits[drawn] > f32::NEG_INFINITY);
        prop_assert!(!params.is_greedy() || best == f32::NEG_INFINITY || logits[drawn] == best);
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest(logits in logits(300)) {
        let mut expected: Option<usize> = None;
        for (id, &logit) in logits.iter().enumerate() {
            if !logit.is_nan() && expected.is_none_or(|best| logit > logits[best]) {
                expected = Some(id);
            }
        }
        let drawn = Sampler::new().sample(&logits, &params(0.0), 0);
        prop_assert_eq!(drawn, TokenId(expected.unwrap_or(0) as i32));
    }
}

#[test]
fn a_vanishing_temperature_is_greedy_and_an_endless_one_uniform() {
    let logits = [1.0, 5.0, f32::NEG_INFINITY, 5.0 - 1e-5, f32::NAN];
    let mut sampler = Sampler::new();
    let mut seen = [0; 5];
    for index in 0..300 {
        assert_eq!(sampler.sample(&logits, &params(1e-45), index), TokenId(1));
        seen[sampler.sample(&logits, &params(1e38), index).0 as usize] += 1;
    }
    assert_eq!((seen[2], seen[4]), (0, 0));
    assert!([0, 1, 3].iter().all(|&id| seen[id] > 70), "{seen:?}");
}

#[test]
fn parameters_that_keep_one_token_are_greedy() {
    for single in [
        SamplingParams {
            top_p: 0.0,
            ..params(1.0)
        },
        SamplingParams {
            min_p: 1.0,
            ..params(1.0)
        },
        SamplingParams {
            top_k: 1,
            ..params(1.0)
        },
        params(f32::NAN),
    ] {
        assert!(single.is_greedy());
        assert_eq!(
            Sampler::new().sample(&[0.0, 1.0, 1.0], &single, 0),
            TokenId(1)
        );
    }
    assert!(!params(1e-45).is_greedy());
}

/// Pearson's chi-square over fixed seeds: 7 degrees of freedom, 24.3 at the 0.1 % level.
#[test]
fn frequencies_follow_the_distribution() {
    let logits = [0.3f32, -1.0, 2.0, 0.0, 1.1, -0.4, 0.9, 1.7];
    let params = SamplingParams {
        temperature: 0.8,
        ..params(1.0)
    };
    let expected = naive(&logits, &params);
    let (mut sampler, draws) = (Sampler::new(), 40_000);
    // Along the index of one reply, and over the seeds of many: both must look random.
    for by_index in [true, false] {
        let mut counts = [0.0f64; 8];
        for draw in 0..draws {
            let (seed, index) = if by_index {
                (17, draw)
            } else {
                (u64::from(draw), 3)
            };
            let params = SamplingParams { seed, ..params };
            counts[sampler.sample(&logits, &params, index).0 as usize] += 1.0;
        }
        let chi_square: f64 = expected
            .iter()
            .map(|&(id, p)| (counts[id] - p * f64::from(draws)).powi(2) / (p * f64::from(draws)))
            .sum();
        assert!(
            chi_square < 24.3,
            "by index {by_index}: {chi_square}, {counts:?}"
        );
    }
}

#[test]
fn the_draw_depends_on_seed_and_index_alone() {
    let logits: Vec<f32> = (0..1000).map(|id| (id % 7) as f32).collect();
    let draw = |sampler: &mut Sampler, seed, index| {
        sampler.sample(
            &logits,
            &SamplingParams {
                seed,
                ..params(1.0)
            },
            index,
        )
    };
    let mut used = Sampler::new();
    let first: Vec<TokenId> = (0..50).map(|index| draw(&mut used, 1, index)).collect();
    let resumed: Vec<TokenId> = (0..50)
        .rev()
        .map(|index| draw(&mut Sampler::new(), 1, index))
        .collect();
    assert!(first.iter().eq(resumed.iter().rev()));
    assert!((0..50).any(|index| draw(&mut used, 2, index) != first[index as usize]));
}

/// Half the mass lies further below the best token than top-p looks at first.
#[test]
fn top_p_reaches_into_a_long_flat_tail() {
    let logits: Vec<f32> = (0..20_000)
        .map(|id| if id == 9 { 0.0 } else { -8.0 })
        .collect();
    let params = SamplingParams {
        top_p: 0.5,
        ..params(1.0)
    };
    let last = naive(&logits, &params).last().unwrap().0;
    let drawn: Vec<usize> = (0..500)
        .map(|index| Sampler::new().sample(&logits, &params, index).0 as usize)
        .collect();
    assert!(
        drawn.iter().all(|&id| id <= last + 1),
        "the cut is at {last}: {drawn:?}"
    );
    assert!(
        drawn.iter().any(|&id| id > last * 9 / 10),
        "the cut is at {last}: {drawn:?}"
    );
}

#[test]
fn neighbouring_seeds_share_no_stream() {
    let gamma = 0x9e37_79b9_7f4a_7c15;
    for seed in [0, 1, gamma, u64::MAX] {
        assert_ne!(uniform(seed, 1), uniform(seed.wrapping_add(gamma), 0));
        assert_ne!(uniform(seed, 0), uniform(seed.wrapping_add(1), 0));
    }
}

#[test]
fn weights_are_exponentials() {
    for step in 0..870_000 {
        let x = -(step as f32) * 1e-4;
        let exact = f64::from(x).exp();
        assert!((f64::from(weight(x)) / exact - 1.0).abs() < 1e-6, "{x}");
    }
    assert_eq!(weight(0.0), 1.0);
    assert_eq!(
        [weight(-87.5), weight(f32::NEG_INFINITY), weight(f32::NAN)],
        [0.0; 3]
    );
}
