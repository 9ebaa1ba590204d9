//! `knobs`: the table behind the defaults. Three groups of cells, each in a fresh process, taken in turn:
//! the model file × KV type × flash attention on an otherwise idle machine; the KV layout; and threads × OpenMP's
//! wait policy × a busy neighbour. The last two on the first model file.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::child;
use crate::decode_cell::{Outcome, Spec};
use crate::effective;
use crate::engine::BareSettings;
use crate::neighbour::Neighbour;
use crate::numbers::{at_least_one, positive};
use crate::provenance::Provenance;
use crate::stats::Spread;

const BATCHES: [u32; 4] = [1, 4, 8, 16];

#[derive(Args)]
pub struct KnobsArgs {
    /// The model file; give one for each variant. The first is the one that threads are measured on.
    #[arg(
        long = "model",
        default_values = ["models/smollm2-135m-instruct-q4_0.gguf", "models/smollm2-135m-instruct-q4_1.gguf"]
    )]
    models: Vec<PathBuf>,
    #[arg(long, value_delimiter = ',', default_value = "f16,q8_0")]
    kv: Vec<String>,
    /// Thread counts of the second group; the largest is that of the first group.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<i32>,
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<usize>())]
    repeats: usize,
    #[arg(long, default_value_t = 512)]
    context: u32,
    #[arg(long, default_value_t = 256)]
    chunk: u32,
    /// Decode steps at each batch size, at most.
    #[arg(long, default_value_t = 24, value_parser = at_least_one::<usize>())]
    steps: usize,
    /// Seconds at each batch size, at most.
    #[arg(long, default_value_t = 6.0, value_parser = positive)]
    seconds_max: f64,
    /// Cells of the pool.
    #[arg(long, default_value_t = 16_384)]
    cells: u32,
    /// Leaves the first group out.
    #[arg(long)]
    threads_only: bool,
    #[arg(long, default_value = "bench/results/knobs.json")]
    out: PathBuf,
}

/// A combination of settings.
#[derive(Clone, Debug, Serialize)]
struct Knobs {
    group: &'static str,
    model: String,
    kv: String,
    flash_attention: bool,
    layout: &'static str,
    threads: i32,
    /// How the threads wait for one another.
    wait: &'static str,
    neighbour: bool,
}

#[derive(Serialize)]
struct Cell {
    knobs: Knobs,
    #[serde(skip)]
    path: PathBuf,
    prefill_tokens_per_s: Spread,
    batches: Vec<u32>,
    decode_tokens_per_s: Vec<Spread>,
    repeats: Vec<Outcome>,
}

pub fn run(args: &KnobsArgs) -> Result<()> {
    let models: Vec<_> = args.models.iter().map(PathBuf::as_path).collect();
    let mut provenance = Provenance::begin(&models)?;
    let mut cells = cells(args)?;
    println!("{} cells, {} repeats", cells.len(), args.repeats);
    for repeat in 0..args.repeats {
        for i in 0..cells.len() {
            // There and back, so that slow changes of the machine fall on all alike.
            let i = if repeat % 2 == 0 {
                i
            } else {
                cells.len() - 1 - i
            };
            measure(args, &mut cells[i])?;
        }
        provenance.canary.sing()?;
    }
    for cell in &mut cells {
        let of = |f: &dyn Fn(&Outcome) -> f64| {
            Spread::of(&cell.repeats.iter().map(f).collect::<Vec<_>>())
        };
        cell.prefill_tokens_per_s = of(&|o| o.prefill_tokens_per_s);
        cell.decode_tokens_per_s = (0..BATCHES.len())
            .map(|b| of(&|o| o.decode_tokens_per_s[b]))
            .collect();
    }
    provenance.write(&args.out, &cells)
}

fn cells(args: &KnobsArgs) -> Result<Vec<Cell>> {
    let most = *args.threads.iter().max().context("no thread count")?;
    let kv = args.kv.first().context("no KV type")?;
    let make = |model: &PathBuf, knobs: Knobs| Cell {
        knobs: Knobs {
            model: model
                .file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            ..knobs
        },
        path: model.clone(),
        prefill_tokens_per_s: Spread::default(),
        batches: BATCHES.to_vec(),
        decode_tokens_per_s: Vec::new(),
        repeats: Vec::new(),
    };
    let plain = Knobs {
        group: "format",
        model: String::new(),
        kv: kv.clone(),
        flash_attention: true,
        layout: "unified",
        threads: most,
        wait: child::BOUNDED,
        neighbour: false,
    };
    let mut cells = Vec::new();
    for model in args.models.iter().filter(|_| !args.threads_only) {
        for kv in &args.kv {
            for flash_attention in [true, false] {
                // llama.cpp can't quantise V without flash attention.
                if flash_attention || !kv.starts_with('q') {
                    cells.push(make(
                        model,
                        Knobs {
                            kv: kv.clone(),
                            flash_attention,
                            ..plain.clone()
                        },
                    ));
                }
            }
        }
    }
    for kv in args.kv.iter().filter(|_| !args.threads_only) {
        for layout in ["unified", "streams"] {
            let knobs = Knobs {
                group: "layout",
                kv: kv.clone(),
                layout,
                ..plain.clone()
            };
            cells.push(make(&args.models[0], knobs));
        }
    }
    for &threads in &args.threads {
        // One thread waits for nobody.
        let waits: &[&str] = if threads == 1 {
            &[child::BOUNDED]
        } else {
            &[child::DEFAULT, "active", "passive", child::BOUNDED]
        };
        for wait in waits {
            for neighbour in [false, true] {
                let knobs = Knobs {
                    group: "threads",
                    threads,
                    wait,
                    neighbour,
                    ..plain.clone()
                };
                cells.push(make(&args.models[0], knobs));
            }
        }
    }
    Ok(cells)
}

fn measure(args: &KnobsArgs, cell: &mut Cell) -> Result<()> {
    let knobs = &cell.knobs;
    let mut settings = BareSettings::plain(&cell.path, knobs.threads, args.cells);
    settings.effective.wait_policy = knobs.wait.to_owned();
    settings.effective.kv_type_k.clone_from(&knobs.kv);
    settings.effective.kv_type_v.clone_from(&knobs.kv);
    settings.effective.flash_attention = knobs.flash_attention;
    knobs.layout.clone_into(&mut settings.effective.kv_layout);
    if knobs.group == "layout" {
        // As many streams as the largest batch, so that each has room for its context.
        settings.sequences = BATCHES[BATCHES.len() - 1];
    }
    let spec = Spec {
        settings,
        context: args.context,
        chunk: args.chunk,
        batches: BATCHES.to_vec(),
        steps: args.steps,
        seconds_max: args.seconds_max,
    };
    let neighbour = knobs.neighbour.then(Neighbour::start);
    let outcome: Outcome = child::call("knob-cell", &spec, knobs.wait)?;
    drop(neighbour);
    effective::check_same(&spec.settings.effective, &outcome.effective)?;
    ensure!(
        outcome.decode_tokens_per_s.len() == BATCHES.len(),
        "batch sizes are missing"
    );
    let rates: Vec<String> = outcome
        .decode_tokens_per_s
        .iter()
        .map(|r| format!("{r:.1}"))
        .collect();
    println!(
        "{} kv {} {} fa {} threads {} wait {} neighbour {}: prefill {:.0}, decode {}",
        knobs.model,
        knobs.kv,
        knobs.layout,
        knobs.flash_attention,
        knobs.threads,
        knobs.wait,
        knobs.neighbour,
        outcome.prefill_tokens_per_s,
        rates.join(" / ")
    );
    cell.repeats.push(outcome);
    Ok(())
}
