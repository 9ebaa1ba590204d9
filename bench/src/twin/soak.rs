//! Very many requests through one rung: how fast the twin is, on the machine at hand.

use std::time::Instant;

use super::arrivals::Offer;
use super::engine::Trial;
use super::lab::{self, Lab};
use super::rung::RUNGS;
use crate::load::arrivals::Extent;

/// Which rung, if none is named: that of the continuous scheduler by itself.
pub const RUNG: &str = RUNGS[2];
/// Share of saturation: batches are full and the queue still ends.
const LOAD: f64 = 0.9;

/// Runs `n` requests with steps skipped and step by step, and says what came out. Both must agree.
///
/// # Panics
/// If they do not.
pub fn soak(lab: &Lab, n: usize) -> String {
    let requests = Offer {
        rate: LOAD * lab.saturation_per_s(),
        extent: Extent::Requests(n),
        ..lab.offer.clone()
    }
    .requests();
    let last = lab.last_rung();
    let promises = last.rung.promises();
    let controller = || lab.controller(&last.rung, lab.artifact.as_deref(), None);
    let timed = |skip: bool| {
        let trial = Trial {
            skip,
            controller: promises.then(controller),
            slo_us: promises.then(|| lab::slo_ms(lab.alone_s(0.9)) * 1000),
            ..last.clone()
        };
        let clock = Instant::now();
        let fates = trial.run(&requests);
        (fates, clock.elapsed().as_secs_f64())
    };
    let ((fates, skipping_s), (stepped, stepping_s)) = (timed(true), timed(false));
    assert!(fates == stepped, "skipping changed something");
    let tokens: u64 = fates.iter().map(|f| u64::from(f.generated)).sum();
    let pairs = fates.iter().zip(&requests);
    let in_flight_us: u64 = pairs.map(|(f, r)| f.end_us - r.at_us).sum();
    let span_us = fates.iter().map(|f| f.end_us).max().unwrap_or(0) as f64;
    let per_minute = |seconds: f64| n as f64 / seconds * 60e-6;
    format!(
        "{n} requests of {:.0} tokens, {:.1} in flight in the mean, {:.0} h in virtual time: \
         {:.1} million a minute, {:.1} step by step",
        tokens as f64 / n as f64,
        in_flight_us as f64 / span_us,
        span_us / 3.6e9,
        per_minute(skipping_s),
        per_minute(stepping_s),
    )
}
