use super::super::calibration::TooFew;
use super::super::online::CalibratorConfig;
use super::super::predictor::{Latency, Model};
use super::super::testing::{
    IDLE, alpha, controller, engine, request, rows, serve, without_exploring,
};
use super::*;
use crate::logic::conformal::controller::Course;
use crate::logic::rng::SplitMix64;

#[test]
fn promises_what_fits_and_tells_infeasible_from_overloaded() {
    let mut c = controller(without_exploring());
    let fits = c.decide(&request(64, 4000.0), &engine(0));
    assert_eq!(fits.verdict, Verdict::Promised);
    assert!(fits.bound_ms.unwrap() <= 4000.0);
    assert_eq!(
        c.decide(&request(64, 4000.0), &engine(40)).verdict,
        Verdict::Overloaded
    );
    assert_eq!(
        c.decide(&request(400, 300.0), &engine(40)).verdict,
        Verdict::Infeasible
    );
    assert_eq!(
        c.decide(&request(400, 300.0), &engine(0)).verdict,
        Verdict::Infeasible
    );
    assert_eq!(
        c.decide(&request(64, f64::INFINITY), &engine(40)).verdict,
        Verdict::Observed
    );
    let gently = Request {
        best_effort: true,
        ..request(400, 300.0)
    };
    assert_eq!(c.decide(&gently, &engine(40)).verdict, Verdict::BestEffort);
}

#[test]
fn a_state_outside_of_the_calibration_gets_no_promise_by_setting() {
    let beyond = engine(200);
    let mut c = controller(without_exploring());
    let refused = c.decide(&request(64, 1e9), &beyond);
    assert_eq!(refused.verdict, Verdict::Unsupported);
    assert!(
        matches!(refused.bound_ms, Err(NoBound::OutOfSupport(_))),
        "{refused:?}"
    );
    // The engine changes; a request that is like none before does not.
    assert!(refused.waiting_helps());
    let unheard_of = c.decide(&request(1_000_000, 1e9), &engine(0));
    assert_eq!(unheard_of.verdict, Verdict::Unsupported);
    assert!(!unheard_of.waiting_helps(), "{unheard_of:?}");
    let mut c = controller(Settings {
        unfit: Fallback::BestEffort,
        ..without_exploring()
    });
    assert_eq!(
        c.decide(&request(64, 1e9), &beyond).verdict,
        Verdict::BestEffort
    );
    // A level that the calibration set is too small for.
    let strict = Request {
        alpha: Some(alpha(0.0001)),
        ..request(64, 1e9)
    };
    let strict = c.quote(&strict, &engine(0));
    assert_eq!(
        strict.bound_ms,
        Err(NoBound::TooFew(TooFew { needed: 9999 }))
    );
}

/// Traffic that never let up while the daemon calibrated itself leaves no idle state to be supported by. A request
/// that is hopeless all the same gets its 422, and one that finds the engine idle runs, without any quota.
#[test]
fn an_idle_engine_that_was_never_seen_neither_hides_a_422_nor_locks_anybody_out() {
    let mut rng = SplitMix64::new(2);
    let settings = Settings {
        learning_load: 1000,
        ..without_exploring()
    };
    let mut c = Controller::learning(settings, CalibratorConfig::default(), IDLE);
    let rows = rows(&mut rng, 600);
    c.adopt(Model::deployed(&rows).unwrap());
    let mut serve = |c: &mut Controller, load| serve(c, &mut rng, load, 1e6).verdict;
    for i in 0..300 {
        serve(&mut c, 30 + i % 11);
    }
    assert!(c.is_armed());
    let hopeless = c.decide(&request(200, 50.0), &engine(35));
    assert_eq!(hopeless.verdict, Verdict::Infeasible, "{hopeless:?}");
    // Not what was never asked before: that is no state of the engine's.
    let huge = c.decide(&request(100_000, 1e9), &engine(0));
    assert_eq!(huge.verdict, Verdict::Unsupported);
    let r = request(64, 1e6);
    // Whoever is refused while it is busy is told to come when it is not, and a quote says then what happens.
    assert!(c.retry_after_s(&r, &engine(35)) < 60);
    assert_eq!(c.quote(&r, &engine(0)).verdict, Verdict::Explored);
    for _ in 0..8 {
        let d = c.decide(&r, &engine(0));
        assert_eq!(d.verdict, Verdict::Explored);
        c.ended(&d, Latency::Exact(400.0), Course::AsDecided);
    }
    assert_eq!(c.decide(&r, &engine(0)).verdict, Verdict::Promised);
}

/// Whoever is refused a thousand times a second, as a storm of retries is, is not let in forty times a second.
#[test]
fn one_request_is_explored_at_a_time() {
    let mut c = controller(Settings {
        explore_every: 5,
        ..Settings::at(alpha(0.05))
    });
    let r = request(400, 4000.0);
    let mut explored = Vec::new();
    for i in 0..100 {
        let d = c.decide(&r, &engine(40));
        if d.verdict == Verdict::Explored {
            c.admitted(&r, &d);
            explored.push((i, d));
        }
    }
    let [(0, first)] = explored[..] else {
        panic!("{:?}", explored.iter().map(|e| e.0).collect::<Vec<_>>());
    };
    c.ended(&first, Latency::Exact(9000.0), Course::AsDecided);
    let next = (0..5).filter(|_| c.decide(&r, &engine(40)).verdict == Verdict::Explored);
    assert_eq!(next.count(), 1);
}

/// Refusals alone would teach nothing to a controller whose models are of another load.
#[test]
fn a_learner_that_promises_nothing_looks_at_the_idle_engine_again_and_again() {
    let settings = Settings {
        explore_every: 10,
        learning_load: 1000,
        ..Settings::at(alpha(0.05))
    };
    let mut rng = SplitMix64::new(2);
    let mut learner = Controller::learning(settings, CalibratorConfig::default(), IDLE);
    learner.adopt(Model::deployed(&rows(&mut rng, 600)).unwrap());
    for i in 0..300 {
        serve(&mut learner, &mut rng, i % 40, 1e6);
    }
    assert!(learner.is_armed());
    (learner.misfits, learner.barren, learner.warmed) = (0, 0, 0);
    let explored = |mut c: Controller| {
        let runs = |_: &i32| c.decide(&request(200, 50.0), &engine(0)).verdict == Verdict::Explored;
        (0..79).filter(runs).count()
    };
    // One in ten, and beside them ten at first; of a learner ten more after forty in vain.
    assert_eq!(explored(controller(settings)), 10 + 7);
    assert_eq!(explored(learner), 2 * (10 + 3));
}

#[test]
fn what_does_not_fit_goes_to_the_lane_by_setting_and_says_why() {
    let mut c = controller(Settings {
        unfit: Fallback::BestEffort,
        ..without_exploring()
    });
    for (budget_ms, assessed) in [(300.0, Verdict::Infeasible), (4000.0, Verdict::Overloaded)] {
        let d = c.decide(&request(400, budget_ms), &engine(40));
        assert_eq!((d.verdict, d.assessed), (Verdict::BestEffort, assessed));
    }
    let fits = c.decide(&request(64, 4000.0), &engine(0));
    assert_eq!(fits.verdict, Verdict::Promised);
}

#[test]
fn a_second_look_counts_what_runs_and_judges_nothing_without_a_bound() {
    let c = controller(without_exploring());
    let now = engine(40);
    let alone = LaneLoad::default();
    assert_eq!(
        c.quote(&request(64, 4000.0), &now).verdict,
        Verdict::Overloaded
    );
    assert!(c.still_fits(&request(64, 4000.0), &now, alone));
    assert!(!c.still_fits(&request(64, 4000.0), &now, now.promised));
    assert!(!c.still_fits(&request(64, -1.0), &now, alone));
    let unknown = LaneLoad {
        running: 9000,
        ..alone
    };
    assert!(c.still_fits(&request(64, 1.0), &now, unknown));
}

#[test]
fn after_a_refusal_a_bound_must_fit_with_room_to_spare_once() {
    let mut c = controller(without_exploring());
    let u = c.quote(&request(64, 1e6), &engine(12)).bound_ms.unwrap();
    let tight = request(64, u * 1.05);
    assert_eq!(c.decide(&tight, &engine(12)).verdict, Verdict::Promised);
    assert_eq!(
        c.decide(&request(64, u * 0.9), &engine(12)).verdict,
        Verdict::Overloaded
    );
    assert_eq!(c.decide(&tight, &engine(12)).verdict, Verdict::Overloaded);
    assert_eq!(
        c.decide(&request(64, u * 1.2), &engine(12)).verdict,
        Verdict::Promised
    );
    assert_eq!(c.decide(&tight, &engine(12)).verdict, Verdict::Promised);
}

#[test]
fn explores_one_in_so_many_refusals_before_the_other_answers() {
    let mut c = controller(Settings {
        explore_every: 10,
        explore_seed: 3,
        ..Settings::at(alpha(0.05))
    });
    let verdicts: Vec<Verdict> = (0..100)
        .map(|i| {
            let r = request(400, if i % 2 == 0 { 300.0 } else { 4000.0 });
            let quoted = c.quote(&r, &engine(40)).verdict;
            assert_eq!(c.decide(&r, &engine(40)).verdict, quoted);
            quoted
        })
        .collect();
    let explored = |v: &[Verdict]| v.iter().filter(|v| **v == Verdict::Explored).count();
    assert_eq!(explored(&verdicts), 10);
    assert_eq!(verdicts[7], Verdict::Explored);
    // What fits costs nothing of the quota.
    assert!(
        (0..100).all(|_| c.decide(&request(64, 4000.0), &engine(0)).verdict == Verdict::Promised)
    );
}

/// A cold cache makes a bound too long that would fit a warm one, and only what runs warms it.
#[test]
fn after_a_start_so_many_run_on_an_idle_engine_and_none_on_a_busy_one() {
    let mut c = controller(Settings {
        explore_every: 10,
        ..Settings::at(alpha(0.05))
    });
    let mut explored = |load: u32| {
        let decided = (0..100).map(|_| {
            let r = request(400, 300.0);
            let quoted = c.quote(&r, &engine(load)).verdict;
            assert_eq!(c.decide(&r, &engine(load)).verdict, quoted);
            quoted
        });
        decided.filter(|v| *v == Verdict::Explored).count()
    };
    assert_eq!(explored(10), 10);
    // One of the first ten is of the quota as well.
    assert_eq!(explored(0), 10 + 9);
    assert_eq!(explored(0), 10);
}

#[test]
fn the_ledger_counts_what_the_snapshot_does_not_show_yet() {
    let mut c = controller(without_exploring());
    let stale = engine(0);
    let r = request(200, 4000.0);
    let mut admitted = 0;
    while c.decide(&r, &stale).verdict == Verdict::Promised {
        let d = c.quote(&r, &stale);
        c.admitted(&r, &d);
        admitted += 1;
        assert!(admitted < 60, "a stale queue let everybody in");
    }
    assert!(admitted > 0);
    let seen = Snapshot {
        admissions_seen: admitted,
        ..stale
    };
    assert_eq!(
        c.decide(&request(200, 8000.0), &seen).verdict,
        Verdict::Promised
    );
}
