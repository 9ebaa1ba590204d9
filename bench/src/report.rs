//! `report`: the tables of the READMEs and the figures of the ladders, made from bench/results alone.
//!
//! A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else in the files is left as
//! it is. NAME is a table of its own (`tables`), or `LADDER/TABLE` for a folder of cells (`ladder`; that of its loops is
//! `contrast`, those of one rung's variants `knobs`), all ladders together (`ladder::joint`) or what came out of virtual time (`simulated`); their figures go
//! into the subfolder `figures`. `--check` writes nothing and fails if a table or a figure is not what the results say.

mod conformal;
mod decision;
mod exchanges;
mod ladder;
pub mod markdown;
mod simulated;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::numbers::at_least_one;
pub use conformal::ALL as CONFORMAL;
pub use ladder::contrast;
use ladder::joint::{self, Joint};
pub use ladder::knobs::DEFAULT;
pub use ladder::{COMPARISON, cell_files};
use ladder::{Ladder, figures, knobs};

const FILES: [&str; 3] = ["bench/README.md", "README.md", "bench/src/load/README.md"];

const MISSING: &str = "Not measured yet.\n";

#[derive(Args)]
pub struct ReportArgs {
    /// A folder of cells: prints its tables and draws its figures, and leaves the READMEs alone.
    cells: Option<PathBuf>,
    /// Another SLO than the cells had; prints their tables and draws nothing.
    #[arg(long, requires = "cells", value_parser = at_least_one::<u64>())]
    slo_ms: Option<u64>,
    /// Writes nothing; fails if a file would change.
    #[arg(long, conflicts_with = "cells")]
    check: bool,
    /// The repository's root.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

pub fn run(args: &ReportArgs) -> Result<()> {
    match &args.cells {
        Some(folder) => one(folder, args.slo_ms),
        None => all(&args.root, args.check),
    }
}

/// Reports a folder of cells.
///
/// # Errors
/// See [`Ladder::read`].
pub fn one(folder: &Path, slo_ms: Option<u64>) -> Result<()> {
    let ladder = Ladder::read(folder, slo_ms.map(|ms| ms as f64 * 1e-3))?;
    let elsewhere = ["speed", "figures"];
    let is_here = |name: &str| {
        !elsewhere.contains(&name) && knobs::TABLES.contains(&name) == ladder.is_of_knobs()
    };
    for (_, title, render) in ladder::TABLES.iter().filter(|(name, ..)| is_here(name)) {
        println!("## {title}\n\n{}", render(&ladder));
    }
    println!("{}", ladder.origin());
    if let Some(contrast) = contrast::Contrast::read(folder)? {
        println!("## Open and closed loop\n\n{}", contrast.table());
    }
    if slo_ms.is_none() && !ladder.is_of_knobs() {
        let out = folder.join("figures");
        figures::write(&figures::of(&ladder), &out)?;
        println!("drawn: {}", out.display());
    }
    Ok(())
}

/// Brings the READMEs and the figures up to date, or says which of them are not.
fn all(root: &Path, check: bool) -> Result<()> {
    let results = root.join("bench/results");
    let ladders = ladders(&results)?;
    let mut stale = Vec::new();
    for (name, ladder) in ladders.iter().filter(|(_, l)| l.rates().len() > 1) {
        let drawn = figures::of(ladder);
        stale.extend(figures::update(&drawn, &results, name, check)?);
    }
    stale.extend(joint::figures(&results, &ladders, check)?);
    stale.extend(simulated::figures(&results, check)?);
    for file in FILES {
        let path = root.join(file);
        let Ok(old) = std::fs::read_to_string(&path) else {
            continue;
        };
        let new =
            fill(&old, |name| table(&results, &ladders, name)).with_context(|| file.to_owned())?;
        if new != old {
            stale.push(file.to_owned());
            if !check {
                std::fs::write(&path, new)?;
            }
        }
    }
    match (check, stale.as_slice()) {
        (true, []) => println!("tables and figures are what the results say"),
        (false, []) => println!("nothing has changed"),
        (true, files) => bail!("not what bench/results says: {}", files.join(", ")),
        (false, files) => println!("written: {}", files.join(", ")),
    }
    Ok(())
}

/// Every folder of cells, by name.
fn ladders(results: &Path) -> Result<BTreeMap<String, Ladder>> {
    let mut ladders = BTreeMap::new();
    for entry in std::fs::read_dir(results).with_context(|| format!("{}", results.display()))? {
        let folder = entry?.path();
        if !ladder::cell_files(&folder)?.is_empty() {
            let ladder = Ladder::read(&folder, None)?;
            ladders.insert(ladder.name.clone(), ladder);
        }
    }
    Ok(ladders)
}

/// The table called `name`, with a line on where its numbers come from.
fn table(results: &Path, ladders: &BTreeMap<String, Ladder>, name: &str) -> Result<String> {
    if let Some((folder, table)) = name.split_once('/') {
        if let Some(text) = simulated::table(results, folder, table) {
            return text;
        }
        if folder == joint::FOLDER {
            return Joint::of(ladders)?.table(table);
        }
        if table == contrast::FOLDER {
            return contrast::table(&results.join(folder));
        }
        let known = ladder::TABLES.iter().find(|(n, _, _)| *n == table);
        let (_, _, render) = known.with_context(|| format!("there is no table called {table}"))?;
        return Ok(ladders.get(folder).map_or_else(
            || MISSING.into(),
            |ladder| render(ladder) + "\n" + &ladder.origin(),
        ));
    }
    let mut plain = [tables::ALL, decision::ALL, exchanges::ALL]
        .into_iter()
        .flatten();
    let plain = plain.find(|(n, _, _)| *n == name);
    let offline = CONFORMAL.iter().find(|(n, _)| *n == name);
    let (file, render) = plain
        .map(|(_, file, render)| (*file, render))
        .or(offline.map(|(_, render)| (conformal::FILE, render)))
        .with_context(|| format!("there is no table called {name}"))?;
    let path = results.join(file);
    if !path.exists() {
        return Ok(MISSING.into());
    }
    let text = std::fs::read_to_string(&path)?;
    let json: Value = serde_json::from_str(&text).with_context(|| file.to_owned())?;
    Ok(render(&json["results"]) + "\n" + &tables::origin(file, &json["provenance"]))
}

/// Replaces what stands between each pair of markers.
fn fill(text: &str, table: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<!-- begin ") {
        let (name, body) = after
            .split_once(" -->")
            .context("a marker without its end")?;
        let end = format!("<!-- end {name} -->");
        let (_, after) = body
            .split_once(&end)
            .with_context(|| format!("{end} is missing"))?;
        out += before;
        out += &format!("<!-- begin {name} -->\n\n{}\n{end}", table(name)?);
        rest = after;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_markers_changes_and_only_once() {
        let text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n<!-- begin y --><!-- end y -->";
        let new = fill(text, |name| Ok(format!("table {name}\n"))).unwrap();
        assert_eq!(
            new,
            "a\n<!-- begin x -->\n\ntable x\n\n<!-- end x -->\nb\n<!-- begin y -->\n\ntable y\n\n<!-- end y -->"
        );
        assert_eq!(
            fill(&new, |name| Ok(format!("table {name}\n"))).unwrap(),
            new
        );
        assert!(fill("<!-- begin x --> no end", |_| Ok(String::new())).is_err());
    }
}
