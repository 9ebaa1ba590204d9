//! `decision`: what a promise costs. A daemon of rung 5, calibrated on the fake backend, is offered open-loop load; what
//! its decisions cost is told by its own histograms of CPU and wall time, how soon a refusal is answered by the clients'
//! clock. Once more while a single decode blocks. And how long the calibration file takes to load.

mod blocked;
mod loaded;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use cadenced::logic::conformal::boosting::BoostParams;
use cadenced::promises;
use clap::Args;
use serde::Serialize;

use crate::calibrated::Calibrated;
use crate::daemon;
use crate::load::quantile::Quantiles;
use crate::prometheus::Histogram;
use crate::provenance::Provenance;
use crate::stats::Spread;
use loaded::{Load, Loaded};

/// What is required: half and 99 of 100 decisions within so much CPU time of their thread, a refusal while a decode
/// blocks, and the calibration file.
pub const P50_US: f64 = 10.0;
pub const P99_US: f64 = 50.0;
pub const REFUSAL_MS: f64 = 5.0;
pub const ARTIFACT_MS: f64 = 50.0;

const CPU: &str = "cadenced_admission_decision_cpu_seconds";
const WALL: &str = "cadenced_admission_decision_wall_seconds";

/// Steps of tens of milliseconds, as real ones are, and room for a fault: a prompt with the marker blocks one decode.
pub const FAKE: [(&str, &str); 8] = [
    ("fake.step_us", "20000"),
    ("fake.prefill_token_us", "50"),
    ("fake.decode_seq_us", "500"),
    ("fake.cached_token_us", "0"),
    ("fake.fault", "stall"),
    ("fake.fault_marker", blocked::MARKER),
    ("fake.fault_at_token", "50"),
    ("fake.stall_ms", "2000"),
];
/// What most requests of the mix need alone, and few beside others.
const SLO_MS: u64 = 5000;
/// How often the file is loaded in each repeat.
const LOADS_OF_FILE: usize = 20;

#[derive(Args)]
pub struct DecisionArgs {
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// Multiples of what the daemon can do, as its calibration has measured it.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    loads: Vec<f64>,
    /// Seconds of arrivals in each repeat of each load.
    #[arg(long, default_value_t = 45.0)]
    seconds: f64,
    /// How long the daemon is calibrated first.
    #[arg(long, default_value_t = 5.0)]
    calibrate_minutes: f64,
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    #[arg(long, default_value = "bench/results/decision.json")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Results {
    slo_ms: u64,
    saturation_per_s: f64,
    artifact: ArtifactFile,
    loaded: Vec<Row>,
    blocked: Refusals,
}

#[derive(Serialize)]
struct ArtifactFile {
    bytes: u64,
    trees: usize,
    scores: usize,
    /// From the file's name to a controller that promises.
    load_ms: Spread,
}

/// A load, over its repeats.
#[derive(Serialize)]
struct Row {
    load: f64,
    rate_per_s: f64,
    /// How many, by verdict.
    decisions: BTreeMap<String, u64>,
    cpu: Costs,
    wall: Costs,
    refusals: Refusals,
    repeats: Vec<Loaded>,
}

/// What decisions cost by one clock.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    count: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    within_p50: f64,
    within_p99: f64,
    /// The highest bucket's bound; none if the bucket has none.
    at_most_us: Option<f64>,
}

#[derive(Serialize)]
struct Costs {
    p50_us: Spread,
    p99_us: Spread,
    within_p50: Spread,
    within_p99: Spread,
    at_most_us: Option<f64>,
}

/// How soon refusals with 503 were answered, over their repeats, in ms.
#[derive(Serialize)]
struct Refusals {
    count: usize,
    codes: BTreeMap<String, usize>,
    p50_ms: Spread,
    p99_ms: Spread,
    max_ms: Spread,
}

/// Refusals of one repeat: why each was refused, and after how many ms that was told whole.
#[derive(Default, Serialize)]
struct Refused {
    codes: BTreeMap<String, usize>,
    #[serde(skip)]
    ms: Vec<f64>,
}

pub fn run(args: &DecisionArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[])?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    let calibrated = Calibrated::make(&binary, &FAKE, args.calibrate_minutes)?;
    provenance.canary.sing()?;
    let mut loaded = Vec::new();
    for &load in &args.loads {
        let rate_per_s = load * calibrated.saturation_per_s;
        let mut repeats = Vec::new();
        for seed in 0..args.repeats as u64 {
            let daemon = calibrated.start()?;
            provenance.effective = Some(daemon.effective()?);
            repeats.push(loaded::measure(
                &daemon,
                &Load {
                    rate_per_s,
                    seconds: args.seconds,
                    seed,
                    slo_ms: SLO_MS,
                },
            )?);
        }
        let row = Row::of((load, rate_per_s), repeats);
        row.report();
        loaded.push(row);
        provenance.canary.sing()?;
    }
    let blocked = (0..args.repeats).map(|_| blocked::measure(&calibrated.start()?));
    let blocked = Refusals::of(&blocked.collect::<Result<Vec<_>>>()?);
    println!("while a decode blocks: {}", blocked.show());
    provenance.canary.sing()?;
    let artifact = ArtifactFile::time(&calibrated, args.repeats)?;
    println!(
        "a calibration file of {} bytes is loaded in {} ms",
        artifact.bytes,
        artifact.load_ms.show(2)
    );
    provenance.write(
        &args.out,
        &Results {
            slo_ms: SLO_MS,
            saturation_per_s: calibrated.saturation_per_s,
            artifact,
            loaded,
            blocked,
        },
    )
}

impl ArtifactFile {
    fn time(calibrated: &Calibrated, repeats: usize) -> Result<Self> {
        let config = calibrated.config()?;
        let load = || {
            let began = Instant::now();
            let artifact = promises::artifact(&config).map_err(anyhow::Error::msg)?;
            let artifact = artifact.context("no calibration is configured")?;
            let controller = promises::deployed(&config, Some(&artifact));
            let ms = began.elapsed().as_secs_f64() * 1e3;
            anyhow::ensure!(controller.is_armed(), "what was loaded promises nothing");
            Ok((ms, artifact.points.len()))
        };
        let loads = (0..repeats.max(1) * LOADS_OF_FILE).map(|_| load());
        let loads: Vec<(f64, usize)> = loads.collect::<Result<_>>()?;
        let ms: Vec<f64> = loads.iter().map(|(ms, _)| *ms).collect();
        Ok(Self {
            bytes: std::fs::metadata(&calibrated.file)?.len(),
            trees: BoostParams::default().trees,
            scores: loads[0].1,
            load_ms: Spread::of(&ms),
        })
    }
}

impl Row {
    fn of((load, rate_per_s): (f64, f64), repeats: Vec<Loaded>) -> Self {
        let mut decisions = BTreeMap::new();
        for (verdict, n) in repeats.iter().flat_map(|r| &r.decisions) {
            *decisions.entry(verdict.clone()).or_default() += n;
        }
        let refused: Vec<&Refused> = repeats.iter().map(|r| &r.refused).collect();
        Self {
            load,
            rate_per_s,
            decisions,
            cpu: Costs::of(repeats.iter().map(|r| r.cpu)),
            wall: Costs::of(repeats.iter().map(|r| r.wall)),
            refusals: Refusals::of(&refused),
            repeats,
        }
    }

    fn report(&self) {
        println!(
            "{} × saturation, {:?}\n  CPU µs: p50 {}, p99 {}; wall µs: p50 {}, p99 {}\n  refusals: {}",
            self.load,
            self.decisions,
            self.cpu.p50_us.show(1),
            self.cpu.p99_us.show(1),
            self.wall.p50_us.show(1),
            self.wall.p99_us.show(1),
            self.refusals.show()
        );
    }
}

impl Cost {
    fn of(h: &Histogram) -> Self {
        let at_most_us = h.at_most() * 1e6;
        Self {
            count: h.count,
            mean_us: h.mean() * 1e6,
            p50_us: h.quantile(0.5) * 1e6,
            p99_us: h.quantile(0.99) * 1e6,
            within_p50: h.share_within(P50_US * 1e-6),
            within_p99: h.share_within(P99_US * 1e-6),
            at_most_us: at_most_us.is_finite().then_some(at_most_us),
        }
    }
}

impl Costs {
    fn of(repeats: impl Iterator<Item = Cost>) -> Self {
        let repeats: Vec<Cost> = repeats.collect();
        let of = |f: &dyn Fn(&Cost) -> f64| Spread::of(&repeats.iter().map(f).collect::<Vec<_>>());
        let highest = repeats.iter().map(|c| c.at_most_us);
        Self {
            p50_us: of(&|c| c.p50_us),
            p99_us: of(&|c| c.p99_us),
            within_p50: of(&|c| c.within_p50),
            within_p99: of(&|c| c.within_p99),
            at_most_us: highest
                .collect::<Option<Vec<_>>>()
                .map(|all| Spread::of(&all).max),
        }
    }
}

impl Refusals {
    fn of<R: std::borrow::Borrow<Refused>>(repeats: &[R]) -> Self {
        let mut codes = BTreeMap::new();
        for (code, n) in repeats.iter().flat_map(|r| &r.borrow().codes) {
            *codes.entry(code.clone()).or_default() += n;
        }
        let quantiles = repeats
            .iter()
            .map(|r| Quantiles::of(r.borrow().ms.iter().copied()));
        let quantiles: Vec<Quantiles> = quantiles.filter(|q| q.n > 0).collect();
        let of = |f: &dyn Fn(&Quantiles) -> Option<f64>| {
            Spread::of(&quantiles.iter().filter_map(f).collect::<Vec<_>>())
        };
        Self {
            count: quantiles.iter().map(|q| q.n).sum(),
            codes,
            p50_ms: of(&|q| q.p50),
            p99_ms: of(&|q| q.p99),
            max_ms: of(&|q| q.max),
        }
    }

    fn show(&self) -> String {
        format!(
            "{} in p50 {}, p99 {}, at most {} ms",
            self.count,
            self.p50_ms.show(2),
            self.p99_ms.show(2),
            self.max_ms.show(2)
        )
    }
}

impl Refused {
    fn push(&mut self, code: &str, ms: f64) {
        *self.codes.entry(code.to_owned()).or_default() += 1;
        self.ms.push(ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_beyond_the_last_bucket_has_no_bound() {
        let text = |last: u32| {
            format!(
                "h_bucket{{le=\"0.00001\"}} 60\nh_bucket{{le=\"0.00005\"}} {last}\nh_bucket{{le=\"+Inf\"}} 100\n\
                 h_sum 0.001\nh_count 100\n"
            )
        };
        let cost = |last| Cost::of(&Histogram::read(&text(last), "h"));
        let within = cost(100);
        assert_eq!((within.within_p50, within.within_p99), (0.6, 1.0));
        assert!((within.at_most_us.unwrap() - 50.0).abs() < 1e-9);
        let beyond = cost(99);
        assert_eq!((beyond.within_p99, beyond.at_most_us), (0.99, None));
        let both = Costs::of([within, beyond].into_iter());
        assert_eq!((both.within_p99.min, both.at_most_us), (0.99, None));
    }

    #[test]
    fn refusals_of_repeats_are_counted_together_and_timed_apart() {
        let of = |ms: &[f64], code: &str| {
            let mut refused = Refused::default();
            ms.iter().for_each(|ms| refused.push(code, *ms));
            refused
        };
        let repeats = [of(&[1.0, 2.0, 9.0], "a"), of(&[3.0], "b"), of(&[], "c")];
        let all = Refusals::of(&repeats);
        assert_eq!(all.count, 4);
        assert_eq!(all.codes, [("a".into(), 3), ("b".into(), 1)].into());
        assert_eq!((all.p50_ms.min, all.p50_ms.max), (2.0, 3.0));
        assert_eq!(all.max_ms.max, 9.0);
    }
}
