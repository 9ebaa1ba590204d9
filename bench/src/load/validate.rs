//! `cadenced-bench validate`: whether the arrival process is what it says, over many seeds, and whether the open
//! loop is open. The first is the process's own test: the p-value of one seed is reported beside a run and never
//! selected on, because a seed that was rolled until its p-value looked good would make the statistic mean nothing.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use statrs::distribution::Exp;
use statrs::stats_tests::NaNPolicy;
use statrs::stats_tests::ks_test::{KSOneSampleAlternativeMethod, ks_onesample};

use super::arrivals::{Extent, Process, Schedule, gaps_s};
use crate::numbers::{at_least_one, positive};

/// Checks the arrival process over many seeds.
#[derive(Clone, Debug, clap::Args)]
pub struct ValidateArgs {
    #[arg(long, default_value_t = 200, value_parser = at_least_one::<u64>())]
    pub seeds: u64,
    /// Requests per second.
    #[arg(long, default_value_t = 1.4, value_parser = positive)]
    pub rate: f64,
    /// Seconds of each sequence.
    #[arg(long, default_value_t = 180.0, value_parser = positive)]
    pub duration: f64,
    /// Seconds of the two loops against the stub; 0 leaves them out.
    #[arg(long, default_value_t = 4.0, value_parser = positive)]
    pub loops_s: f64,
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Kolmogorov and Smirnov's test of gaps against the exponential.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KsTest {
    pub n: usize,
    pub statistic: f64,
    pub p_value: f64,
}

impl KsTest {
    /// Of the gaps between `offsets_us`; none for fewer than 8 arrivals, of which it says nothing.
    pub fn of(offsets_us: &[u64], rate: f64) -> Option<Self> {
        if offsets_us.len() < 8 {
            return None;
        }
        let gaps = gaps_s(offsets_us);
        let n = gaps.len();
        let exponential = Exp::new(rate).ok()?;
        let method = KSOneSampleAlternativeMethod::TwoSidedAsymptotic;
        let (statistic, p_value) =
            ks_onesample(gaps, &exponential, method, NaNPolicy::Error).ok()?;
        Some(Self {
            n,
            statistic,
            p_value: p_value.clamp(0.0, 1.0),
        })
    }
}

/// What `validate` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    pub seeds: u64,
    pub rate: f64,
    pub duration_s: f64,
    /// Share of the seeds that the test rejects at 0.05: about 0.05 if the process is exponential.
    pub rejected: f64,
    /// About 0.5.
    pub p_median: f64,
    /// The p-values themselves against the uniform: the process in one number.
    pub p_of_p_values: f64,
    pub arrivals_mean: f64,
    pub arrivals_expected: f64,
    pub arrivals_sd: f64,
    pub arrivals_sd_expected: f64,
    /// The first seeds one by one, for the reports that use them.
    pub first_seeds: Vec<KsTest>,
}

/// Tests sequences of seeds 0 to `seeds`.
///
/// # Errors
/// When the sequences are too short to be tested.
pub fn validate(seeds: u64, rate: f64, duration_s: f64) -> Result<Validation> {
    let schedule = |seed| Schedule {
        process: Process::Poisson,
        rate,
        extent: Extent::Seconds(duration_s),
        seed,
        burst: None,
    };
    let tests: Vec<KsTest> = (0..seeds)
        .map(|seed| KsTest::of(&schedule(seed).offsets_us(), rate))
        .collect::<Option<_>>()
        .context("a sequence is too short to be tested")?;
    let mut p_values: Vec<f64> = tests.iter().map(|t| t.p_value).collect();
    p_values.sort_by(f64::total_cmp);
    let n = seeds as f64;
    let mean = tests.iter().map(|t| t.n as f64).sum::<f64>() / n;
    let variance = tests
        .iter()
        .map(|t| (t.n as f64 - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0);
    Ok(Validation {
        seeds,
        rate,
        duration_s,
        rejected: p_values.iter().filter(|p| **p < 0.05).count() as f64 / n,
        p_median: p_values[p_values.len() / 2],
        p_of_p_values: uniformity(p_values)?,
        arrivals_mean: mean,
        arrivals_expected: rate * duration_s,
        arrivals_sd: variance.sqrt(),
        arrivals_sd_expected: (rate * duration_s).sqrt(),
        first_seeds: tests.into_iter().take(3).collect(),
    })
}

fn uniformity(p_values: Vec<f64>) -> Result<f64> {
    let uniform = statrs::distribution::Uniform::new(0.0, 1.0)?;
    let method = KSOneSampleAlternativeMethod::TwoSidedAsymptotic;
    let (_, p) = ks_onesample(p_values, &uniform, method, NaNPolicy::Error)
        .map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok(p.clamp(0.0, 1.0))
}

/// # Errors
/// See [`validate`].
pub fn run(args: &ValidateArgs) -> Result<()> {
    anyhow::ensure!(args.seeds >= 2, "two seeds at least");
    let v = validate(args.seeds, args.rate, args.duration)?;
    println!(
        "{} sequences of {} s at {}/s",
        v.seeds, v.duration_s, v.rate
    );
    println!(
        "rejected at 0.05        {:.1}% (about 5% expected)",
        v.rejected * 100.0
    );
    println!("median p-value          {:.3} (about 0.5)", v.p_median);
    println!("p-values, uniform       p = {:.3}", v.p_of_p_values);
    println!(
        "arrivals, mean          {:.1} ({:.1})",
        v.arrivals_mean, v.arrivals_expected
    );
    println!(
        "arrivals, deviation     {:.1} ({:.1})",
        v.arrivals_sd, v.arrivals_sd_expected
    );
    for (seed, test) in v.first_seeds.iter().enumerate() {
        println!(
            "seed {seed}                  n = {}, p = {:.3}",
            test.n, test.p_value
        );
    }
    if args.loops_s > 0.0 {
        let [open, closed] = super::loops::both(args.loops_s)?;
        println!("against a server that is offered twice what it can do, E2E medians by quarters:");
        for (name, outcome) in [("open", open), ("closed", closed)] {
            let quarters: Vec<String> = outcome
                .quarters
                .iter()
                .map(|q| format!("{q:.2} s"))
                .collect();
            let grows = if outcome.grows { "grows" } else { "plateaus" };
            println!(
                "{name:<8} {:.1}/s  {}  {grows} (n={})",
                outcome.per_s,
                quarters.join("  "),
                outcome.records.len()
            );
        }
    }
    if let Some(out) = &args.out {
        std::fs::write(out, serde_json::to_string_pretty(&v)? + "\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_seeds_are_exponential() {
        let v = validate(200, 1.4, 180.0).unwrap();
        // 5% ± 3 deviations of a binomial of 200.
        assert!(v.rejected < 0.05 + 3.0 * 0.0155, "{v:?}");
        assert!(v.p_of_p_values > 0.001, "{v:?}");
        assert!((v.arrivals_mean - 252.0).abs() < 3.5, "{v:?}");
        assert!((12.0..20.0).contains(&v.arrivals_sd), "{v:?}");
    }

    #[test]
    fn equal_gaps_and_another_rate_are_rejected() {
        let fixed = Schedule {
            process: Process::Fixed,
            rate: 2.0,
            extent: Extent::Requests(200),
            seed: 0,
            burst: None,
        };
        assert!(KsTest::of(&fixed.offsets_us(), 2.0).unwrap().p_value < 1e-6);
        let poisson = Schedule {
            process: Process::Poisson,
            ..fixed
        };
        assert!(KsTest::of(&poisson.offsets_us(), 4.0).unwrap().p_value < 1e-6);
        assert!(KsTest::of(&poisson.offsets_us()[..5], 2.0).is_none());
    }
}
