//! `compare`: several servers side by side. Every rate and seed is offered to one server after the other, the same
//! arrivals and the same questions, with another server first each time, so that a machine that gets slower in the
//! course of it wrongs nobody. The cells are `run`'s, and `report` makes the tables and the figures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::all;
use crate::load::run::{self, RunArgs};
use crate::load::soundness::MeasurementUnsound;
use crate::numbers::{at_least_one, positive};
use crate::report;

/// Measures several servers on the same arrivals, in turn.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareArgs {
    /// A name and an address, at least twice.
    #[arg(long = "server", value_name = "NAME=URL", required = true, value_parser = server)]
    servers: Vec<Server>,
    /// Requests per second.
    #[arg(long, value_delimiter = ',', required = true, value_parser = positive)]
    rates: Vec<f64>,
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<u64>())]
    seeds: u64,
    /// The folder for the cells; must be empty or not there.
    #[arg(long)]
    out: PathBuf,
    /// Options of `run`, for every cell.
    #[arg(last = true)]
    run: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct Server {
    name: String,
    url: String,
}

fn server(text: &str) -> Result<Server> {
    let (name, url) = text.split_once('=').context("not NAME=URL")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ensure!(
        !name.is_empty() && name.chars().all(is_plain),
        "{name:?} can't name a file"
    );
    Ok(Server {
        name: name.to_owned(),
        url: url.to_owned(),
    })
}

/// One run of one server.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Turn<'a> {
    server: &'a str,
    rate: f64,
    seed: u64,
}

impl Turn<'_> {
    /// Of its files.
    fn name(&self) -> String {
        format!("{}-{}-{}", self.server, self.rate, self.seed)
    }
}

/// # Errors
/// [`MeasurementUnsound`] when a cell may not be reported; others when one could not be run.
pub fn run(args: &CompareArgs) -> Result<()> {
    let turns = turns(args);
    let names: Vec<&str> = args.servers.iter().map(|s| s.name.as_str()).collect();
    let is_twice = |(i, name): (usize, &&str)| names[..i].contains(name);
    ensure!(names.len() > 1, "one server is no comparison");
    ensure!(
        !names.iter().enumerate().any(is_twice),
        "two servers of one name"
    );
    // Before anything is measured, whatever is wrong with the options.
    let cells: Vec<RunArgs> = turns
        .iter()
        .map(|turn| cell(args, turn))
        .collect::<Result<_>>()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    if std::fs::read_dir(&args.out)?.next().is_some() {
        bail!("{} is not empty", args.out.display());
    }
    let plan = serde_json::json!({ "servers": &args.servers, "turns": &turns });
    let plan = serde_json::to_string_pretty(&plan)? + "\n";
    std::fs::write(args.out.join(report::COMPARISON), plan)?;
    for (i, (turn, cell)) in turns.iter().zip(&cells).enumerate() {
        println!(
            "{}/{}  {} at {}/s, seed {}",
            i + 1,
            turns.len(),
            turn.server,
            turn.rate,
            turn.seed
        );
        match run::run(cell) {
            // Its files say so, and the report refuses them; the others may be needed all the same.
            Err(e) if e.is::<MeasurementUnsound>() => eprintln!("{}: {e}", turn.name()),
            done => done?,
        }
    }
    report::one(&args.out, None)
}

/// Who is measured when: all servers at one rate and seed before the next, another one first each time.
fn turns(args: &CompareArgs) -> Vec<Turn<'_>> {
    let rounds = args
        .rates
        .iter()
        .flat_map(|rate| (0..args.seeds).map(|seed| (*rate, seed)));
    let round = |(first, (rate, seed)): (usize, (f64, u64))| {
        let servers = args.servers.iter().cycle().skip(first % args.servers.len());
        servers.take(args.servers.len()).map(move |server| Turn {
            server: &server.name,
            rate,
            seed,
        })
    };
    rounds.enumerate().flat_map(round).collect()
}

fn cell(args: &CompareArgs, turn: &Turn) -> Result<RunArgs> {
    let server = args
        .servers
        .iter()
        .find(|s| s.name == turn.server)
        .context("no such server")?;
    let name = turn.name() + ".parquet";
    let own = [
        ("--url", server.url.clone()),
        ("--rate", turn.rate.to_string()),
        ("--seed", turn.seed.to_string()),
        (
            "--out",
            args.out
                .join(Path::new(&name))
                .to_string_lossy()
                .into_owned(),
        ),
    ];
    let own = own.iter().flat_map(|(key, value)| [key, value.as_str()]);
    let options: Vec<&str> = own.chain(args.run.iter().map(String::as_str)).collect();
    all::given("run", &options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::stub::{self, StubArgs};

    fn args(servers: &[&str], out: &Path, run: &str) -> CompareArgs {
        CompareArgs {
            servers: servers.iter().map(|s| server(s).unwrap()).collect(),
            rates: vec![40.0, 80.0],
            seeds: 2,
            out: out.to_owned(),
            run: run.split_whitespace().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn servers_take_turns_and_another_one_is_first_each_time() {
        let args = args(&["a=http://x", "b=http://y"], Path::new("o"), "");
        let order: Vec<_> = turns(&args)
            .iter()
            .map(|t| (t.server, t.rate, t.seed))
            .collect();
        assert_eq!(
            order[..4],
            [
                ("a", 40.0, 0),
                ("b", 40.0, 0),
                ("b", 40.0, 1),
                ("a", 40.0, 1)
            ]
        );
        assert_eq!(order.len(), 8);
    }

    #[test]
    fn two_stubs_are_compared_on_the_same_arrivals() {
        let stub = |tokens| {
            let args = StubArgs {
                sleep_ms: 5.0,
                tokens,
                ..StubArgs::default()
            };
            format!("http://{}", stub::spawn(args).unwrap())
        };
        let (short, long) = (format!("short={}", stub(3)), format!("long={}", stub(5)));
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("c");
        let options = "--requests 20 --percentile 90 --in-flight-min 0 --slo-ms 20";
        run(&args(&[&short, &long], &out, options)).unwrap();
        let records = |name: &str| crate::load::parquet::read(&out.join(name)).unwrap();
        let (a, b) = (records("short-40-0.parquet"), records("long-40-0.parquet"));
        let intended = |all: &[crate::load::record::Record]| {
            all.iter()
                .map(|r| (r.intended_us, r.max_tokens, r.group))
                .collect::<Vec<_>>()
        };
        assert_eq!(intended(&a), intended(&b));
        let answers = |all: &[crate::load::record::Record], tokens| {
            all.iter().all(|r| r.completion_tokens == Some(tokens))
        };
        assert!(answers(&a, 3) && answers(&b, 5), "each answers for itself");
        assert!(out.join("figures/goodput.svg").exists());
        // What is there is not measured over.
        assert!(run(&args(&[&short, &long], &out, options)).is_err());
    }

    #[test]
    fn what_makes_no_comparison_is_refused_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |servers: &[&str], options: &str| {
            let error = run(&args(servers, &folder.path().join("c"), options)).unwrap_err();
            assert!(!folder.path().join("c").exists());
            format!("{error:#}")
        };
        assert!(refused(&["a=http://x"], "").contains("no comparison"));
        assert!(refused(&["a=http://x", "a=http://y"], "").contains("one name"));
        assert!(refused(&["a=http://x", "b=http://y"], "--nonsense").contains("nonsense"));
        assert!(server("a/b=http://x").is_err() && server("http://x").is_err());
    }
}
