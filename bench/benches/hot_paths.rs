//! What a token and a request cost on the host, function by function: `cargo bench -p cadenced-bench`.

use std::hint::black_box;

use cadenced::http::openai::{Chunk, ChunkWriter};
use cadenced::ids::{SeqId, TokenId};
use cadenced::logic::kv::{Demand, KvPool, Reservation};
use cadenced::logic::output::TextAssembler;
use cadenced::logic::request::{Outcome, RequestSpec, Terms};
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use cadenced::logic::scheduler::step::{RowResult, StepPlan};
use cadenced::logic::scheduler::{Scheduler, Start, StepLimits};
use cadenced::logic::time::Timestamp;
use cadenced::model::sampling::{Sampler, SamplingParams};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Roughly what a model gives: a bell curve, and a few tokens well above it.
fn logits(size: usize) -> Vec<f32> {
    let mut rng = SmallRng::seed_from_u64(1);
    (0..size)
        .map(|_| {
            let bell = (0..6).map(|_| rng.random::<f32>()).sum::<f32>() * 3.0 - 9.0;
            bell + if rng.random::<f32>() > 0.9995 {
                12.0
            } else {
                0.0
            }
        })
        .collect()
}

fn sampling(c: &mut Criterion) {
    let off = SamplingParams {
        temperature: 0.8,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        seed: 7,
    };
    let settings = [
        (
            "greedy",
            SamplingParams {
                temperature: 0.0,
                ..off
            },
        ),
        ("temperature", off),
        ("top_k_40", SamplingParams { top_k: 40, ..off }),
        ("top_p_0.95", SamplingParams { top_p: 0.95, ..off }),
        ("min_p_0.05", SamplingParams { min_p: 0.05, ..off }),
    ];
    let mut group = c.benchmark_group("sample");
    for size in [49_152, 262_144] {
        let logits = logits(size);
        for (name, params) in &settings {
            group.bench_function(BenchmarkId::new(*name, size), |b| {
                let (mut sampler, mut index) = (Sampler::new(), 0);
                b.iter(|| {
                    index += 1;
                    sampler.sample(black_box(&logits), params, index)
                });
            });
        }
    }
    group.finish();
}

fn text(c: &mut Criterion) {
    for (name, stops) in [
        ("none", vec![]),
        ("two", vec!["</s>".to_owned(), "\n\nUser:".to_owned()]),
    ] {
        c.bench_function(&format!("assemble/stops_{name}"), |b| {
            let (mut assembler, mut out) = (TextAssembler::new(stops.clone()), String::new());
            b.iter(|| {
                out.clear();
                assembler.push(black_box(b" token"), &mut out)
            });
        });
    }
    let writer = ChunkWriter::new("chatcmpl-0123456789abcdef", 1_700_000_000, "model");
    c.bench_function("chunk/fresh", |b| {
        b.iter(|| writer.content_chunk(black_box(" token")))
    });
    c.bench_function("chunk/reused", |b| {
        let mut out = Vec::new();
        b.iter(|| {
            out.clear();
            writer.write_sse(&mut out, Chunk::Content(black_box(" token")));
        });
    });
}

/// Planning a decode step and taking its results in, at several numbers of running sequences.
fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    for running in [1u32, 16, 64] {
        let policy = Policy::Continuous {
            max_running: running as usize,
            order: StepOrder::DecodeFirst,
        };
        let mut scheduler = Scheduler::new(
            policy,
            StepLimits {
                prefill_budget: 4096,
                n_batch: 8192,
                lane_slowdown: 0.05,
            },
        );
        let mut pool = KvPool::unified(running * 1024, running, Reservation::Request);
        for id in 0..running {
            let spec = RequestSpec {
                id: cadenced::ids::RequestId(id.into()),
                arrival: Timestamp(0),
                deadline: Timestamp::NEVER,
                prompt_tokens: 8,
                max_tokens: u32::MAX - 8,
                preempted: false,
                terms: Terms::default(),
            };
            let lease = pool
                .admit(&Demand {
                    prefix: None,
                    prompt_tokens: spec.prompt_tokens,
                    total_max: 16,
                })
                .expect("there is room");
            assert_eq!(lease.seq, SeqId(id));
            let start = Start {
                lease,
                cached: 0,
                lock: None,
                generated: 0,
            };
            scheduler.admit(spec, start, ());
        }
        let (mut plan, mut results, mut left) = (StepPlan::default(), Vec::new(), Vec::new());
        group.bench_function(BenchmarkId::from_parameter(running), |b| {
            b.iter(|| {
                scheduler.sweep(&mut left);
                scheduler.plan(&mut plan);
                results.clear();
                results.resize(plan.rows.len(), RowResult::Sampled(TokenId(1)));
                let done = scheduler.complete(&plan, &results, |_, _| None::<Outcome>);
                assert!(done.is_ok());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, sampling, text, step);
criterion_main!(benches);
