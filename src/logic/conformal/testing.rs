//! A toy engine for the tests: latency is the work ahead over its pace, and a reply of unknown length.

use super::artifact::{Artifact, Provenance};
use super::boosting::BoostParams;
use super::calibration::Alpha;
use super::controller::{Controller, Course};
use super::features::extract;
use super::online::CalibratorConfig;
use super::policy::{Decision, Request, Settings};
use super::predictor::{Latency, PredictorKind, Row};
use super::snapshot::{AdmitContext, LaneLoad, Pace, Snapshot};
use crate::ids::RequestId;
use crate::logic::rng::SplitMix64;

pub const IDLE: Pace = Pace {
    step_ms: 5.0,
    tokens_per_s: 200.0,
};

/// A request of a mix like the load generator's.
pub fn context(rng: &mut SplitMix64) -> AdmitContext {
    let prompt_tokens = 100 + rng.below(500) as u32;
    AdmitContext {
        prompt_tokens,
        cached_prefix_tokens: if rng.unit() < 0.5 {
            prompt_tokens / 2
        } else {
            0
        },
        max_tokens: (4.6 + 0.8 * rng.normal()).exp().clamp(16.0, 512.0) as u32,
        messages: 1 + rng.below(4) as u32,
    }
}

/// An engine with so many requests in it, of which 8 at most run.
pub fn engine(requests: u32) -> Snapshot {
    let running = requests.min(8);
    let waiting = requests - running;
    Snapshot {
        promised: LaneLoad {
            waiting,
            running,
            output_tokens: u64::from(running) * 70 + u64::from(waiting) * 140,
            prefill_tokens: u64::from(waiting) * 300,
        },
        kv_free: 1.0 - f64::from(running) / 10.0,
        pace: Pace {
            step_ms: 5.0 + f64::from(running),
            tokens_per_s: 200.0 + 60.0 * f64::from(running),
        },
        ..Snapshot::idle(IDLE)
    }
}

/// Decides on a request with so much time that finds so many others, and tells how it ended, if it ran.
pub fn serve(c: &mut Controller, rng: &mut SplitMix64, load: u32, budget_ms: f64) -> Decision {
    let r = Request {
        context: context(rng),
        ..request(0, budget_ms)
    };
    let now = engine(load);
    let d = c.decide(&r, &now);
    if d.verdict.admits() {
        let ms = latency_ms(rng, &r.context, &now);
        c.ended(&d, Latency::Exact(ms), Course::AsDecided);
    }
    d
}

/// What the toy engine takes, in ms.
pub fn latency_ms(rng: &mut SplitMix64, request: &AdmitContext, engine: &Snapshot) -> f64 {
    let own = f64::from(request.max_tokens) * (0.2 + 0.8 * rng.unit()) * engine.pace.step_ms;
    let queue = 1000.0 * engine.promised.output_tokens as f64 / engine.pace.tokens_per_s * 0.5;
    let waits = if engine.promised.waiting > 0 {
        queue
    } else {
        0.0
    };
    own + waits + 0.4 * f64::from(request.new_prefill_tokens()) + 20.0 * rng.unit()
}

/// Rows over loads from 0 to 40 requests.
pub fn rows(rng: &mut SplitMix64, n: usize) -> Vec<Row> {
    (0..n)
        .map(|_| {
            let (request, engine) = (context(rng), engine(rng.below(41) as u32));
            Row {
                features: extract(&request, &engine),
                latency: Latency::Exact(latency_ms(rng, &request, &engine)),
            }
        })
        .collect()
}

pub fn alpha(a: f64) -> Alpha {
    Alpha::new(a).unwrap()
}

pub fn artifact() -> Artifact {
    let mut rng = SplitMix64::new(5);
    let (train, calibrate) = (rows(&mut rng, 1500), rows(&mut rng, 1000));
    let provenance = Provenance {
        backend: "toy".into(),
        model_sha256: String::new(),
        quantisation: String::new(),
        threads: 1,
        device: String::new(),
        kv_cells: 1,
        traces_sha256: vec![],
    };
    Artifact::fit(
        PredictorKind::Trees,
        &BoostParams::default(),
        &train,
        &calibrate,
        IDLE,
        provenance,
    )
    .unwrap()
}

pub fn request(max_tokens: u32, budget_ms: f64) -> Request {
    Request {
        id: RequestId(1),
        context: AdmitContext {
            prompt_tokens: 300,
            cached_prefix_tokens: 0,
            max_tokens,
            messages: 2,
        },
        budget_ms,
        alpha: None,
        best_effort: false,
    }
}

pub fn without_exploring() -> Settings {
    Settings {
        explore_every: 0,
        ..Settings::at(alpha(0.05))
    }
}

pub fn controller(settings: Settings) -> Controller {
    Controller::calibrated(settings, CalibratorConfig::default(), &artifact())
}
