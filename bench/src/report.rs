//! `report`: the tables of bench/README.md and README.md, made from bench/results/*.json alone.
//!
//! A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else in the files is left as
//! it is. `--check` writes nothing and fails if a table is not what the results say.

mod tables;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

const FILES: [&str; 2] = ["bench/README.md", "README.md"];

#[derive(Args)]
pub struct ReportArgs {
    /// Writes nothing; fails if a file would change.
    #[arg(long)]
    check: bool,
    /// The repository's root.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

pub fn run(args: &ReportArgs) -> Result<()> {
    let mut stale = Vec::new();
    for file in FILES {
        let path = args.root.join(file);
        let Ok(old) = std::fs::read_to_string(&path) else {
            continue;
        };
        let new = fill(&old, |name| table(&args.root.join("bench/results"), name))
            .with_context(|| file.to_owned())?;
        if new != old {
            stale.push(file);
            if !args.check {
                std::fs::write(&path, new)?;
            }
        }
    }
    match (args.check, stale.as_slice()) {
        (true, []) => println!("the tables are what the results say"),
        (false, []) => println!("nothing has changed"),
        (true, files) => bail!("not what bench/results says: {}", files.join(", ")),
        (false, files) => println!("written: {}", files.join(", ")),
    }
    Ok(())
}

/// The table called `name`, with a line on where its numbers come from.
fn table(results: &Path, name: &str) -> Result<String> {
    let (file, render) = tables::ALL
        .iter()
        .find(|(n, _, _)| *n == name)
        .map(|(_, file, render)| (file, render))
        .with_context(|| format!("there is no table called {name}"))?;
    let path = results.join(file);
    if !path.exists() {
        return Ok("Not measured yet.\n".into());
    }
    let text = std::fs::read_to_string(&path)?;
    let json: Value = serde_json::from_str(&text).with_context(|| (*file).to_owned())?;
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
