//! When a run may not be reported: a benchmark owes it to itself to look. Each check names the number that it
//! went by; a report that is refused ends with exit status 2, which no gate may take for a pass.

use serde::{Deserialize, Serialize};

use super::metrics::Summary;
use super::quantile::{Quantiles, fewest_for};
use crate::numbers::{not_negative, percentile, positive};

/// One reason not to report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Unsound {
    /// The generator sent late, so it stopped offering load exactly when the server was slow.
    ScheduleNotKept {
        p99_ms: f64,
        max_ms: f64,
    },
    /// Hardly anything was in the system at a time: the model was measured and called a server.
    TooLittleLoad {
        mean_in_flight: f64,
        floor: f64,
    },
    /// The percentile is the maximum under a name that it has not earned.
    TooFewArrivals {
        arrivals: usize,
        fewest: usize,
        percentile: f64,
    },
    RateMissing {
        rate: f64,
    },
    NothingCompleted {
        arrivals: usize,
    },
    /// The gate has nothing to compare a rung with.
    NoBudget {
        rung: String,
    },
    /// Two accounts of one run disagree.
    NotAccounted {
        what: String,
        found: f64,
        expected: f64,
    },
    /// Results of several engines in one table.
    MixedFingerprints {
        first: String,
        other: String,
    },
    /// What was found in one of several runs, by its name.
    In {
        run: String,
        found: Box<Self>,
    },
}

impl Unsound {
    /// Where several runs are spoken of.
    pub fn of_run(self, run: &str) -> Self {
        Self::In {
            run: run.to_owned(),
            found: Box::new(self),
        }
    }
}

impl std::fmt::Display for Unsound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ScheduleNotKept { p99_ms, max_ms } => write!(
                f,
                "the schedule was not kept: requests left up to {max_ms:.0} ms late (p99 {p99_ms:.1} ms)"
            ),
            Self::TooLittleLoad {
                mean_in_flight,
                floor,
            } => write!(
                f,
                "too little load: {mean_in_flight:.2} requests in flight in the mean, and {floor} were asked for"
            ),
            Self::TooFewArrivals {
                arrivals,
                fewest,
                percentile,
            } => write!(
                f,
                "too few arrivals for p{percentile}: {arrivals}, and fewer than {fewest} make it the maximum"
            ),
            Self::RateMissing { rate } => write!(f, "the rate of {rate}/s is missing"),
            Self::NothingCompleted { arrivals } => {
                write!(f, "none of {arrivals} requests was completed")
            }
            Self::NoBudget { rung } => write!(f, "{rung} has no budget; refresh it"),
            Self::NotAccounted {
                what,
                found,
                expected,
            } => write!(
                f,
                "{what}: {found}, and {expected} are accounted for elsewhere"
            ),
            Self::MixedFingerprints { first, other } => {
                write!(f, "two engines in one report: {first} and {other}")
            }
            Self::In { run, found } => write!(f, "{run}: {found}"),
        }
    }
}

/// Why a report was refused. As an error of a command it ends the program with 2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurementUnsound(pub Vec<Unsound>);

impl std::fmt::Display for MeasurementUnsound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reasons: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "measurement unsound: {}", reasons.join("; "))
    }
}

impl std::error::Error for MeasurementUnsound {}

/// What a run must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct Limits {
    /// The 99th percentile of send lag that is still a schedule.
    #[arg(long, default_value_t = 50.0, value_parser = positive)]
    pub lag_p99_ms_max: f64,
    /// The largest send lag that is still a schedule.
    #[arg(long, default_value_t = 250.0, value_parser = positive)]
    pub lag_ms_max: f64,
    /// Requests in flight in the mean below which a run says nothing about a server; 0 for unloaded latencies.
    #[arg(long, default_value_t = 1.0, value_parser = not_negative)]
    pub in_flight_min: f64,
    /// The percentile that is to be quoted, which decides how many arrivals are enough.
    #[arg(long, default_value_t = 99.0, value_parser = percentile)]
    pub percentile: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lag_p99_ms_max: 50.0,
            lag_ms_max: 250.0,
            in_flight_min: 1.0,
            percentile: 99.0,
        }
    }
}

/// Everything that speaks against reporting a run.
pub fn complaints(summary: &Summary, limits: &Limits) -> Vec<Unsound> {
    let mut found = Vec::new();
    let ms = |s: Option<f64>| s.unwrap_or(0.0) * 1e3;
    let (p99_ms, max_ms) = (ms(summary.send_lag.p99), ms(summary.send_lag.max));
    if p99_ms > limits.lag_p99_ms_max || max_ms > limits.lag_ms_max {
        found.push(Unsound::ScheduleNotKept { p99_ms, max_ms });
    }
    let (mean_in_flight, floor) = (summary.mean_in_flight, limits.in_flight_min);
    if mean_in_flight < floor {
        found.push(Unsound::TooLittleLoad {
            mean_in_flight,
            floor,
        });
    }
    let (arrivals, percentile) = (summary.measured, limits.percentile);
    let fewest = fewest_for(percentile);
    if arrivals < fewest {
        found.push(Unsound::TooFewArrivals {
            arrivals,
            fewest,
            percentile,
        });
    }
    if summary.completed == 0 {
        found.push(Unsound::NothingCompleted { arrivals });
    }
    found
}

/// The rates of a grid that no run has.
pub fn missing_rates(asked: &[f64], present: &[f64]) -> Vec<Unsound> {
    let is_missing = |rate: &&f64| {
        !present
            .iter()
            .any(|p| (p - **rate).abs() <= 1e-9 * rate.abs())
    };
    let missing = asked.iter().filter(is_missing);
    missing
        .map(|rate| Unsound::RateMissing { rate: *rate })
        .collect()
}

/// Whether all runs of a report, by their names, measured one engine; one without a fingerprint is another engine.
pub fn mixed_fingerprints(engines: &[(String, Option<String>)]) -> Option<Unsound> {
    let name = |f: &Option<String>| f.clone().unwrap_or_else(|| "unknown".into());
    let (_, first) = engines.first()?;
    let (run, other) = engines.iter().find(|(_, f)| f != first)?;
    let mixed = Unsound::MixedFingerprints {
        first: name(first),
        other: name(other),
    };
    Some(mixed.of_run(run))
}

/// The last line of what is said of a run: without it the figures above look as good as any.
pub fn verdict(reasons: &[Unsound]) -> String {
    let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    match reasons.as_slice() {
        [] => "verdict      sound".into(),
        all => format!(
            "verdict      UNSOUND, not to be reported: {}",
            all.join("; ")
        ),
    }
}

/// # Errors
/// When there is a reason.
pub fn refuse(reasons: Vec<Unsound>) -> Result<(), MeasurementUnsound> {
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(MeasurementUnsound(reasons))
    }
}

/// Below this the generator's own lag is not worth speaking of.
pub const LAG_P99_MS_GOOD: f64 = 5.0;

/// What the generator says of its own speed, and whether it was fast enough.
pub fn self_check(send_lag: &Quantiles) -> (bool, String) {
    let lag = send_lag.scaled(1e3);
    match lag.p99 {
        None => (true, "nothing was sent".into()),
        Some(p99) if p99 < LAG_P99_MS_GOOD => (
            true,
            format!("the generator kept up: send lag, ms: {}", lag.show(2)),
        ),
        Some(_) => (
            false,
            format!(
                "the generator could NOT keep up (p99 of {LAG_P99_MS_GOOD} ms wanted): send lag, ms: {}; \
                 give it a core of its own or offer less",
                lag.show(2)
            ),
        ),
    }
}

#[cfg(test)]
#[path = "soundness_tests.rs"]
mod tests;
