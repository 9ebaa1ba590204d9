//! The twin's engine: by hand, against itself without skipping, against queueing theory.

use std::collections::BTreeMap;

use super::*;
use crate::load::arrivals::Extent;
use crate::load::mix::Mix;
use crate::twin::arrivals::{Answers, Offer};
use crate::twin::cost::CostModel;
use cadenced::logic::capacity::CapacityLimits;
use cadenced::logic::conformal::calibration::Alpha;
use cadenced::logic::conformal::online::CalibratorConfig;
use cadenced::logic::conformal::policy::{Fallback, Settings, Verdict};
use cadenced::logic::conformal::snapshot::Pace;
use cadenced::logic::request::FinishReason;
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use proptest::prelude::*;
use std::time::Duration;

const COST: CostModel = CostModel {
    step_us: 7.0,
    prefill_token_us: 3.0,
    decode_seq_us: 5.0,
    cached_token_us: 0.25,
};

fn request(at_us: u64, prompt_tokens: u32, max_tokens: u32, answer_tokens: u32) -> Request {
    Request {
        at_us,
        prompt_tokens,
        // Two hundred tokens that all begin with.
        text: Text {
            head: 1,
            head_tokens: (prompt_tokens - 1).min(200),
            own: at_us ^ u64::from(max_tokens),
        },
        max_tokens,
        answer_tokens,
    }
}

#[test]
fn one_request_takes_what_can_be_counted() {
    let trial = Trial::new(Rung::fifo(), COST.into());
    let fates = trial.run(&[request(100, 300, 9, 3)]);
    // Chunks of 256 and 44, of which the second finds 256 tokens cached; then decodes at 300 and 301.
    let first = 100 + (7 + 256 * 3) + (7 + 44 * 3 + 64);
    // The second decode's 75.25 are rounded up.
    let end = first + 2 * (7 + 5) + 75 + 76;
    let expected = Fate {
        outcome: Outcome::Finished(FinishReason::Stop),
        first_token_us: Some(first),
        end_us: end,
        generated: 3,
        cached_tokens: Some(0),
        decision: None,
    };
    assert_eq!(fates, [expected]);
    let capped = trial.run(&[request(0, 300, 2, 3)]);
    assert_eq!(capped[0].outcome, Outcome::Finished(FinishReason::Length));
}

#[test]
fn a_full_house_refuses_and_an_impatient_client_leaves() {
    let capacity = CapacityLimits {
        requests: 2,
        ..Rung::fifo().capacity
    };
    let trial = Trial {
        patience_us: Some(1000),
        ..Trial::new(
            Rung {
                capacity,
                ..Rung::fifo()
            },
            COST.into(),
        )
    };
    let fates = trial.run(&[
        request(0, 100, 500, 500),
        request(1, 100, 9, 9),
        request(2, 100, 9, 9),
        request(990, 16_384, 9, 9),
    ]);
    let outcomes: Vec<Outcome> = fates.iter().map(|f| f.outcome).collect();
    use Outcome::{Cancelled, Invalid, Refused};
    // What can never be served is told so as long as it can be read: there is room for that in the lane.
    assert_eq!(outcomes, [Cancelled, Cancelled, Refused, Invalid]);
    assert_eq!((fates[0].end_us, fates[1].end_us), (1000, 1001));
    assert!(fates[0].first_token_us.is_some() && fates[1].first_token_us.is_none());
    let alone = trial.run(&[request(0, 16_384, 9, 9)]);
    assert_eq!(alone[0].outcome, Outcome::Invalid);
}

fn rungs() -> impl Strategy<Value = Rung> {
    let policy = prop_oneof![
        Just(Policy::Fifo),
        (1usize..5).prop_map(|batch| Policy::StaticBatch {
            batch,
            fill_timeout: Duration::from_micros(300)
        }),
        (1usize..5, any::<bool>()).prop_map(|(max_running, decode_first)| Policy::Continuous {
            max_running,
            order: if decode_first {
                StepOrder::DecodeFirst
            } else {
                StepOrder::PrefillFirst
            },
        }),
    ];
    // With and without a cache, with and without preemption.
    let memory = prop_oneof![
        Just(Rung::continuous()),
        any::<bool>().prop_map(|reserve_growth| {
            let mut rung = Rung::cache();
            rung.config.kv.reserve_growth = reserve_growth;
            rung
        }),
    ];
    // A pool in which two may not fit, and a house that may be full.
    (policy, memory, 4u32..40, 2usize..30).prop_map(|(policy, rung, blocks, requests)| {
        Rung {
            policy,
            capacity: CapacityLimits {
                requests,
                ..rung.capacity
            },
            ..rung
        }
        .with_cells(blocks * 16)
    })
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec((0..600u64, 1..40u32, 1..40u32, 1..40u32), 0..50).prop_map(|sizes| {
        let mut at_us = 0;
        let draw = |(gap, prompt, cap, answer)| {
            at_us += gap;
            request(at_us, prompt, cap, answer)
        };
        sizes.into_iter().map(draw).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever comes: skipping changes nothing, each request ends once and as it must, and `run` itself
    /// checks that all memory has come back.
    #[test]
    fn skipping_changes_nothing_and_everything_is_conserved(
        rung in rungs(), requests in requests(), patience in prop::option::of(200..20_000u64),
        slo in prop::option::of(1..5_000u64),
    ) {
        let trial = Trial { slo_us: slo, patience_us: patience, ..Trial::new(rung, COST.into()) };
        let fates = trial.run(&requests);
        let stepped = Trial { skip: false, ..trial.clone() }.run(&requests);
        prop_assert_eq!(&fates, &stepped);
        prop_assert_eq!(fates.len(), requests.len());
        for (fate, request) in fates.iter().zip(&requests) {
            let sampled = request.sampled(trial.rung.kv_cells());
            match fate.outcome {
                Outcome::Finished(_) => prop_assert_eq!(fate.generated, sampled),
                Outcome::Cancelled => prop_assert_eq!(fate.end_us, request.at_us + patience.unwrap()),
                Outcome::Refused | Outcome::Invalid => prop_assert_eq!(fate.end_us, request.at_us),
                other => prop_assert!(false, "{:?}", other),
            }
            if let Some(first) = fate.first_token_us {
                prop_assert!(request.at_us < first && first <= fate.end_us);
            }
        }
    }
}

/// A controller that has learnt enough after few completions to refuse, promise and explore.
fn learner(unfit: Fallback) -> Controller {
    let alpha = Alpha::new(0.2).unwrap();
    let settings = Settings {
        training_rows: 6,
        explore_every: 3,
        unfit,
        ..Settings::at(alpha)
    };
    let calibration = CalibratorConfig {
        minimum: 8,
        ..CalibratorConfig::default()
    };
    let idle = Pace {
        step_ms: 0.012,
        tokens_per_s: 80_000.0,
    };
    Controller::learning(settings, calibration, idle)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// What is decided depends on the engine's state at the arrival, so steps may be skipped only up to it; with a
    /// best-effort lane none may, and nobody but who is in it is given up, at its deadline and not before.
    #[test]
    fn skipping_changes_no_decision(
        rung in rungs(), requests in requests(), patience in prop::option::of(200..20_000u64), slo in 50..3_000u64,
        lane: bool,
    ) {
        let unfit = if lane { Fallback::BestEffort } else { Fallback::Refuse };
        let trial = Trial {
            controller: Some(learner(unfit)),
            slo_us: Some(slo),
            patience_us: patience,
            ..Trial::new(rung, COST.into())
        };
        let fates = trial.run(&requests);
        let stepped = Trial { skip: false, ..trial }.run(&requests);
        prop_assert_eq!(&fates, &stepped);
        for (fate, request) in fates.iter().zip(&requests) {
            let is_of_lane = fate.decision.is_some_and(|d| d.verdict == Verdict::BestEffort);
            prop_assert!(lane || !is_of_lane);
            if fate.is_dropped() {
                prop_assert!(is_of_lane && fate.end_us >= request.at_us + slo, "{:?}", fate);
            }
        }
    }
}

/// An SLO that nothing meets: what is refused carries its decision, and is never run.
#[test]
fn a_bound_decides_behind_the_cap() {
    let requests: Vec<Request> = (0..300).map(|i| request(i * 20_000, 100, 9, 9)).collect();
    let trial = Trial {
        controller: Some(learner(Fallback::Refuse)),
        slo_us: Some(100),
        ..Trial::new(Rung::conformal(), COST.into())
    };
    let fates = trial.run(&requests);
    let verdict = |f: &Fate| f.decision.unwrap().verdict;
    let (learning, decided) = (&fates[..14], &fates[200..]);
    let is_finished = |f: &Fate| matches!(f.outcome, Outcome::Finished(_));
    assert!(learning.iter().all(is_finished));
    let infeasible = decided.iter().filter(|f| verdict(f) == Verdict::Infeasible);
    assert!(infeasible.clone().count() > 30);
    assert!(
        infeasible
            .clone()
            .all(|f| f.outcome == Outcome::Invalid && f.generated == 0)
    );
    let explored = decided.iter().filter(|f| verdict(f) == Verdict::Explored);
    assert!(explored.clone().count() > 20);
    assert!(explored.clone().all(|f| f.generated == 9));
}

/// Two requests that begin alike, one after the other: of the second one's prompt only what is its own is computed.
#[test]
fn a_prefix_that_is_cached_is_not_computed_again() {
    let apart = [request(0, 300, 2, 2), request(1_000_000, 300, 3, 3)];
    let took = |rung: Rung| {
        let fates = Trial::new(rung, COST.into()).run(&apart);
        fates[1].first_token_us.unwrap() - apart[1].at_us
    };
    // Whole blocks of the 200 tokens: 192, and 108 more.
    assert_eq!(took(Rung::cache()), 7 + 108 * 3 + 192 / 4);
    assert_eq!(took(Rung::continuous()), 7 + 256 * 3 + 7 + 44 * 3 + 64);
}

/// The M/G/1 queue: under Poisson arrivals the mean wait is λ E[S²] / 2(1 - ρ), whatever the services'
/// distribution (Pollaczek and Khinchine). At ρ = 0.4 over 300,000 requests the mean of the waits is within
/// 3%.
#[test]
fn fifo_waits_as_an_m_g_1_queue_does() {
    let offer = Offer {
        mix: Mix::Standard,
        answers: Answers::hidden(),
        rate: 1.0,
        extent: Extent::Requests(300_000),
        seed: 1,
        observed: BTreeMap::new(),
    };
    let fifo = Trial::new(Rung::fifo().uncapped(), CostModel::default().into());
    let seconds = |fates: &[Fate], requests: &[Request]| -> Vec<f64> {
        let pairs = fates.iter().zip(requests);
        pairs
            .map(|(f, r)| (f.end_us - r.at_us) as f64 * 1e-6)
            .collect()
    };
    // Far apart, nobody waits: what is left is the service.
    let mut apart = offer.requests();
    for (i, r) in (0..).zip(&mut apart) {
        r.at_us = i * 20_000_000;
    }
    let services = seconds(&fifo.run(&apart), &apart);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (first, second) = (
        mean(&services),
        mean(&services.iter().map(|s| s * s).collect::<Vec<_>>()),
    );
    let rate = 0.4 / first;
    let requests = Offer { rate, ..offer }.requests();
    let wait = mean(&seconds(&fifo.run(&requests), &requests)) - first;
    let expected = rate * second / (2.0 * (1.0 - 0.4));
    assert!((wait / expected - 1.0).abs() < 0.03, "{wait} {expected}");
}
