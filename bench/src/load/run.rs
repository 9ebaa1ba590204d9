//! `cadenced-bench run`: one cell, from the arguments to the files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::arrivals::{Extent, Process, Schedule, replayed_us};
use super::driver::{self, Drive, Due, Loop};
use super::meta::{self, Cell, Meta, Server};
use super::metrics;
use super::mix::{Mix, Workload};
use super::occupancy::Span;
use super::prompts::Style;
use super::record::Record;
use super::soundness::{self, Limits};
use super::target::Target;
use super::trace::Trace;
use super::validate::KsTest;
use super::{parquet, print};
use crate::numbers::{at_least_one, not_negative, positive};
use crate::{cpu, provenance};

/// Offers load to an OpenAI-compatible server on a schedule that does not care how the server is doing.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// http://host:port, with or without /v1.
    #[arg(long)]
    pub url: String,
    /// Requests per second in the mean. A trace has its own unless this is given.
    #[arg(long, value_parser = positive)]
    pub rate: Option<f64>,
    /// Seconds of arrivals.
    #[arg(long, conflicts_with = "requests", value_parser = positive)]
    pub duration: Option<f64>,
    /// Number of arrivals instead.
    #[arg(long, value_parser = at_least_one::<usize>())]
    pub requests: Option<usize>,
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[arg(long, value_enum, default_value_t = Process::Poisson)]
    pub arrivals: Process,
    /// Requests that arrive together with --arrivals burst; all of them if not given.
    #[arg(long, value_parser = at_least_one::<usize>())]
    pub burst_size: Option<usize>,
    /// Clients that each wait for their answer, instead of a schedule; for contrast.
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>(), conflicts_with = "rate")]
    pub closed: Option<usize>,
    #[arg(long, value_enum, default_value_t = Mix::Standard)]
    pub mix: Mix,
    /// CSV for --arrivals trace and --mix trace, in Azure's or BurstGPT's columns.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Bound on the time to the end of the answer, for goodput.
    #[arg(long, value_parser = at_least_one::<u64>())]
    pub slo_ms: Option<u64>,
    /// Tell the server of it, so that it may promise or refuse.
    #[arg(long, requires = "slo_ms")]
    pub send_slo: bool,
    /// A client gives up so long after its intended arrival.
    #[arg(long, default_value_t = 300.0, value_parser = positive)]
    pub timeout_s: f64,
    /// Arrivals of the first seconds are recorded and not measured; of the last seconds likewise.
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub warm_up_s: f64,
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub cool_down_s: f64,
    /// The model's name; the first that the server lists if not given.
    #[arg(long)]
    pub model: Option<String>,
    /// The model's file, whose hash is kept with the records.
    #[arg(long)]
    pub model_file: Option<PathBuf>,
    /// Name of the environment variable with the API key.
    #[arg(long, value_name = "NAME")]
    pub api_key_env: Option<String>,
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub temperature: f64,
    /// Answers as long as their caps: for raw throughput only.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Parquet file for the records; the metadata goes beside it, as .json.
    #[arg(long, value_parser = parquet::records_file)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub limits: Limits,
}

/// Runs the cell, prints its summary and keeps its files, sound or not.
///
/// # Errors
/// [`soundness::MeasurementUnsound`] for a run that may not be reported; others when it could not be run.
pub fn run(args: &RunArgs) -> Result<()> {
    if let Some(out) = &args.out {
        make_room(out)?;
    }
    let (records, meta) = measure(args)?;
    print::summary(&meta.cell, &meta.summary);
    println!("the generator used {:.2} of a core", meta.generator_cores);
    if let Some(out) = &args.out {
        keep(out, &records, &meta)?;
        println!("written: {}", out.display());
    }
    println!("{}", soundness::verdict(&meta.unsound));
    Ok(soundness::refuse(meta.unsound)?)
}

/// Before anything is measured that could not be kept.
fn make_room(out: &Path) -> Result<()> {
    ensure!(
        !out.is_dir(),
        "{} is a folder, and a file is to be written",
        out.display()
    );
    let folder = out.parent().filter(|f| !f.as_os_str().is_empty());
    let made = folder.map_or(Ok(()), std::fs::create_dir_all);
    made.with_context(|| format!("making the folder of {}", out.display()))
}

/// Writes the files of a cell; the metadata comes last, so that where it is the cell is whole.
///
/// # Errors
/// When one can't be written.
pub fn keep(out: &Path, records: &[Record], meta: &Meta) -> Result<()> {
    parquet::write(out, records)?;
    meta.write(out)
}

/// Runs the cell; what speaks against reporting it is in the metadata.
///
/// # Errors
/// When it could not be run.
pub fn measure(args: &RunArgs) -> Result<(Vec<Record>, Meta)> {
    let trace = args.read_trace()?;
    for line in trace.iter().flat_map(Trace::remarks) {
        println!("trace        {line}");
    }
    let (cell, plan, span) = args.plan(trace.as_ref())?;
    let key = args.api_key_env.as_ref().map(|name| {
        let key = std::env::var(name);
        key.with_context(|| format!("--api-key-env {name}: that variable of the environment"))
    });
    let target = Target::parse(&args.url, key.transpose()?).context("--url")?;
    // Or the whole schedule would be run to find out.
    target.reach().context("--url")?;
    let mut server = Server::ask(&target);
    ensure!(
        !(cell.ignore_eos && server.rung.as_deref().is_some_and(has_admission)),
        "--ignore-eos makes the length of an answer its cap; no cell with admission is measured so"
    );
    let drive = Drive {
        mode: cell.mode,
        timeout: Duration::from_secs_f64(cell.timeout_s),
        slo_ms: cell.slo_ms.filter(|_| cell.slo_sent),
        style: Style {
            model: args.model.clone().or_else(|| target.first_model()),
            temperature: cell.temperature,
            ignore_eos: cell.ignore_eos,
        },
        closed_until: args.duration.map(Duration::from_secs_f64),
    };
    let started = provenance::now();
    let (clock, cpu_s) = (Instant::now(), cpu::process_seconds());
    let mut records = driver::drive(&target, &plan, &drive)?;
    let cores = (cpu::process_seconds() - cpu_s) / clock.elapsed().as_secs_f64();
    server.after = target.get("/stats").unwrap_or(serde_json::Value::Null);
    let window = settle(&mut records, &cell, span);
    let summary = metrics::summarize(&records, window, cell.slo_ms.map(|ms| ms as f64 * 1e-3));
    let offsets: Vec<u64> = plan.iter().map(|d| d.at_us).collect();
    let is_exponential = cell.mode == Loop::Open && cell.schedule.process == Process::Poisson;
    let root = provenance::root().filter(|_| server.is_ours());
    let model_file = args.model_file.as_ref().map(|f| provenance::model_file(f));
    let meta = Meta {
        format: meta::FORMAT,
        started,
        finished: provenance::now(),
        command: provenance::command_line(),
        revision: provenance::revision(),
        engine_fingerprint: root.and_then(|root| meta::fingerprint(&root).ok()),
        model_sha256: model_file.transpose()?.map(|f| f.sha256),
        machine: serde_json::to_value(provenance::machine())?,
        server,
        generator_cores: cores,
        gaps: is_exponential
            .then(|| KsTest::of(&offsets, cell.schedule.rate))
            .flatten(),
        unsound: soundness::complaints(&summary, &cell.limits),
        cell,
        summary,
    };
    Ok((records, meta))
}

fn has_admission(rung: &str) -> bool {
    rung.strip_prefix("rung")
        .and_then(|r| r.split('-').next()?.parse::<u32>().ok())
        .is_some_and(|n| n >= 5)
}

/// A closed loop has no schedule: what is measured is known only by when it was sent.
fn settle(records: &mut [Record], cell: &Cell, span: Span) -> Span {
    if cell.mode == Loop::Open {
        return span;
    }
    let arrivals_s = records.iter().map(|r| r.intended_us).max().unwrap_or(0) as f64 * 1e-6;
    let span = metrics::window(arrivals_s, cell.warm_up_s, cell.cool_down_s);
    for record in records {
        record.measured = span.from_us <= record.intended_us && record.intended_us <= span.to_us;
    }
    span
}

impl RunArgs {
    fn read_trace(&self) -> Result<Option<Trace>> {
        let needed = self.arrivals == Process::Trace || self.mix == Mix::Trace;
        match &self.trace {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("reading {}", path.display()))?;
                let trace = Trace::parse(&text);
                Ok(Some(trace.with_context(|| format!("{}", path.display()))?))
            }
            None if needed => bail!("--trace FILE is needed for --arrivals trace and --mix trace"),
            None => Ok(None),
        }
    }

    /// What is to be done: the cell, its requests and the part of it that is measured.
    fn plan(&self, trace: Option<&Trace>) -> Result<(Cell, Vec<Due>, Span)> {
        let replay = trace.filter(|_| self.arrivals == Process::Trace);
        let rate = match (self.rate, replay) {
            (Some(rate), _) => rate,
            (None, Some(trace)) => trace.rate(),
            // Neither a burst nor a closed loop has a rate.
            (None, None) if self.closed.is_some() || self.arrivals == Process::Burst => 1.0,
            (None, None) => bail!("--rate is needed"),
        };
        ensure!(
            rate > 0.0 && rate.is_finite(),
            "a trace of one moment has no rate; --rate gives it one"
        );
        ensure!(
            self.burst_size.is_none() || self.arrivals == Process::Burst,
            "--burst-size is for --arrivals burst"
        );
        let extent = match (self.requests, self.duration, replay) {
            (Some(n), _, _) => Extent::Requests(n),
            // Enough for any server: a closed loop ends by the clock.
            (None, Some(s), _) if self.closed.is_some() => {
                Extent::Requests((s * 10_000.0) as usize)
            }
            (None, Some(s), _) => Extent::Seconds(s),
            (None, None, Some(trace)) => Extent::Requests(trace.rows.len()),
            (None, None, None) => bail!("--duration or --requests is needed"),
        };
        let schedule = Schedule {
            process: self.arrivals,
            rate,
            extent,
            seed: self.seed,
            burst: self.burst_size,
        };
        let offsets = match replay {
            Some(trace) => replayed(trace, rate, extent),
            None => schedule.offsets_us(),
        };
        let arrivals_s = match extent {
            Extent::Seconds(s) => s,
            Extent::Requests(_) => offsets.last().map_or(0.0, |t| *t as f64 * 1e-6),
        };
        let span = metrics::window(arrivals_s, self.warm_up_s, self.cool_down_s);
        ensure!(
            self.warm_up_s + self.cool_down_s == 0.0 || span.seconds() > 0.0,
            "warm-up and cool-down leave nothing to measure"
        );
        let rows = trace.map_or(&[][..], |t| &t.rows);
        let asks = Workload::new(self.mix, self.seed, rows);
        let plan = offsets.into_iter().zip(asks).map(|(at_us, ask)| Due {
            at_us,
            ask,
            // The last arrival ends the span and belongs to it.
            measured: span.from_us <= at_us && at_us <= span.to_us,
        });
        Ok((self.cell(schedule), plan.collect(), span))
    }

    fn cell(&self, schedule: Schedule) -> Cell {
        let name = |p: &PathBuf| {
            p.file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
        };
        Cell {
            mode: self.closed.map_or(Loop::Open, Loop::Closed),
            mix: self.mix,
            schedule,
            trace: self.trace.as_ref().map(name),
            slo_ms: self.slo_ms,
            slo_sent: self.send_slo,
            timeout_s: self.timeout_s,
            warm_up_s: self.warm_up_s,
            cool_down_s: self.cool_down_s,
            temperature: self.temperature,
            ignore_eos: self.ignore_eos,
            limits: self.limits,
        }
    }
}

/// The trace's own arrivals at the pace that makes `rate`.
fn replayed(trace: &Trace, rate: f64, extent: Extent) -> Vec<u64> {
    let times: Vec<f64> = trace.rows.iter().map(|r| r.at_s).collect();
    let mut offsets = replayed_us(&times, rate / trace.rate());
    match extent {
        Extent::Seconds(s) => offsets.retain(|t| *t as f64 * 1e-6 <= s),
        Extent::Requests(n) => offsets.truncate(n),
    }
    offsets
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
