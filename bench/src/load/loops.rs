//! The experiment that tells an open loop from a closed one: both against the stub, offered twice what it can do.

use std::time::Duration;

use anyhow::Result;

use super::arrivals::{Extent, Process, Schedule};
use super::driver::{self, Drive, Due, Loop};
use super::mix::{Mix, Workload};
use super::occupancy::{self, Span};
use super::prompts::Style;
use super::record::Record;
use super::stub::{self, StubArgs};
use super::target::Target;

/// The stub's seats, and how long a request holds one.
const SEATS: usize = 2;
const HOLDS_S: f64 = 0.05;

/// What came of one loop.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub records: Vec<Record>,
    /// Medians of the time to the end in seconds, by quarters of the requests.
    pub quarters: Vec<f64>,
    pub per_s: f64,
    pub grows: bool,
}

/// The open loop's outcome and the closed loop's, whose clients are twice the seats.
///
/// # Errors
/// When stub or driver fail.
pub fn both(seconds: f64) -> Result<[Outcome; 2]> {
    let addr = stub::spawn(StubArgs {
        capacity: SEATS,
        sleep_ms: HOLDS_S * 1e3,
        tokens: 3,
        ..StubArgs::default()
    })?;
    let target = Target::parse(&format!("http://{addr}"), None)?;
    let capacity_per_s = SEATS as f64 / HOLDS_S;
    let schedule = Schedule {
        process: Process::Poisson,
        rate: 2.0 * capacity_per_s,
        extent: Extent::Seconds(seconds),
        seed: 1,
        burst: None,
    };
    let asks = Workload::new(Mix::Uniform, 1, &[]);
    let due = |(at_us, ask)| Due {
        at_us,
        ask,
        measured: true,
    };
    let plan: Vec<Due> = schedule
        .offsets_us()
        .into_iter()
        .zip(asks)
        .map(due)
        .collect();
    let half = plan.len() / 2;
    let one = |mode, plan: &[Due]| -> Result<Outcome> {
        let drive = Drive {
            mode,
            timeout: Duration::from_secs(300),
            slo_ms: None,
            style: Style::default(),
            closed_until: None,
        };
        Ok(Outcome::of(driver::drive(&target, plan, &drive)?))
    };
    Ok([
        one(Loop::Open, &plan)?,
        one(Loop::Closed(2 * SEATS), &plan[..half])?,
    ])
}

impl Outcome {
    fn of(records: Vec<Record>) -> Self {
        let median = |part: &[Record]| {
            let mut e2e: Vec<f64> = part.iter().map(Record::e2e_s).collect();
            e2e.sort_by(f64::total_cmp);
            e2e[e2e.len() / 2]
        };
        let size = records.len().div_ceil(4).max(1);
        Self {
            quarters: records.chunks(size).map(median).collect(),
            per_s: records.len() as f64 / Span::of_run(&records).seconds(),
            grows: occupancy::is_growing(&records),
            records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn against_a_saturated_server_an_open_loop_grows_without_bound_and_a_closed_loop_plateaus() {
        let [open, closed] = both(2.0).unwrap();
        let all = open.records.iter().chain(&closed.records);
        assert!(all.into_iter().all(Record::is_completed));

        let grown = &open.quarters;
        assert!(grown.is_sorted() && grown[3] > 4.0 * grown[0], "{grown:?}");
        assert!(grown[3] > 1.0, "the last wait for half of all: {grown:?}");
        assert!(open.grows);
        // Four clients on two seats: each waits for one turn and takes one.
        let flat = &closed.quarters;
        assert!(
            flat[3] < 2.0 * flat[0] && flat[3] < grown[3] / 3.0,
            "{flat:?}"
        );
        assert!(!closed.grows);

        // Both kept the seats busy: what came out is the same, and the wait is what differs.
        let ratio = open.per_s / closed.per_s;
        assert!(
            (ratio - 1.0).abs() < 0.25,
            "{} {}",
            open.per_s,
            closed.per_s
        );
        // The closed loop has no schedule to fall behind.
        let on_time = |r: &Record| r.lag_s().is_some_and(|lag| lag < 0.01);
        assert!(closed.records.iter().all(on_time));
    }
}
