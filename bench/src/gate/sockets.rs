//! A minute of open-loop load over real sockets: a daemon on the fake backend, offered more than it can hold, so that
//! it answers and refuses. Nothing is timed. What is checked is that the generator kept its schedule, that every
//! arrival is accounted for by both sides alike, and that the daemon has kept nothing when all is over.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::budget::{Budget, RungBudget};
use super::load::Load;
use crate::all;
use crate::daemon::Daemon;
use crate::load::arrivals::{Extent, Process, Schedule};
use crate::load::metrics::Summary;
use crate::load::run::{self, RunArgs};
use crate::load::soundness::{self, Unsound};
use crate::serving::Serving;

const SECONDS: f64 = 60.0;
/// The budget's costs over this, for some hundreds of requests in a minute.
const FASTER: f64 = 10.0;
/// Of what the rung sustains.
const LOAD: f64 = 1.5;
/// What the daemon may hold, so that it refuses.
const HELD: usize = 24;
/// How often the daemon is asked how many are in flight.
const LOOK: Duration = Duration::from_millis(50);
/// By how much the two sides' means in flight may differ: the one is of samples.
const APART: f64 = 0.1;

/// # Errors
/// [`soundness::MeasurementUnsound`] when something is lost or late; others when the daemon can't be run.
pub fn run(budget: &Budget, daemon: Option<PathBuf>, settings: &[(String, String)]) -> Result<()> {
    let rung = budget.rungs.first().context("the budget has no rung")?;
    let serving = Serving {
        model: PathBuf::from("none"),
        daemon,
        settings: [&fake(&budget.load), settings].concat(),
    };
    let daemon = serving.start(rung.config.as_ref(), &[])?;
    let args = asked(&budget.load, rung, &daemon)?;
    let done = AtomicBool::new(false);
    let (measured, seen) = std::thread::scope(|scope| {
        let samples = scope.spawn(|| in_flight(&daemon, &done));
        let measured = run::measure(&args);
        done.store(true, Relaxed);
        (measured, samples.join())
    });
    let (records, meta) = measured?;
    let mut unsound = meta.unsound;
    daemon.rest()?;
    let s = &meta.summary;
    let scheduled = Schedule {
        process: Process::Poisson,
        rate: args.rate.unwrap_or_default(),
        extent: Extent::Seconds(SECONDS),
        seed: args.seed,
        burst: None,
    };
    unsound.extend(accounts(
        scheduled.offsets_us().len(),
        records.len(),
        s,
        &daemon.stats()?,
    ));
    let in_flight = seen.unwrap_or_default();
    if (in_flight / s.mean_in_flight - 1.0).abs() > APART || !in_flight.is_finite() {
        unsound.push(differs(
            "mean in flight, by the server's own count",
            in_flight,
            s.mean_in_flight,
        ));
    }
    println!(
        "{}: {} offered, {} answered, {} refused, {} gave up, {} failed; {:.1} in flight in the mean by Little's \
         law, {in_flight:.1} by the server's count",
        rung.rung, s.requests, s.completed, s.shed, s.censored, s.failed, s.mean_in_flight
    );
    soundness::refuse(unsound)?;
    println!("sound, and all is accounted for");
    Ok(())
}

/// The fake, faster than the budget's, in a small house.
fn fake(load: &Load) -> Vec<(String, String)> {
    let cost = load.cost;
    let costs = [
        ("step_us", cost.step_us),
        ("prefill_token_us", cost.prefill_token_us),
        ("decode_seq_us", cost.decode_seq_us),
        ("cached_token_us", cost.cached_token_us),
    ];
    let set = |key: String, value: String| (key, value);
    let costs = costs.map(|(key, us)| set(format!("fake.{key}"), (us / FASTER).to_string()));
    let house = [
        set("model.backend".into(), "fake".into()),
        set("limits.requests".into(), HELD.to_string()),
    ];
    costs.into_iter().chain(house).collect()
}

fn asked(load: &Load, rung: &RungBudget, daemon: &Daemon) -> Result<RunArgs> {
    let mut run: RunArgs = all::given("run", &["--url", &daemon.url()])?;
    run.rate = Some(LOAD * FASTER * rung.saturation_per_s);
    run.duration = Some(SECONDS);
    run.mix = load.mix;
    run.slo_ms = Some(load.slo_ms);
    run.send_slo = true;
    Ok(run)
}

/// The mean over samples of how many requests the daemon has in hand, from now until `done`.
fn in_flight(daemon: &Daemon, done: &AtomicBool) -> f64 {
    let (mut sum, mut samples) = (0.0, 0.0);
    while !done.load(Relaxed) {
        if let Ok(stats) = daemon.stats() {
            sum += number(&stats, "/in_flight");
            samples += 1.0;
        }
        std::thread::sleep(LOOK);
    }
    sum / samples
}

/// Where the schedule, the records and the daemon's own account of a run that is over disagree.
fn accounts(scheduled: usize, records: usize, s: &Summary, stats: &Value) -> Vec<Unsound> {
    let of = |pointer: &str| number(stats, pointer);
    let ended_as = |outcome: &str| of(&format!("/requests/{outcome}"));
    let answers = ended_as("stop") + ended_as("length");
    // What can't be met even alone is invalid there, and refused here.
    let refusals = ended_as("refused") + ended_as("invalid");
    let cancels = ended_as("cancelled");
    let all = stats["requests"].as_object();
    let ended: f64 = all.map_or(0.0, |all| all.values().filter_map(Value::as_f64).sum());
    let told = s.completed + s.shed + s.censored + s.failed;
    let rows = [
        ("records", records as f64, scheduled as f64),
        ("records by how they ended", told as f64, scheduled as f64),
        ("failed requests", s.failed as f64, 0.0),
        ("requests in the daemon's account", ended, scheduled as f64),
        (
            "answers in the daemon's account",
            answers,
            s.completed as f64,
        ),
        ("refusals in the daemon's account", refusals, s.shed as f64),
        (
            "cancels in the daemon's account",
            cancels,
            s.censored as f64,
        ),
        ("seats held at the end", of("/held/requests"), 0.0),
        ("bytes held at the end", of("/held/bytes"), 0.0),
        ("tokens held at the end", of("/held/tokens"), 0.0),
        (
            "running or waiting at the end",
            of("/running") + of("/waiting"),
            0.0,
        ),
        (
            "blocks free or cached at the end",
            of("/kv/blocks_free") + of("/kv/blocks_cached"),
            of("/kv/blocks_total"),
        ),
        (
            "sequences free or cached at the end",
            of("/sequences/free") + of("/sequences/cached"),
            of("/sequences/total"),
        ),
    ];
    let wrong = rows
        .into_iter()
        .filter(|(_, found, expected)| found != expected);
    wrong
        .map(|(what, found, expected)| differs(what, found, expected))
        .collect()
}

fn differs(what: &str, found: f64, expected: f64) -> Unsound {
    Unsound::NotAccounted {
        what: what.into(),
        found,
        expected,
    }
}

/// NaN, which equals nothing, where there is none.
fn number(stats: &Value, pointer: &str) -> f64 {
    stats
        .pointer(pointer)
        .and_then(Value::as_f64)
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn summary() -> Summary {
        Summary {
            requests: 10,
            completed: 6,
            shed: 3,
            censored: 1,
            ..Summary::default()
        }
    }

    fn stats() -> Value {
        json!({
            "requests": { "stop": 5, "length": 1, "refused": 3, "invalid": 0, "cancelled": 1, "failed": 0 },
            "held": { "requests": 0, "bytes": 0, "tokens": 0 },
            "running": 0, "waiting": 0,
            "kv": { "blocks_free": 7, "blocks_cached": 3, "blocks_total": 10 },
            "sequences": { "free": 2, "cached": 1, "total": 3 },
        })
    }

    fn complaints(change: impl Fn(&mut Summary, &mut Value)) -> Vec<String> {
        let (mut summary, mut stats) = (summary(), stats());
        change(&mut summary, &mut stats);
        let found = accounts(10, 10, &summary, &stats);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn both_sides_tell_the_same_and_nothing_is_kept() {
        assert_eq!(complaints(|_, _| {}), [""; 0]);
        assert_eq!(accounts(11, 10, &summary(), &stats()).len(), 3);
        let lost = complaints(|_, stats| stats["requests"]["refused"] = 2.into());
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert!(lost[1].contains("refusals"), "{lost:?}");
        let leak = complaints(|_, stats| stats["kv"]["blocks_cached"] = 2.into());
        assert!(
            leak[0].contains("blocks free or cached at the end: 9, and 10"),
            "{leak:?}"
        );
        let seat = complaints(|_, stats| stats["held"]["requests"] = 1.into());
        assert!(seat[0].contains("seats"), "{seat:?}");
        let failed = complaints(|s, _| (s.failed, s.completed) = (1, 5));
        assert!(failed[0].contains("failed"), "{failed:?}");
        // What the daemon does not tell is no zero.
        let silent = complaints(|_, stats| stats["held"] = Value::Null);
        assert_eq!(silent.len(), 3, "{silent:?}");
    }
}
