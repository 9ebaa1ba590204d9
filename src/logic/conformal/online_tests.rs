use super::super::features::COUNT;
use super::*;

const ESTIMATE: Estimate = Estimate { hi: 400.0, lo: 0.0 };

fn at_load(running: f32) -> Features {
    let mut x = [0.0; COUNT];
    x[Feature::Running as usize] = running;
    Features(x)
}

fn calibrator(adaptation: Adaptation, points: &[Point]) -> Calibrator {
    Calibrator::new(
        CalibratorConfig {
            adaptation,
            ..CalibratorConfig::default()
        },
        points,
    )
}

/// A latency whose log-ratio score is normal with mean `shift`.
fn draw(rng: &mut SplitMix64, shift: f64) -> f64 {
    Score::LogRatio.bound(shift + rng.normal(), &ESTIMATE)
}

fn points(rng: &mut SplitMix64, n: usize) -> Vec<Point> {
    (0..n)
        .map(|_| Point::new(&at_load(0.0), ESTIMATE, Latency::Exact(draw(rng, 0.0))))
        .collect()
}

/// Share of kept promises at each of `steps` steps, over `streams` streams that shift by three sigma at 300.
fn kept_share(adaptation: Adaptation, a: Alpha, streams: u64, steps: usize) -> Vec<f64> {
    let mut kept = vec![0.0; steps];
    let x = at_load(0.0);
    for stream in 0..streams {
        let mut rng = SplitMix64::new(100 + stream);
        let mut c = calibrator(adaptation, &points(&mut rng, 1000));
        for (t, kept) in kept.iter_mut().enumerate() {
            let ms = draw(&mut rng, if t < 300 { 0.0 } else { 3.0 });
            let holds = ms <= c.bound(&x, &ESTIMATE, a).unwrap();
            *kept += f64::from(u8::from(holds)) / streams as f64;
            c.judge(&x, a, holds);
            c.observe(&x, ESTIMATE, Latency::Exact(ms));
        }
    }
    kept
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// After a shift of three sigma the static bound is broken for good, the window needs about its own length,
/// and the adaptive one is back where it aims within `SETTLED` observations.
#[test]
fn a_three_sigma_shift_breaks_the_static_bound_and_not_the_adaptive_one() {
    const SETTLED: usize = 40;
    for (a, tolerance) in [(0.2, 0.03), (0.1, 0.03), (0.05, 0.03), (0.01, 0.015)] {
        let alpha = Alpha::new(a).unwrap();
        let nominal = 1.0 - a;
        let near = |of: &[f64]| (mean(of) - nominal).abs() < tolerance;
        let aimed = |of: &[f64]| (mean(of) - (1.0 - AIM * a)).abs() < tolerance;
        let run = |adaptation| kept_share(adaptation, alpha, 60, 1000);

        let broken = run(Adaptation::Static);
        assert!(near(&broken[..300]), "{a}: {}", mean(&broken[..300]));
        assert!(mean(&broken[300..]) < 0.3, "{a}: {}", mean(&broken[300..]));

        let adaptive = run(Adaptation::Adaptive {
            window: 256,
            horizon: 100,
        });
        let settled = &adaptive[300 + SETTLED..];
        assert!(aimed(&adaptive[..300]), "{a}: {}", mean(&adaptive[..300]));
        assert!(aimed(settled), "{a}: {}", mean(settled));
        for span in settled.chunks_exact(100) {
            assert!(mean(span) > nominal - tolerance, "{a}: {}", mean(span));
        }

        let rolling = run(Adaptation::Rolling { window: 256 });
        assert!(mean(&rolling[300..400]) < mean(&adaptive[300..400]));
        assert!(near(&rolling[600..]), "{a}: {}", mean(&rolling[600..]));
    }
}

#[test]
fn the_bound_stays_finite_in_a_storm_and_a_calm_does_not_wind_it_up() {
    let mut rng = SplitMix64::new(1);
    let (x, a) = (at_load(0.0), Alpha::new(0.01).unwrap());
    let mut c = calibrator(
        CalibratorConfig::default().adaptation,
        &points(&mut rng, 500),
    );
    let before = c.bound(&x, &ESTIMATE, a).unwrap();
    (0..1000).for_each(|_| c.judge(&x, a, false));
    let storm = c.bound(&x, &ESTIMATE, a).unwrap();
    assert!(storm.is_finite() && storm >= before);
    // Completions without a promise bring it back to the nominal level, and no further.
    (0..300).for_each(|_| c.relax(&x));
    assert_eq!(c.bound(&x, &ESTIMATE, a), Ok(before));
    (0..100).for_each(|_| c.relax(&x));
    assert_eq!(c.bound(&x, &ESTIMATE, a), Ok(before));
    // However long the calm was, thirty broken promises at 1 in 10 are felt.
    let a = Alpha::new(0.1).unwrap();
    (0..100_000).for_each(|_| c.judge(&x, a, true));
    let calm = c.bound(&x, &ESTIMATE, a).unwrap();
    (0..30).for_each(|_| c.judge(&x, a, false));
    assert!(c.bound(&x, &ESTIMATE, a).unwrap() > 1.5 * calm);
}

/// How many promises have to be kept, each `and` whatever, until the bound is what it was.
fn redeemed_after(mut c: Calibrator, a: Alpha, broken: u32, and: impl Fn(&mut Calibrator)) -> u32 {
    let x = at_load(0.0);
    let before = c.bound(&x, &ESTIMATE, a).unwrap();
    (0..broken).for_each(|_| c.judge(&x, a, false));
    assert!(c.bound(&x, &ESTIMATE, a).unwrap() > before);
    let kept = (1..1000).find(|_| {
        c.judge(&x, a, true);
        and(&mut c);
        c.bound(&x, &ESTIMATE, a) == Ok(before)
    });
    kept.unwrap()
}

#[test]
fn broken_promises_are_redeemed_by_kept_ones_alone_and_one_by_one() {
    let adaptation = CalibratorConfig::default().adaptation;
    let c = calibrator(adaptation, &points(&mut SplitMix64::new(1), 256));
    let a = Alpha::new(0.01).unwrap();
    let after = |broken| redeemed_after(c.clone(), a, broken, |_| {});
    let (one, two, many) = (after(1), after(2), after(20));
    assert!(one > 50 && two > one + 90, "{one}, {two}");
    // More than the one that is remembered.
    assert!(many < two + 50, "{many}");
    let explored = |c: &mut Calibrator| c.relax(&at_load(0.0));
    assert_eq!(redeemed_after(c, a, 2, explored), two);
}

/// Who asks for little confidence gets more than that where little is promised at it; that says nothing of the deployed
/// level. And what is broken there says nothing of the looser ones.
#[test]
fn the_record_of_looser_levels_is_kept_apart() {
    let points = points(&mut SplitMix64::new(1), 256);
    let adaptation = CalibratorConfig::default().adaptation;
    let [loose, deployed, strict] = [0.5, 0.1, 0.05].map(|a| Alpha::new(a).unwrap());
    let mut c = calibrator(adaptation, &points).deployed_at(deployed);
    let x = at_load(0.0);
    let all =
        |c: &Calibrator| [loose, deployed, strict].map(|a| c.bound(&x, &ESTIMATE, a).unwrap());
    let before = all(&c);
    (0..50).for_each(|_| c.judge(&x, loose, false));
    let after = all(&c);
    assert!(
        after[0] > before[0] && after[1..] == before[1..],
        "{after:?}"
    );
    (0..5).for_each(|_| c.judge(&x, strict, false));
    let last = all(&c);
    assert!(
        last[0] == after[0] && last[1] > after[1] && last[2] > after[2],
        "{last:?}"
    );
}

#[test]
fn a_model_that_no_promise_has_tested_starts_careful() {
    let points = points(&mut SplitMix64::new(1), 256);
    let mut c = calibrator(CalibratorConfig::default().adaptation, &points);
    let (x, a) = (at_load(0.0), Alpha::new(0.1).unwrap());
    let bound = |c: &Calibrator| c.bound(&x, &ESTIMATE, a).unwrap();
    let tested = bound(&c);
    c.recalibrate(points.iter().copied());
    assert!(bound(&c) > tested);
    (0..50).for_each(|_| c.judge(&x, a, true));
    assert_eq!(bound(&c), tested);
}

#[test]
fn idle_traffic_alone_never_arms_a_busy_class() {
    let config = CalibratorConfig {
        edges: Edges {
            max_tokens: vec![],
            load: vec![4],
        },
        minimum: 30,
        ..CalibratorConfig::default()
    };
    let mut c = Calibrator::new(config, &[]);
    let (idle, busy, a) = (at_load(1.0), at_load(9.0), Alpha::new(0.05).unwrap());
    for n in 0..5000 {
        assert_eq!(c.bound(&idle, &ESTIMATE, a).is_ok(), n >= 30, "after {n}");
        c.observe(&idle, ESTIMATE, Latency::Exact(100.0));
    }
    assert!(c.is_armed(a));
    assert_eq!(c.bound(&busy, &ESTIMATE, a), Err(TooFew { needed: 30 }));
    (0..30).for_each(|_| c.observe(&busy, ESTIMATE, Latency::Exact(5000.0)));
    assert!(c.bound(&busy, &ESTIMATE, a).unwrap() > 10.0 * c.bound(&idle, &ESTIMATE, a).unwrap());
}

#[test]
fn a_static_calibration_never_changes() {
    let mut rng = SplitMix64::new(3);
    let (x, a) = (at_load(0.0), Alpha::new(0.1).unwrap());
    let mut c = calibrator(Adaptation::Static, &points(&mut rng, 100));
    let before = c.bound(&x, &ESTIMATE, a);
    for _ in 0..500 {
        c.observe(&x, ESTIMATE, Latency::Exact(9e9));
        c.judge(&x, a, false);
    }
    assert_eq!(c.bound(&x, &ESTIMATE, a), before);
}

/// A 99% bound rests on the few largest scores: of a calibration of a thousand, not of the quarter that a window holds.
/// As the window fills, the calibration goes.
#[test]
fn a_calibration_larger_than_the_window_counts_whole_and_then_gives_way() {
    let mut rng = SplitMix64::new(9);
    let (x, a) = (at_load(0.0), Alpha::new(0.01).unwrap());
    let points = points(&mut rng, 1000);
    let adaptation = Adaptation::Rolling { window: 256 };
    let mut c = calibrator(adaptation, &points);
    let whole = calibrator(Adaptation::Static, &points).bound(&x, &ESTIMATE, a);
    assert_eq!(c.bound(&x, &ESTIMATE, a), whole);
    for n in 0..1000 {
        let size = c.groups[0].recent.len();
        assert_eq!(
            (size, size),
            (
                c.groups[0].scores.len(),
                1000_usize.saturating_sub(n).max(256)
            )
        );
        c.observe(&x, ESTIMATE, Latency::Exact(1.0));
    }
    assert!((c.bound(&x, &ESTIMATE, a).unwrap() - 1.0).abs() < 1e-9);
}

proptest::proptest! {
    /// What is kept at hand is what would be looked up, whatever happened last.
    #[test]
    fn a_bound_at_the_deployed_level_is_the_one_that_would_be_looked_up(
        happened in proptest::collection::vec((0..4_u8, 0..3_u8, proptest::bool::ANY), 0..60),
    ) {
        let a = Alpha::new(0.2).unwrap();
        let config = CalibratorConfig {
            minimum: 4,
            edges: Edges { max_tokens: vec![], load: vec![1] },
            adaptation: Adaptation::Adaptive { window: 8, horizon: 5 },
            ..CalibratorConfig::default()
        };
        let mut looks_up = Calibrator::new(config, &points(&mut SplitMix64::new(1), 5));
        let mut keeps = looks_up.clone().deployed_at(a);
        for (what, size, kept) in happened {
            let x = at_load(f32::from(u8::from(kept)));
            let latency = Latency::Exact(200.0 * f64::from(1 + size));
            for c in [&mut looks_up, &mut keeps] {
                match what {
                    0 => c.observe(&x, ESTIMATE, latency),
                    1 => c.judge(&x, a, size > 0),
                    2 => c.relax(&x),
                    _ => c.recalibrate((0..6).map(|_| Point::new(&x, ESTIMATE, latency))),
                }
            }
            for x in [at_load(0.0), at_load(1.0)] {
                let expected = looks_up.bound(&x, &ESTIMATE, a);
                proptest::prop_assert_eq!(keeps.bound(&x, &ESTIMATE, a), expected);
            }
        }
    }
}
