//! The calibration that `cadenced calibrate` would make on the twin's machine: load after load on the last rung,
//! with every bound computed and nothing refused, round after round; whole rounds become folds, so that what the
//! model is calibrated on never shared a queue with what it was fitted on.

use anyhow::{Context, Result};
use cadenced::config::AdmissionMode;
use cadenced::logic::conformal::artifact::{Artifact, Provenance};
use cadenced::logic::conformal::boosting::BoostParams;
use cadenced::logic::conformal::predictor::{Latency, PredictorKind, Row};
use cadenced::logic::time::Timestamp;
use cadenced::promises;

use super::arrivals::Offer;
use super::engine::{Fate, Request, Trial};
use super::lab::Lab;
use super::rung::Rung;
use crate::load::arrivals::Extent;

/// Multiples of saturation that a round covers.
pub const LOADS: [f64; 6] = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0];
/// Arrivals of a block, as many at each load: the calm states, on which promises are made, are not to be the rare ones.
const BLOCK: usize = 200;
/// Seconds at the beginning of each that are dropped.
const WARM_UP_S: f64 = 20.0;
/// Rounds to fit on; one more calibrates.
const TRAINING: u64 = 2;
/// A client of a block waits for so long.
const PATIENCE_US: u64 = 300_000_000;

/// What one round saw: features as admission saw them, and what became of each request.
pub fn round(lab: &Lab, seed: u64, saturation_per_s: f64) -> Vec<Row> {
    let mut rung: Rung = lab.rungs[lab.rungs.len() - 1].clone();
    rung.config.admission.mode = AdmissionMode::Observe;
    let mut controller = promises::deployed(&rung.config, None);
    controller.set_idle(lab.idle_pace());
    let trial = Trial {
        controller: Some(controller),
        patience_us: Some(PATIENCE_US),
        ..Trial::new(rung, lab.cost)
    };
    let block = |load: f64| {
        let requests = Offer {
            rate: load * saturation_per_s,
            extent: Extent::Requests(BLOCK),
            seed,
            ..lab.offer.clone()
        }
        .requests();
        let fates = trial.run(&requests);
        let row = |(fate, request): (&Fate, &Request)| {
            let features = fate.decision?.features;
            let (decided, ended) = (Timestamp(request.at_us), Timestamp(fate.end_us));
            let latency = Latency::at_end(fate.outcome, decided, ended);
            let is_warm = request.at_us as f64 >= WARM_UP_S * 1e6;
            is_warm.then_some(Row { features, latency })
        };
        let rows = fates.iter().zip(&requests).filter_map(row);
        rows.collect::<Vec<Row>>()
    };
    LOADS.into_iter().flat_map(block).collect()
}

/// An artifact for the last rung of `lab` under its cost model, from rounds with the seeds from `seed` on; a pure
/// function of both. Its provenance names the twin: whoever gives it to a daemon writes the daemon's own there
/// ([`promises::provenance`]).
///
/// # Errors
/// When a round has too little to fit on.
pub fn artifact(lab: &Lab, seed: u64) -> Result<Artifact> {
    let saturation_per_s = lab.saturation_per_s();
    let rounds = |seeds: std::ops::Range<u64>| -> Vec<Row> {
        seeds
            .flat_map(|seed| round(lab, seed, saturation_per_s))
            .collect()
    };
    let train = rounds(seed..seed + TRAINING);
    let calibrate = rounds(seed + TRAINING..seed + TRAINING + 1);
    let provenance = Provenance {
        backend: "twin".into(),
        model_sha256: String::new(),
        quantisation: String::new(),
        threads: 1,
        device: String::new(),
        kv_cells: lab.rungs[lab.rungs.len() - 1].config.cells(),
        traces_sha256: Vec::new(),
    };
    Artifact::fit(
        PredictorKind::Trees,
        &BoostParams::default(),
        &train,
        &calibrate,
        lab.idle_pace(),
        provenance,
    )
    .context("fitting the twin's calibration")
}
