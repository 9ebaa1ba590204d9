//! Decisions under open-loop load: their cost by the daemon's histograms, and refusals by the clients' clock.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use cadenced::logic::conformal::policy::Verdict;
use serde::Serialize;

use super::cost::{Cost, Refused};
use crate::all;
use crate::daemon::Daemon;
use crate::load::metrics;
use crate::load::record::Record;
use crate::load::run::{self, RunArgs};
use crate::load::soundness;
use crate::prometheus::{Histogram, value};

const CPU: &str = "cadenced_admission_decision_cpu_seconds";
const WALL: &str = "cadenced_admission_decision_wall_seconds";

/// What is offered: the standard mix.
pub struct Load {
    pub rate_per_s: f64,
    pub seconds: f64,
    pub seed: u64,
    pub slo_ms: u64,
}

/// A repeat.
#[derive(Serialize)]
pub struct Loaded {
    /// How many, by verdict.
    pub decisions: BTreeMap<String, u64>,
    pub cpu: Cost,
    pub wall: Cost,
    pub refused: Refused,
    /// Requests that the daemon had in hand, in the mean.
    mean_in_flight: f64,
}

/// # Errors
/// When the load was not what it was to be, or not everything that was offered was decided on.
pub fn measure(daemon: &Daemon, load: &Load) -> Result<Loaded> {
    let mut args: RunArgs = all::given("run", &["--url", &daemon.url()])?;
    args.rate = Some(load.rate_per_s);
    args.duration = Some(load.seconds);
    args.seed = load.seed;
    args.slo_ms = Some(load.slo_ms);
    args.send_slo = true;
    let before = daemon.metrics()?;
    let (records, meta) = run::measure(&args)?;
    let after = daemon.metrics()?;
    soundness::refuse(meta.unsound)?;
    let since = |name| Histogram::read(&after, name).since(&Histogram::read(&before, name));
    let (cpu, wall) = (since(CPU), since(WALL));
    ensure!(
        cpu.count == records.len() as f64 && meta.summary.failed == 0,
        "of {} requests {} were decided on, and {} failed",
        records.len(),
        cpu.count,
        meta.summary.failed
    );
    let decided = |verdict: Verdict| {
        let verdict = verdict.label();
        let name = format!("cadenced_admission_decisions_total{{verdict=\"{verdict}\"}}");
        let [before, after] = [&before, &after].map(|text| value(text, &name).unwrap_or(0.0));
        (verdict.to_owned(), (after - before) as u64)
    };
    let decisions = Verdict::ALL.into_iter().map(decided);
    Ok(Loaded {
        decisions: decisions.filter(|(_, n)| *n > 0).collect(),
        cpu: Cost::of(&cpu),
        wall: Cost::of(&wall),
        refused: refused(&records),
        mean_in_flight: meta.summary.mean_in_flight,
    })
}

/// The 503s, from when the client took each up, before it had a connection, to the last byte.
fn refused(records: &[Record]) -> Refused {
    let mut refused = Refused::default();
    for record in records.iter().filter(|r| r.status == Some(503)) {
        if let Some(began_us) = record.dispatched_us {
            let us = record.finish_us.saturating_sub(began_us);
            refused.push(&metrics::reason(record), us as f64 * 1e-3);
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_from_when_its_client_took_it_up() {
        let record = |status: u16, finish_us| Record {
            intended_us: 1000,
            dispatched_us: Some(3000),
            sent_us: Some(3500),
            finish_us,
            status: Some(status),
            code: Some("slo_overloaded".into()),
            ..Record::default()
        };
        let all = refused(&[record(503, 5000), record(422, 6000), record(200, 7000)]);
        assert_eq!(all.ms, [2.0]);
        assert_eq!(all.codes, [("slo_overloaded".into(), 1)].into());
    }
}
