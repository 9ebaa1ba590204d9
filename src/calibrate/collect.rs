//! Collecting: how fast the machine is, then round by round the traces of the daemon under load.

use std::cell::RefCell;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Failure;
use super::daemon::{Daemon, collecting};
use super::drive::{Clients, Ends};
use super::progress::Progress;
use super::prompts::Prompts;
use super::workdir::{Manifest, Settings, Workdir};
use crate::config::Config;
use crate::logic::conformal::artifact::Provenance;
use crate::logic::conformal::online::CalibratorConfig;
use crate::logic::conformal::rounds::{self, Block, LOADS};
use crate::logic::conformal::trace::TraceRow;
use crate::logic::rng::SplitMix64;
use crate::model::EffectiveSettings;
use crate::promises;

/// An idle client pauses this part of the time that a request takes at saturation, in the mean.
const IDLE_PAUSE: f64 = 0.5;

/// How long rows may be on their way to the file after everything has ended.
const TRACES_LATE: Duration = Duration::from_secs(10);
/// The same for rows of requests whose clients left, some of which were never decided on.
const LEFT_LATE: Duration = Duration::from_secs(1);

/// What a collection needs.
pub struct Collection<'a> {
    pub config: &'a Config,
    pub work: &'a Workdir,
    pub settings: &'a Settings,
    pub prompts: &'a Prompts,
}

impl Collection<'_> {
    /// Collects what `found`, the manifest of an earlier call, has not; gives the manifest.
    ///
    /// # Errors
    /// When the daemon can't be started, or fails.
    pub async fn run(&self, found: Option<Manifest>) -> Result<Manifest, Failure> {
        let plan = self.settings.plan;
        let round_s = plan.block_s() * LOADS.len() as f64;
        let missing: Vec<u32> = (0..plan.rounds)
            .filter(|r| !self.work.has_round(*r))
            .collect();
        let done = plan.rounds - missing.len() as u32;
        let probed = found.as_ref().map_or(0.0, |_| plan.probe_s());
        let mut progress = Progress::begin(
            plan.probe_s() + f64::from(plan.rounds) * round_s,
            probed + f64::from(done) * round_s,
        );
        let manifest = match found {
            Some(manifest) => {
                progress.say(&format!("{done} of {} rounds were there", plan.rounds));
                manifest
            }
            None => self.probe(&mut progress).await?,
        };
        for round in missing {
            let name = format!("round {} of {}", round + 1, plan.rounds);
            let (mut daemon, traces) = self.start().await?;
            let provenance = self.provenance(&mut daemon).await?;
            let differences = manifest.provenance.differences(&provenance);
            if !differences.is_empty() {
                let what = differences.join(", ");
                return Err(Failure::Usage(format!(
                    "{name}: the engine has changed: {what}"
                )));
            }
            let mut run = Run {
                daemon,
                traces,
                read: 0,
            };
            let mut rows = Vec::new();
            let mut ends = Vec::new();
            for (place, block) in (0..).zip(plan.blocks(round)) {
                let what = format!("{name}, {} × saturation", block.load);
                let work = self.block(&mut run, &block, manifest.saturation_per_s);
                let (end, traced) = progress.during(&what, plan.block_s(), work).await?;
                rows.extend(rounds::of_block(place, &block, traced));
                ends.push(end);
            }
            self.work.keep_round(round, &rows)?;
            let _ = std::fs::remove_file(&run.traces);
            progress.say(&format!("{name}: {}", show(&ends)));
        }
        Ok(manifest)
    }

    /// What the machine can do: as many clients as the engine has seats, each with its next request ready.
    async fn probe(&self, progress: &mut Progress) -> Result<Manifest, Failure> {
        let (mut daemon, traces) = self.start().await?;
        let seconds = self.settings.plan.probe_s();
        let seats = self.config.policy().max_running();
        let clients = self.clients(&daemon, self.settings.plan.seed);
        let work = clients.closed(seats, seconds, || 0.0);
        let what = format!("saturation, by {seats} clients");
        let (_, late) = match progress.during(&what, seconds, work).await {
            Ok(done) => done,
            Err(e) => return Err(daemon.explain(e).await),
        };
        if late == 0 {
            let minutes = self.settings.plan.minutes;
            return Err(Failure::Usage(format!(
                "--minutes {minutes}: of {seats} requests at a time none was completed in the last {:.0} s of {seconds:.0}; \
                 try {:.0}",
                seconds / 2.0,
                (minutes * 4.0).ceil()
            )));
        }
        let manifest = Manifest {
            settings: self.settings.clone(),
            saturation_per_s: late as f64 / (seconds / 2.0),
            provenance: self.provenance(&mut daemon).await?,
        };
        let _ = std::fs::remove_file(traces);
        let scores = self.settings.plan.calibrated_s() * manifest.saturation_per_s;
        progress.say(&format!(
            "saturation: {:.2} requests/s; about {scores:.0} scores are to come, {} are the fewest that promise anything",
            manifest.saturation_per_s,
            CalibratorConfig::default().minimum
        ));
        self.work.begin(&manifest)?;
        Ok(manifest)
    }

    async fn start(&self) -> Result<(Daemon, PathBuf), Failure> {
        let traces = self.work.file("traces.jsonl");
        // Of a collection that was killed.
        let _ = std::fs::remove_file(&traces);
        let config = collecting(self.config, &traces);
        let daemon = Daemon::start(&config, self.work.folder()).await?;
        Ok((daemon, traces))
    }

    async fn provenance(&self, daemon: &mut Daemon) -> Result<Provenance, Failure> {
        let mut stats = daemon.stats().await?;
        let effective: EffectiveSettings = serde_json::from_value(stats["effective"].take())
            .map_err(|e| Failure::Internal(format!("/stats has no effective settings: {e}")))?;
        let model = self.settings.model.clone();
        Ok(promises::provenance(self.config, &effective, model))
    }

    fn clients(&self, daemon: &Daemon, seed: u64) -> Clients<'_> {
        let patience = Duration::from_secs_f64(self.settings.patience_s);
        Clients::new(daemon.client(), self.prompts.asking(seed), patience)
    }

    async fn block(
        &self,
        run: &mut Run,
        block: &Block,
        saturation_per_s: f64,
    ) -> Result<(Ends, Vec<TraceRow>), Failure> {
        let clients = self.clients(&run.daemon, block.seed);
        // Another stream than the prompts'.
        let mut rng = SplitMix64::new(!block.seed);
        let driven = if block.load == 0.0 {
            let rng = RefCell::new(rng);
            let pause =
                || IDLE_PAUSE / saturation_per_s * rounds::exponential(&mut rng.borrow_mut());
            let idle = clients.closed(1, block.arrivals_s, pause).await;
            idle.map(|(ends, _)| ends)
        } else {
            let rate = block.load * saturation_per_s;
            let arrivals = rounds::arrivals(&mut rng, rate, block.arrivals_s);
            clients.open(&arrivals).await
        };
        match driven {
            Ok(ends) => Ok((ends, run.rest(&ends).await?)),
            Err(e) => Err(run.daemon.explain(e).await),
        }
    }
}

/// A daemon and its traces.
struct Run {
    daemon: Daemon,
    traces: PathBuf,
    /// Bytes of them that were taken.
    read: u64,
}

impl Run {
    /// Waits until the daemon has nothing to do, and gives the rows since the last time.
    async fn rest(&mut self, ends: &Ends) -> Result<Vec<TraceRow>, Failure> {
        loop {
            let stats = self.daemon.stats().await?;
            let none = |key: &str| stats[key] == 0;
            if ["waiting", "running", "in_flight"].into_iter().all(none) {
                break;
            }
            self.daemon.pause().await?;
        }
        let (since, mut rows) = (Instant::now(), Vec::new());
        loop {
            self.read_new(&mut rows)?;
            let wanted = ends.finished + ends.given_up;
            let enough =
                rows.len() >= wanted || rows.len() >= ends.finished && since.elapsed() >= LEFT_LATE;
            if enough {
                return Ok(rows);
            }
            if since.elapsed() >= TRACES_LATE {
                let lost = wanted - rows.len();
                return Err(Failure::Internal(format!(
                    "{lost} rows of the traces are lost"
                )));
            }
            self.daemon.pause().await?;
        }
    }

    fn read_new(&mut self, rows: &mut Vec<TraceRow>) -> Result<(), Failure> {
        let fault = |e: &dyn std::fmt::Display| Failure::Internal(format!("traces: {e}"));
        let mut text = String::new();
        let mut file = std::fs::File::open(&self.traces).map_err(|e| fault(&e))?;
        file.seek(SeekFrom::Start(self.read))
            .map_err(|e| fault(&e))?;
        file.read_to_string(&mut text).map_err(|e| fault(&e))?;
        // The last line may be on its way.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        for line in text[..whole].lines() {
            rows.push(serde_json::from_str(line).map_err(|e| fault(&e))?);
        }
        Ok(())
    }
}

fn show(blocks: &[Ends]) -> String {
    let sum = |count: fn(&Ends) -> usize| blocks.iter().map(count).sum::<usize>();
    let mut line = format!("{} completions", sum(|e| e.finished));
    for (n, what) in [
        (sum(|e| e.refused), "refused"),
        (sum(|e| e.given_up), "given up"),
    ] {
        if n > 0 {
            line += &format!(", {n} {what}");
        }
    }
    line
}
