//! `occupancy`: what a decode step pays for cells that belong to others. A fixed batch with short contexts of its
//! own decodes while more and more of the unified pool is taken up by sequences that take no part.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::child;
use crate::decode_cell::mean_step;
use crate::engine::{Bare, BareSettings, Sequence};
use crate::numbers::{at_least_one, not_negative};
use crate::provenance::Provenance;
use crate::stats::Spread;

/// Tokens of each sequence that only takes up room.
const FILLER: u32 = 1024;

#[derive(Args)]
pub struct OccupancyArgs {
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_0.gguf")]
    model: PathBuf,
    #[arg(long, default_value_t = 4, value_parser = at_least_one::<u32>())]
    batch: u32,
    /// Tokens of each context that decodes.
    #[arg(long, default_value_t = 64)]
    own: u32,
    #[arg(long, default_value_t = 16_384)]
    cells: u32,
    /// Parts of the pool that others hold.
    #[arg(long, value_delimiter = ',', default_value = "0,0.25,0.5,0.93", value_parser = not_negative)]
    levels: Vec<f64>,
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<usize>())]
    repeats: usize,
    #[arg(long, default_value_t = 24, value_parser = at_least_one::<usize>())]
    steps: usize,
    #[arg(long, default_value = "bench/results/occupancy.json")]
    out: PathBuf,
}

#[derive(Serialize, Deserialize)]
pub struct Spec {
    settings: BareSettings,
    batch: u32,
    own: u32,
    fillers: u32,
    steps: usize,
}

#[derive(Serialize)]
struct Row {
    flash_attention: bool,
    cells_of_others: u32,
    cells: u32,
    batch: u32,
    own: u32,
    step_ms: Spread,
    repeats: Vec<f64>,
}

pub fn run(args: &OccupancyArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[&args.model])?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    let mut rows = Vec::new();
    for flash_attention in [true, false] {
        for level in &args.levels {
            let fillers = (level * f64::from(args.cells) / f64::from(FILLER)) as u32;
            let needed = fillers * FILLER + args.batch * (args.own + args.steps as u32 + 1);
            ensure!(needed <= args.cells, "level {level} leaves no room");
            rows.push(Row {
                flash_attention,
                cells_of_others: fillers * FILLER,
                cells: args.cells,
                batch: args.batch,
                own: args.own,
                step_ms: Spread::default(),
                repeats: Vec::new(),
            });
        }
    }
    for repeat in 0..args.repeats {
        for i in 0..rows.len() {
            let i = if repeat % 2 == 0 {
                i
            } else {
                rows.len() - 1 - i
            };
            let row = &mut rows[i];
            let mut settings = BareSettings::plain(&args.model, cores, args.cells);
            settings.effective.flash_attention = row.flash_attention;
            let spec = Spec {
                settings,
                batch: args.batch,
                own: args.own,
                fillers: row.cells_of_others / FILLER,
                steps: args.steps,
            };
            row.repeats
                .push(child::call("occupancy-cell", &spec, child::BOUNDED)?);
        }
        provenance.canary.sing()?;
    }
    for row in &mut rows {
        row.step_ms = Spread::of(&row.repeats);
        println!(
            "flash attention {:<5}  {:>5} of {} cells held by others: {} ms",
            row.flash_attention,
            row.cells_of_others,
            row.cells,
            row.step_ms.show(1)
        );
    }
    provenance.write(&args.out, &rows)
}

/// The child's side: milliseconds of a step.
pub fn cell(spec: Spec) -> Result<f64> {
    let mut bare = Bare::load(&spec.settings)?;
    let first_filler = spec.batch as i32;
    if spec.fillers > 0 {
        let tokens: Vec<i32> = (0..FILLER).map(|i| (i * 7 % 1000) as i32 + 100).collect();
        bare.prefill(first_filler, 0, &tokens)?;
        let copies: Vec<i32> = (1..spec.fillers as i32).map(|i| first_filler + i).collect();
        bare.copy(first_filler, &copies)?;
    }
    let tokens: Vec<i32> = (0..spec.own)
        .map(|i| (i * 11 % 1000) as i32 + 100)
        .collect();
    let mut sequences = Vec::new();
    for id in 0..spec.batch as i32 {
        sequences.push(Sequence::new(id, bare.prefill(id, 0, &tokens)?, spec.own));
    }
    Ok(mean_step(&mut bare, &mut sequences, spec.steps, f64::INFINITY)? * 1e3)
}
