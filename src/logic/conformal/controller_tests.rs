use super::super::boosting::BoostParams;
use super::super::classes::Edges;
use super::super::online::Adaptation;
use super::super::policy::Mode;
use super::super::predictor::PredictorKind;
use super::super::tally::Promises;
use super::super::testing::{
    IDLE, alpha, artifact, context, controller, engine, latency_ms, request, rows, serve,
    without_exploring,
};
use super::*;
use crate::logic::rng::SplitMix64;

#[test]
fn only_promises_seen_to_their_end_count_as_coverage() {
    let mut c = controller(without_exploring());
    let d = c.decide(&request(64, 4000.0), &engine(0));
    let u = d.bound_ms.unwrap();
    let as_verdict = |verdict| Decision { verdict, ..d };
    c.ended(&d, Latency::Exact(u - 1.0), Course::AsDecided);
    c.ended(&d, Latency::Exact(u + 1.0), Course::AsDecided);
    c.ended(&d, Latency::AtLeast(u - 1.0), Course::AsDecided);
    c.ended(&d, Latency::AtLeast(u + 1.0), Course::AsDecided);
    c.ended(
        &as_verdict(Verdict::Explored),
        Latency::Exact(u + 1.0),
        Course::AsDecided,
    );
    c.ended(
        &as_verdict(Verdict::BestEffort),
        Latency::Exact(u + 1.0),
        Course::AsDecided,
    );
    c.ended(
        &as_verdict(Verdict::Observed),
        Latency::Exact(u - 1.0),
        Course::AsDecided,
    );
    let t = *c.tally();
    assert_eq!(
        t.promised,
        Promises {
            kept: 1,
            missed: 1,
            censored: 1,
            censored_late: 1
        }
    );
    assert_eq!(t.promised.coverage(), Some(0.5));
    assert_eq!(
        (t.explored, t.best_effort, t.observed.coverage()),
        (1, 1, Some(1.0))
    );
}

/// A promise that the server itself takes back, or that its client wants to end at its deadline, is missed: such a
/// setting must not make the record look better. What was demoted is judged as it ends, and teaches nothing.
#[test]
fn promises_that_are_taken_back_count() {
    let mut c = controller(without_exploring());
    let d = c.decide(&request(64, 4000.0), &engine(0));
    let u = d.bound_ms.unwrap();
    c.ended(&d, Latency::AtLeast(1.0), Course::Revoked);
    c.ended(&d, Latency::AtLeast(4000.0), Course::Stopped);
    assert_eq!((c.tally().promised.missed, c.tally().revoked), (2, 1));
    let before = c.quote(&request(64, 4000.0), &engine(0)).estimate;
    c.ended(
        &d,
        Latency::Exact(u - 1.0),
        Course::Demoted { stopped: false },
    );
    c.ended(
        &d,
        Latency::Exact(u + 1.0),
        Course::Demoted { stopped: false },
    );
    c.ended(
        &d,
        Latency::AtLeast(u - 1.0),
        Course::Demoted { stopped: false },
    );
    let t = c.tally();
    assert_eq!((t.promised.kept, t.promised.missed), (1, 3));
    assert_eq!((t.promised.censored, t.demoted), (1, 3));
    assert_eq!(c.quote(&request(64, 4000.0), &engine(0)).estimate, before);
    // One that was demoted and then ended with its deadline is both.
    c.ended(
        &d,
        Latency::AtLeast(4000.0),
        Course::Demoted { stopped: true },
    );
    assert_eq!((c.tally().promised.missed, c.tally().demoted), (4, 4));
    // Without a promise there is none to be missed.
    let lane = Decision {
        verdict: Verdict::BestEffort,
        ..d
    };
    c.ended(&lane, Latency::AtLeast(9e9), Course::Stopped);
    assert_eq!((c.tally().promised.missed, c.tally().best_effort), (4, 1));
}

/// Without any artifact: admits all, fits, calibrates, arms itself; and while only idle traffic was seen it
/// promises nothing to a request that finds a queue.
#[test]
fn calibrates_itself_from_live_traffic_and_idle_traffic_arms_nothing_else() {
    let a = alpha(0.05);
    let settings = Settings {
        training_rows: 200,
        ..without_exploring()
    };
    let calibration = CalibratorConfig {
        edges: Edges {
            max_tokens: vec![],
            load: vec![9],
        },
        ..CalibratorConfig::default()
    };
    let mut c = Controller::learning(settings, calibration, IDLE);
    let mut rng = SplitMix64::new(6);
    let mut serve = |c: &mut Controller, load| serve(c, &mut rng, load, 4000.0);
    for i in 0..200 {
        assert!(c.training_rows().is_none());
        let d = serve(&mut c, i % 4);
        assert_eq!(
            (d.verdict, d.bound_ms),
            (Verdict::Observed, Err(NoBound::Unfitted))
        );
    }
    let rows = c.training_rows().unwrap();
    c.adopt(Model::fit(PredictorKind::Trees, &rows, &BoostParams::default(), None).unwrap());
    for i in 0..100 {
        assert!(!c.is_armed());
        assert_eq!(serve(&mut c, i % 4).verdict, Verdict::Observed);
    }
    assert!(c.is_armed());
    for i in 0..200 {
        serve(&mut c, i % 4);
    }
    assert!(c.tally().promised.kept > 50, "{:?}", c.tally());
    assert_eq!(serve(&mut c, 20).verdict, Verdict::Unsupported);
    assert_eq!(
        serve(&mut c, 8).verdict,
        Verdict::Unsupported,
        "same class, but never seen"
    );
    assert!(c.quote(&request(64, 4000.0), &engine(2)).bound_ms.is_ok());
    assert!(!c.calibrator.is_armed(alpha(0.001)) && c.calibrator.is_armed(a));
}

/// The seed's lock-out: a calibration from a far slower past refuses everything. The quota sees that it could
/// stop, and at least half of all requests are served again after 40 explored ones.
#[test]
fn no_lock_out() {
    let mut slow = artifact();
    for p in &mut slow.points {
        p.latency = Latency::Exact(p.latency.ms() * 20.0);
    }
    let settings = Settings {
        explore_every: 10,
        ..Settings::at(alpha(0.05))
    };
    let mut c = Controller::calibrated(settings, CalibratorConfig::default(), &slow);
    let mut rng = SplitMix64::new(4);
    let mut verdicts = Vec::new();
    for _ in 0..6000 {
        let now = engine(rng.below(4) as u32);
        let r = Request {
            context: context(&mut rng),
            ..request(0, 6000.0)
        };
        let d = c.decide(&r, &now);
        if d.verdict.admits() {
            c.ended(
                &d,
                Latency::Exact(latency_ms(&mut rng, &r.context, &now)),
                Course::AsDecided,
            );
        }
        verdicts.push(d.verdict);
    }
    let promised = |v: &[Verdict]| v.iter().filter(|v| **v == Verdict::Promised).count();
    assert!(
        promised(&verdicts[..200]) < 20,
        "{}",
        promised(&verdicts[..200])
    );
    assert!(
        promised(&verdicts[5000..]) > 500,
        "{}",
        promised(&verdicts[5000..])
    );
}

/// Promises of the closed loop: what is admitted at any load within the calibration is kept as promised.
#[test]
fn promises_are_kept_at_their_level() {
    for (a, seed) in [(0.2, 1), (0.05, 2), (0.01, 3)] {
        let mut c = controller(Settings::at(alpha(a)));
        let mut rng = SplitMix64::new(seed);
        for _ in 0..4000 {
            let now = engine(rng.below(30) as u32);
            let r = Request {
                context: context(&mut rng),
                ..request(0, 5000.0)
            };
            let d = c.decide(&r, &now);
            if d.verdict.admits() {
                c.ended(
                    &d,
                    Latency::Exact(latency_ms(&mut rng, &r.context, &now)),
                    Course::AsDecided,
                );
            }
        }
        let p = c.tally().promised;
        let n = (p.kept + p.missed) as f64;
        let error = 3.0 * (a * (1.0 - a) / n).sqrt();
        assert!(p.coverage().unwrap() > 1.0 - a - error, "{a}: {p:?}");
        assert!(n > 1000.0, "{a}: {p:?}");
    }
}

/// Broken promises take the level to its most careful end, where little is promised that could redeem it.
#[test]
fn after_a_storm_explored_completions_lead_back_to_the_nominal_level() {
    let settings = Settings {
        alpha: alpha(0.2),
        ..without_exploring()
    };
    let mut c = controller(settings);
    let (r, now) = (request(64, 4000.0), engine(0));
    let d = c.decide(&r, &now);
    let before = d.bound_ms.unwrap();
    (0..30).for_each(|_| c.ended(&d, Latency::Exact(50.0 * before), Course::AsDecided));
    let storm = c.quote(&r, &now).bound_ms.unwrap();
    assert!(storm > 10.0 * before, "{storm} {before}");
    let explored = Decision {
        verdict: Verdict::Explored,
        ..d
    };
    (0..100).for_each(|_| c.ended(&explored, Latency::Exact(0.5 * before), Course::AsDecided));
    let after = c.quote(&r, &now).bound_ms.unwrap();
    assert!(after < 2.0 * before, "{after} {before}");
}

#[test]
fn observe_mode_refuses_nothing_and_scores_everything() {
    let mut c = controller(Settings {
        mode: Mode::Observe,
        ..without_exploring()
    });
    let d = c.decide(&request(400, 10.0), &engine(30));
    assert_eq!(d.verdict, Verdict::Observed);
    assert!(d.bound_ms.unwrap() > 10.0);
    c.ended(&d, Latency::Exact(1.0), Course::AsDecided);
    assert_eq!(c.tally().observed.kept, 1);
}

/// One refusal under load must not shut out for good what fits an idle engine only just.
#[test]
fn what_fits_an_idle_engine_only_just_is_promised_again_after_an_overload() {
    let mut c = controller(without_exploring());
    let bound = c.quote(&request(64, 1e6), &engine(0)).bound_ms.unwrap();
    let tight = request(64, 1.02 * bound);
    assert_eq!(c.decide(&tight, &engine(0)).verdict, Verdict::Promised);
    assert_eq!(c.decide(&tight, &engine(30)).verdict, Verdict::Overloaded);
    assert_eq!(c.decide(&tight, &engine(0)).verdict, Verdict::Promised);
}

/// "Static" is what it was calibrated on, its range included.
#[test]
fn a_static_controller_promises_nothing_new_whatever_completes() {
    let calibration = CalibratorConfig {
        adaptation: Adaptation::Static,
        ..CalibratorConfig::default()
    };
    let mut c = Controller::calibrated(without_exploring(), calibration, &artifact());
    let beyond = engine(60);
    let r = request(64, f64::INFINITY);
    let before = c.quote(&r, &beyond).bound_ms;
    assert!(
        matches!(before, Err(NoBound::OutOfSupport(_))),
        "{before:?}"
    );
    for requests in (41..=60).flat_map(|n| [n; 10]) {
        let d = c.decide(&r, &engine(requests));
        c.ended(&d, Latency::Exact(1000.0), Course::AsDecided);
    }
    assert_eq!(c.quote(&r, &beyond).bound_ms, before);
}

/// A daemon that was flooded while it learnt knows nothing of the calm after it: the first model takes an idle engine for
/// one that needs a minute. It goes on learning from the few that run, and serves again.
#[test]
fn a_controller_that_learnt_in_a_flood_serves_in_the_calm_after_it() {
    let settings = Settings {
        training_rows: 200,
        learning_load: 1000,
        explore_every: 10,
        ..Settings::at(alpha(0.05))
    };
    let mut c = Controller::learning(settings, CalibratorConfig::default(), IDLE);
    let mut rng = SplitMix64::new(3);
    let mut serve = |c: &mut Controller, load| {
        let d = serve(c, &mut rng, load, 6000.0);
        if let Some(rows) = c.training_rows() {
            c.adopt(Model::deployed(&rows).unwrap());
        }
        d.verdict == Verdict::Promised
    };
    for i in 0..320 {
        serve(&mut c, 300 + i % 40);
    }
    assert!(c.is_armed());
    let promised = (0..6000).map(|i| serve(&mut c, i % 4)).collect::<Vec<_>>();
    let of = |v: &[bool]| v.iter().filter(|p| **p).count();
    assert!(of(&promised[5000..]) > 700, "{}", of(&promised[5000..]));
    let kept = c.tally().promised.coverage().unwrap();
    assert!(kept > 0.93, "{kept} {:?}", c.tally());
}

/// More come than the engine can do from the first moment on. What is learnt is what promises will be made of.
#[test]
fn a_flood_is_let_in_load_by_load_until_promises_can_be_made() {
    let settings = Settings {
        training_rows: 200,
        learning_load: 8,
        explore_every: 0,
        ..Settings::at(alpha(0.05))
    };
    let mut c = Controller::learning(settings, CalibratorConfig::default(), IDLE);
    let mut rng = SplitMix64::new(3);
    let mut inside = std::collections::VecDeque::new();
    let mut seen = [0; 8];
    let mut promised = 0;
    for i in 0..6000 {
        let request = Request {
            context: context(&mut rng),
            ..request(0, 6000.0)
        };
        let load = inside.len();
        let now = engine(load as u32);
        let d = c.decide(&request, &now);
        match d.verdict {
            Verdict::Observed => seen[load] += 1,
            Verdict::Unsupported if !c.is_armed() => {
                let wait = c.retry_after_s(&request, &now);
                assert!((1..60).contains(&wait), "{load} {wait}");
            }
            _ => {}
        }
        promised += usize::from(d.verdict == Verdict::Promised);
        if d.verdict.admits() {
            inside.push_back((d, latency_ms(&mut rng, &request.context, &now)));
        }
        if i % 5 == 0
            && let Some((d, ms)) = inside.pop_front()
        {
            c.ended(&d, Latency::Exact(ms), Course::AsDecided);
        }
        if let Some(rows) = c.training_rows() {
            c.adopt(Model::deployed(&rows).unwrap());
        }
    }
    assert!(seen.iter().all(|n| *n >= 5), "{seen:?}");
    assert!(c.is_armed() && promised > 500, "{promised}");
    let kept = c.tally().promised.coverage().unwrap();
    assert!(kept > 0.93, "{kept} {:?}", c.tally());
}

#[test]
fn a_second_model_does_not_replace_the_one_that_is_calibrated() {
    let mut rng = SplitMix64::new(4);
    let mut fitted = |n| {
        let rows = rows(&mut rng, n);
        Model::fit(
            PredictorKind::Constant,
            &rows,
            &BoostParams::default(),
            None,
        )
        .unwrap()
    };
    let mut c = Controller::learning(without_exploring(), CalibratorConfig::default(), IDLE);
    let (first, second) = (fitted(50), fitted(400));
    let r = request(64, 1e6);
    c.adopt(first);
    let before = c.decide(&r, &engine(0)).estimate;
    c.adopt(second);
    assert_eq!(c.decide(&r, &engine(0)).estimate, before);
}
