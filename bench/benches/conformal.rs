//! What one admission decision costs, and what a refusal's answers cost on top.

use std::hint::black_box;

use cadenced::ids::RequestId;
use cadenced::logic::conformal::artifact::{Artifact, Provenance};
use cadenced::logic::conformal::boosting::BoostParams;
use cadenced::logic::conformal::calibration::Alpha;
use cadenced::logic::conformal::controller::{Controller, Course};
use cadenced::logic::conformal::features::extract;
use cadenced::logic::conformal::online::CalibratorConfig;
use cadenced::logic::conformal::policy::{Request, Settings};
use cadenced::logic::conformal::predictor::{Latency, PredictorKind, Row};
use cadenced::logic::conformal::snapshot::{AdmitContext, LaneLoad, Pace, Snapshot};
use cadenced::logic::rng::SplitMix64;
use criterion::{Criterion, criterion_group, criterion_main};

const IDLE: Pace = Pace {
    step_ms: 5.0,
    tokens_per_s: 200.0,
};

fn context(rng: &mut SplitMix64) -> AdmitContext {
    AdmitContext {
        prompt_tokens: 100 + rng.below(500) as u32,
        cached_prefix_tokens: rng.below(100) as u32,
        max_tokens: 16 + rng.below(497) as u32,
        messages: 2,
    }
}

fn engine(rng: &mut SplitMix64) -> Snapshot {
    let (running, waiting) = (rng.below(9) as u32, rng.below(30) as u32);
    Snapshot {
        promised: LaneLoad {
            waiting,
            running,
            output_tokens: u64::from(running + waiting) * 100,
            prefill_tokens: u64::from(waiting) * 300,
        },
        kv_free: rng.unit(),
        pace: Pace {
            step_ms: 5.0 + rng.unit() * 10.0,
            tokens_per_s: 200.0 + rng.unit() * 400.0,
        },
        ..Snapshot::idle(IDLE)
    }
}

fn rows(rng: &mut SplitMix64, n: usize) -> Vec<Row> {
    let row = |_| {
        let (request, engine) = (context(rng), engine(rng));
        let own = f64::from(request.max_tokens) * rng.unit() * engine.pace.step_ms;
        let queue = f64::from(engine.promised.waiting) * 150.0;
        Row {
            features: extract(&request, &engine),
            latency: Latency::Exact(own + queue + 0.4 * f64::from(request.prompt_tokens)),
        }
    };
    (0..n).map(row).collect()
}

fn decision(c: &mut Criterion) {
    let mut rng = SplitMix64::new(1);
    let (train, calibrate) = (rows(&mut rng, 1500), rows(&mut rng, 1500));
    let provenance = Provenance {
        backend: "bench".into(),
        model_sha256: String::new(),
        quantisation: String::new(),
        threads: 1,
        device: String::new(),
        kv_cells: 1,
        traces_sha256: vec![],
    };
    let params = BoostParams::default();
    let fit = || {
        let provenance = provenance.clone();
        Artifact::fit(
            PredictorKind::Trees,
            &params,
            &train,
            &calibrate,
            IDLE,
            provenance,
        )
    };
    let artifact = fit().expect("toy data can be fitted");
    let bytes = artifact.encode().expect("an artifact can be encoded");
    let settings = Settings::at(Alpha::new(0.05).expect("within (0, 1)"));
    let mut controller = Controller::calibrated(settings, CalibratorConfig::default(), &artifact);

    // Many different ones, in turn: a single one would train the branch predictor and not the trees.
    let arrivals: Vec<(Request, Snapshot)> = (0..4096)
        .map(|id| {
            let request = Request {
                id: RequestId(id),
                context: context(&mut rng),
                budget_ms: 1000.0 + 5000.0 * rng.unit(),
                alpha: None,
                best_effort: false,
            };
            (request, engine(&mut rng))
        })
        .collect();
    let mut turn = arrivals.iter().cycle();
    let mut next = move || turn.next().expect("endless");

    let mut group = c.benchmark_group("conformal");
    group.bench_function("predict", |b| {
        b.iter_batched(
            || calibrate[rng.below(calibrate.len())].features,
            |x| black_box(artifact.model.estimate(&x)),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function("decide", |b| {
        b.iter(|| {
            let (request, snapshot) = next();
            black_box(controller.decide(request, snapshot))
        });
    });
    group.bench_function("counter_offer_and_retry", |b| {
        b.iter(|| {
            let (request, snapshot) = &arrivals[7];
            let refused = controller.quote(request, snapshot);
            let offer = controller.counter_offer(request, snapshot, &refused);
            black_box((offer, controller.retry_after_s(request, snapshot)))
        });
    });
    group.bench_function("completed", |b| {
        let d = controller.quote(&arrivals[7].0, &Snapshot::idle(IDLE));
        let d = cadenced::logic::conformal::policy::Decision {
            verdict: cadenced::logic::conformal::policy::Verdict::Promised,
            ..d
        };
        b.iter(|| controller.ended(&d, Latency::Exact(1000.0 * rng.unit()), Course::AsDecided));
    });
    group.sample_size(10);
    group.bench_function("artifact_decode", |b| {
        b.iter(|| black_box(Artifact::decode(&bytes)))
    });
    group.bench_function("fit_16x1500", |b| b.iter(|| black_box(fit())));
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
