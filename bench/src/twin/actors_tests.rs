//! The actors against the engine without actors, and against themselves.

use std::collections::BTreeSet;

use super::*;
use crate::load::arrivals::Extent;
use crate::load::mix::Mix;
use crate::twin::arrivals::{Answers, Offer};
use crate::twin::cost::CostModel;
use crate::twin::lab::Lab;
use crate::twin::rung::Rung;
use cadenced::logic::request::Outcome;

fn requests(mix: Mix, rate: f64, seed: u64) -> Vec<Request> {
    Offer {
        mix,
        answers: Answers::hidden(),
        rate,
        extent: Extent::Seconds(120.0),
        seed,
        observed: Default::default(),
    }
    .requests()
}

fn trial(rung: Rung) -> Trial {
    Trial {
        slo_us: Some(15_000_000),
        patience_us: Some(40_000_000),
        ..Trial::new(rung, CostModel::default().into())
    }
}

/// Below and above saturation, where clients leave too: request by request, to the microsecond. The costs are whole
/// microseconds, so that rounding them up changes nothing.
#[test]
fn the_actors_serve_every_request_as_the_engine_without_actors_does() {
    for rung in [Rung::continuous(), Rung::cache()] {
        for (mix, rate) in [
            (Mix::Standard, 0.7),
            (Mix::Standard, 2.4),
            (Mix::MultiTurn, 2.4),
        ] {
            let trial = trial(rung.clone());
            let requests = requests(mix, rate, 1);
            let (logic, actors) = (trial.run(&requests), run(&trial, &requests));
            for (i, (a, b)) in logic.iter().zip(&actors).enumerate() {
                assert_eq!(
                    a, b,
                    "{} {mix:?} {rate}: request {i}, {:?}",
                    rung.name, requests[i]
                );
            }
        }
    }
}

/// The same of rungs that promise: with a calibration that the actors read from a file, every bound and every verdict,
/// who yields, pauses and is given up, and when.
#[test]
fn the_actors_promise_pause_and_give_up_as_the_engine_without_actors_does() {
    let mut ends = BTreeSet::new();
    for rung in [Rung::conformal(), Rung::best_effort()] {
        // An SLO that most requests meet alone.
        let mut trials = Lab::of(rung).trials(Some(1_600_000), Some(40_000_000));
        let trial = trials.swap_remove(0);
        for rate in [0.4, 0.9, 2.4] {
            let requests = requests(Mix::Standard, rate, 1);
            let (logic, actors) = (trial.run(&requests), run(&trial, &requests));
            for (i, (a, b)) in logic.iter().zip(&actors).enumerate() {
                assert_eq!(
                    a, b,
                    "{} {rate}: request {i}, {:?}",
                    trial.rung.name, requests[i]
                );
                let verdict = a.decision.map_or("none", |d| d.verdict.label());
                ends.insert(format!("{verdict}: {}", a.outcome.label()));
            }
        }
    }
    let seen = [
        "promised: stop",
        "explored: stop",
        "infeasible: invalid",
        "overloaded: refused",
        "best_effort: stop",
        "best_effort: slo",
        "best_effort: expired",
    ];
    assert!(seen.iter().all(|end| ends.contains(*end)), "{ends:?}");
}

/// A cap that is reached, and baselines that batch.
#[test]
fn caps_refuse_and_batches_fill_as_they_do_without_actors() {
    for mut rung in Rung::ladder() {
        rung.config.limits.requests = 12;
        rung.capacity = rung.config.capacity();
        let trial = trial(rung);
        let requests = requests(Mix::Standard, 2.4, 2);
        let (logic, actors) = (trial.run(&requests), run(&trial, &requests));
        let refused = |fates: &[Fate]| {
            fates
                .iter()
                .filter(|f| f.outcome == Outcome::Refused)
                .count()
        };
        assert!(refused(&actors) > 20, "{}", trial.rung.name);
        assert_eq!(refused(&logic), refused(&actors), "{}", trial.rung.name);
    }
}

#[test]
fn two_runs_are_equal_whatever_the_costs() {
    let odd = CostModel {
        step_us: 1934.517,
        cached_token_us: 1.8313,
        ..CostModel::default()
    };
    let trial = Trial {
        cost: odd.into(),
        ..trial(Rung::cache())
    };
    let requests = requests(Mix::Standard, 2.4, 3);
    assert_eq!(run(&trial, &requests), run(&trial, &requests));
}
