//! The rates and the SLO of a ladder, out of what was measured.

use anyhow::{Result, ensure};
use cadenced::config::Config;
use serde::{Deserialize, Serialize};

use crate::load::arrivals::Extent;
use crate::load::mix::Mix;
use crate::load::quantile::Quantiles;
use crate::load::record::Record;
use crate::twin::arrivals::{Answers, Offer, observed};
use crate::twin::cost::CostModel;
use crate::twin::engine::{Request, Trial};
use crate::twin::lab;
use crate::twin::rung::Rung;

/// The lowest rate is this part of the lowest knee, the highest this multiple of the highest.
const BELOW: f64 = 0.5;
const ABOVE: f64 = 2.0;

/// What a rung sustains under the cost model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    pub rung: String,
    pub per_s: f64,
}

/// The twin of each rung, with the requests that `records` are of, over and over.
///
/// # Errors
/// When a configuration can't be read or no record tells a size.
pub fn predict(
    rungs: Vec<Config>,
    model: CostModel,
    mix: Mix,
    records: &[Record],
) -> Result<Vec<Predicted>> {
    let observed = observed(records);
    ensure!(!observed.is_empty(), "the server bills no tokens");
    let offer = Offer {
        mix,
        answers: Answers::Capped,
        rate: 1.0,
        extent: Extent::Requests(records.len()),
        seed: 0,
        observed,
    };
    let asked = offer.requests();
    let again = |i: usize| {
        let mut request = asked[i % asked.len()];
        request.at_us = 0;
        // What nobody else has said is not said again either.
        request.text.own ^= (i / asked.len()) as u64;
        request
    };
    let requests: Vec<Request> = (0..lab::SAMPLE).map(again).collect();
    let of = |config: Config| {
        let rung = Rung::of(config)?.uncapped();
        Ok(Predicted {
            rung: rung.name.to_owned(),
            per_s: lab::sustained_per_s(&Trial::new(rung, model.into()), &requests),
        })
    };
    rungs.into_iter().map(of).collect()
}

/// `n` rates in equal ratios, from well below the lowest of `knees` to well above the highest.
pub fn rates(knees: impl Iterator<Item = f64> + Clone, n: usize) -> Vec<f64> {
    let low = BELOW * knees.clone().fold(f64::INFINITY, f64::min);
    let high = ABOVE * knees.fold(0.0, f64::max);
    let step = (high / low).powf(1.0 / (n - 1) as f64);
    (0..n as i32).map(|i| rounded(low * step.powi(i))).collect()
}

/// To two digits: a rate is also a name.
pub fn rounded(x: f64) -> f64 {
    format!("{x:.1e}").parse().unwrap_or(x)
}

/// The SLO that nine of ten of these requests meet.
///
/// # Panics
/// Without any.
pub fn slo_ms(e2e_s: &[f64]) -> u64 {
    let nine_of_ten = Quantiles::of(e2e_s.iter().copied()).p90;
    lab::slo_ms(nine_of_ten.expect("requests that were measured"))
}

/// Which share of these requests meets it.
pub fn share_within(e2e_s: &[f64], slo_ms: u64) -> f64 {
    let within = e2e_s.iter().filter(|s| **s * 1e3 <= slo_ms as f64).count();
    within as f64 / e2e_s.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::rung;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_grid_brackets_every_knee(knees in prop::collection::vec(0.01..50.0f64, 1..6), n in 2..9usize) {
            let rates = rates(knees.iter().copied(), n);
            prop_assert_eq!(rates.len(), n);
            prop_assert!(rates.is_sorted());
            for knee in knees {
                prop_assert!(rates[0] < 0.6 * knee && rates[n - 1] > 1.8 * knee, "{:?} {}", rates, knee);
            }
        }

        #[test]
        fn nine_of_ten_meet_the_slo_and_hardly_more(
            mut e2e_s in prop::collection::vec(0.2..20.0f64, 10..60),
        ) {
            let slo = slo_ms(&e2e_s);
            prop_assert!(share_within(&e2e_s, slo) >= 0.9);
            // A grain less, and it is not met by so many.
            e2e_s.sort_by(f64::total_cmp);
            let grain = if slo <= 1000 { 10 } else { 100 };
            prop_assert!(share_within(&e2e_s, slo - grain) < 0.9);
        }
    }

    #[test]
    fn a_rate_is_a_short_name() {
        assert_eq!(
            [rounded(0.123_45), rounded(12.3), rounded(1.96)],
            [0.12, 12.0, 2.0]
        );
    }

    #[test]
    fn sizes_that_were_measured_make_the_prediction() {
        let answered = |index, answer_tokens| Record {
            index,
            status: Some(200),
            first_frame_us: Some(1),
            prompt_tokens: Some(256),
            completion_tokens: Some(answer_tokens),
            ..Record::default()
        };
        // 10 ms a chunk, 1 ms a decode: alone, 256 tokens and 11 of answer are 20 ms.
        let model = CostModel {
            step_us: 1000.0,
            prefill_token_us: 9000.0 / 256.0,
            decode_seq_us: 0.0,
            cached_token_us: 0.0,
        };
        let fifo = || vec![rung::config(Some(&Rung::files()[0])).unwrap()];
        let predicted = predict(
            fifo(),
            model,
            Mix::Standard,
            &[answered(0, 11), answered(1, 11)],
        )
        .unwrap();
        assert_eq!(predicted[0].rung, "rung1-fifo");
        assert!((predicted[0].per_s - 50.0).abs() < 0.1, "{predicted:?}");
        assert!(predict(fifo(), model, Mix::Standard, &[]).is_err());
    }
}
