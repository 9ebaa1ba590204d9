//! Every metric: its name, its help and its labels, in one place.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

use super::published::Published;
use crate::logic::conformal::policy::Verdict;
use crate::logic::conformal::tally::Tally;
use crate::logic::request::{Lane, Outcome};
use std::sync::atomic::Ordering::Relaxed;

/// The daemon's metrics. Gauges of the engine are read off [`Published`] at each scrape.
pub struct Metrics {
    registry: Registry,
    pub requests: IntCounterVec,
    /// From arrival to the first token, for requests that had one.
    pub ttft: Histogram,
    /// From arrival to the end, for complete replies.
    pub e2e: Histogram,
    /// Between the model's part of a step and that of the next.
    pub step_host: Histogram,
    /// The model's part of a step: memory operations, decode, sampling.
    pub step_model: Histogram,
    pub http_in_flight: IntGauge,
    /// Generations asked for through the admin listener; they are in no other count of requests.
    pub admin_requests: IntCounter,
    pub decisions: Decisions,
    pub trace_rows_dropped: IntCounter,
    promises: IntCounterVec,
    armed: IntGauge,
    mismatch: IntGauge,
    waiting: IntGauge,
    running: IntGauge,
    best_effort_waiting: IntGauge,
    best_effort_running: IntGauge,
    late: IntGauge,
    kv_blocks_free: IntGauge,
    kv_blocks_total: IntGauge,
    kv_blocks_cached: IntGauge,
    kv_fragmentation: Gauge,
    sequences_free: IntGauge,
    sequences_cached: IntGauge,
    kv_copies: IntCounter,
    preemptions: IntCounter,
    prefix_lookups: IntCounter,
    prefix_hits: IntCounter,
    prefix_evictions: IntCounter,
    pub generated: IntCounter,
    pub prefilled: IntCounter,
}

/// Admission's decisions: how many of each kind, and what one costs.
pub struct Decisions {
    by_verdict: IntCounterVec,
    pub cpu: Histogram,
    pub wall: Histogram,
}

impl Decisions {
    /// One more.
    pub fn count(&self, verdict: Verdict) {
        self.by_verdict.with_label_values(&[verdict.label()]).inc();
    }
}

const SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0,
];
const STEP_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 5.0,
];
/// Close together around the 10 and 50 µs that half and all but one in a hundred decisions are to take at most.
const DECISION_SECONDS: &[f64] = &[
    1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 7e-6, 8e-6, 9e-6, 1e-5, 1.2e-5, 1.5e-5, 2e-5, 2.5e-5, 3e-5,
    4e-5, 5e-5, 6e-5, 8e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3,
];
const HOST_SECONDS: &[f64] = &[
    5e-6, 1e-5, 2e-5, 3e-5, 4e-5, 6e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2,
];

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// Never in practice: only when two metrics share a name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let g = IntGauge::new(name, help)?;
            registry.register(Box::new(g.clone()))?;
            Ok(g)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let c = IntCounter::new(name, help)?;
            registry.register(Box::new(c.clone()))?;
            Ok(c)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let h = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
            registry.register(Box::new(h.clone()))?;
            Ok::<_, prometheus::Error>(h)
        };
        // A series that exists from the start can be alerted on.
        let counters = |name: &str, help: &str, label: &str, values: &[&str]| {
            let all = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(all.clone()))?;
            for value in values {
                let _ = all.with_label_values(&[value]);
            }
            Ok::<_, prometheus::Error>(all)
        };
        let requests = counters(
            "cadenced_requests_total",
            "Requests that ended, by outcome.",
            "outcome",
            &Outcome::ALL.map(Outcome::label),
        )?;
        Ok(Self {
            requests,
            ttft: histogram("cadenced_ttft_seconds", "Arrival to first token.", SECONDS)?,
            e2e: histogram("cadenced_e2e_seconds", "Arrival to last token.", SECONDS)?,
            step_host: histogram(
                "cadenced_step_host_seconds",
                "From the model's last result to its next batch: what of planning, accounts and messages it has to wait for.",
                HOST_SECONDS,
            )?,
            step_model: histogram(
                "cadenced_step_model_seconds",
                "The model's part of a step: memory operations, decode and sampling.",
                STEP_SECONDS,
            )?,
            http_in_flight: gauge(
                "cadenced_http_in_flight",
                "Requests whose body is not finished.",
            )?,
            admin_requests: counter(
                "cadenced_admin_requests_total",
                "Generations asked for through the admin listener; no other metric of requests has them.",
            )?,
            trace_rows_dropped: counter(
                "cadenced_trace_rows_dropped_total",
                "Rows that the trace's writer did not keep up with.",
            )?,
            decisions: Decisions {
                by_verdict: counters(
                    "cadenced_admission_decisions_total",
                    "Decisions of admission, the capacity cap's apart, by verdict.",
                    "verdict",
                    &Verdict::ALL.map(Verdict::label),
                )?,
                cpu: histogram(
                    "cadenced_admission_decision_cpu_seconds",
                    "CPU time of a decision: features, prefix probe, prediction and bound.",
                    DECISION_SECONDS,
                )?,
                wall: histogram(
                    "cadenced_admission_decision_wall_seconds",
                    "Wall time of a decision: with what others did on its core meanwhile.",
                    DECISION_SECONDS,
                )?,
            },
            promises: counters(
                "cadenced_admission_bounds_total",
                "Requests that ended with a bound on their latency: promised, or only observed; kept, missed, \
                 or left by the client before or after the bound.",
                "result",
                &results(&Tally::default()).map(|(result, _)| result),
            )?,
            armed: gauge(
                "cadenced_admission_armed",
                "1 while promises are made at the configured level.",
            )?,
            mismatch: gauge(
                "cadenced_admission_artifact_mismatch",
                "1 if the calibration given was made for another engine.",
            )?,
            waiting: gauge(
                "cadenced_waiting",
                "Requests in the wait queue, the best-effort lane apart.",
            )?,
            running: gauge(
                "cadenced_running",
                "Requests that run, or wait for another's prefill, the best-effort lane apart.",
            )?,
            best_effort_waiting: gauge(
                "cadenced_best_effort_waiting",
                "Requests of the best-effort lane in the wait queue.",
            )?,
            best_effort_running: gauge(
                "cadenced_best_effort_running",
                "Requests of the best-effort lane that have a seat; some may pause.",
            )?,
            late: gauge(
                "cadenced_predicted_misses",
                "Running requests that are not expected to end by when it was promised, or wanted.",
            )?,
            kv_blocks_free: gauge("cadenced_kv_blocks_free", "Free KV blocks of 16 cells.")?,
            kv_blocks_total: gauge("cadenced_kv_blocks_total", "KV blocks of 16 cells.")?,
            kv_blocks_cached: gauge(
                "cadenced_kv_blocks_cached",
                "KV blocks that only cached prefixes hold: as good as free.",
            )?,
            kv_fragmentation: {
                let (name, help) = (
                    "cadenced_kv_fragmentation",
                    "Share of the cells in held KV blocks without a token.",
                );
                let g = Gauge::new(name, help)?;
                registry.register(Box::new(g.clone()))?;
                g
            },
            sequences_free: gauge("cadenced_sequences_free", "Free llama.cpp sequence ids.")?,
            sequences_cached: gauge(
                "cadenced_sequences_cached",
                "Sequence ids that cached prefixes hold.",
            )?,
            kv_copies: counter("cadenced_kv_copies_total", "KV blocks copied on write.")?,
            preemptions: counter(
                "cadenced_preemptions_total",
                "Times that a request yielded its seat or its memory, to be computed again.",
            )?,
            prefix_lookups: counter(
                "cadenced_prefix_lookup_tokens_total",
                "Prompt tokens looked up in the prefix cache.",
            )?,
            prefix_hits: counter(
                "cadenced_prefix_hit_tokens_total",
                "Prompt tokens found in the prefix cache.",
            )?,
            prefix_evictions: counter(
                "cadenced_prefix_evictions_total",
                "Leaves evicted from the prefix cache.",
            )?,
            generated: counter(
                "cadenced_generated_tokens_total",
                "Tokens of replies, as they are billed.",
            )?,
            prefilled: counter("cadenced_prefilled_tokens_total", "Prompt tokens computed.")?,
            registry,
        })
    }

    /// The exposition text.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn render(&self, published: &Published) -> Result<Vec<u8>, prometheus::Error> {
        let kv = published.kv();
        for (lane, waiting, running) in [
            (Lane::Promised, &self.waiting, &self.running),
            (
                Lane::BestEffort,
                &self.best_effort_waiting,
                &self.best_effort_running,
            ),
        ] {
            let state = published.lane(lane);
            waiting.set(state.waiting.requests() as i64);
            running.set(state.running.requests() as i64);
        }
        self.late.set(published.late.load(Relaxed) as i64);
        self.kv_blocks_free.set(kv.blocks_free.into());
        self.kv_blocks_total.set(kv.blocks_total.into());
        self.kv_blocks_cached.set(kv.blocks_cached.into());
        self.kv_fragmentation.set(kv.fragmentation());
        self.sequences_free.set(kv.sequences_free.into());
        self.sequences_cached.set(kv.sequences_cached.into());
        let prefixes = published.prefixes();
        let admission = published.admission();
        self.armed.set(admission.armed.into());
        self.mismatch.set(admission.mismatch.into());
        for (result, now) in results(&admission.tally) {
            let counter = self.promises.with_label_values(&[result]);
            counter.inc_by(now.saturating_sub(counter.get()));
        }
        for (counter, now) in [
            (&self.kv_copies, kv.copies),
            (&self.preemptions, published.preemptions.load(Relaxed)),
            (&self.prefix_lookups, published.lookup_tokens.load(Relaxed)),
            (&self.prefix_hits, published.hit_tokens.load(Relaxed)),
            (&self.prefix_evictions, prefixes.evictions),
        ] {
            // Two scrapes at once may read in either order.
            counter.inc_by(now.saturating_sub(counter.get()));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// The record of bounds by its labels.
pub fn results(tally: &Tally) -> [(&'static str, u64); 8] {
    let (promised, observed) = (tally.promised, tally.observed);
    [
        ("kept", promised.kept),
        ("missed", promised.missed),
        ("censored", promised.censored),
        ("censored_late", promised.censored_late),
        ("observed_kept", observed.kept),
        ("observed_missed", observed.missed),
        ("observed_censored", observed.censored),
        ("observed_censored_late", observed.censored_late),
    ]
}
