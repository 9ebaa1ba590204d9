//! The figures of a ladder, each as SVG and as PNG: how it looks is in `canvas`, what is in it in the others.

mod canvas;
mod cdf;
mod curves;
mod scatter;
pub mod simulated;

use std::path::Path;

use anyhow::{Context, Result};

use super::Ladder;

/// Names of the files, without their endings.
pub const NAMES: [&str; 4] = ["latency", "goodput", "cdf", "scatter"];

/// All four as SVG, in the order of their names.
fn svgs(ladder: &Ladder) -> Result<[String; 4]> {
    Ok([
        canvas::svg(&curves::latency(ladder))?,
        canvas::svg(&curves::goodput(ladder))?,
        canvas::svg(&cdf::Cdf::of(ladder))?,
        canvas::svg(&scatter::Scatter::of(ladder))?,
    ])
}

/// Draws all of them into `folder`.
///
/// # Errors
/// When a file can't be written.
pub fn write(ladder: &Ladder, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = |name: &str| folder.join(name).with_extension("png");
    canvas::png(&curves::latency(ladder), &path("latency"))?;
    canvas::png(&curves::goodput(ladder), &path("goodput"))?;
    canvas::png(&cdf::Cdf::of(ladder), &path("cdf"))?;
    canvas::png(&scatter::Scatter::of(ladder), &path("scatter"))?;
    for (name, svg) in NAMES.iter().zip(svgs(ladder)?) {
        let path = path(name).with_extension("svg");
        std::fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Figures in `folder` that are not what the ladder's records say, by their SVG.
///
/// # Errors
/// When one can't be drawn.
pub fn stale(ladder: &Ladder, folder: &Path) -> Result<Vec<&'static str>> {
    let is_stale = |(name, svg): (&'static str, String)| {
        let there = std::fs::read_to_string(folder.join(name).with_extension("svg"));
        (there.ok() != Some(svg)).then_some(name)
    };
    let drawn = NAMES.into_iter().zip(svgs(ladder)?);
    Ok(drawn.filter_map(is_stale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ladder::tests::small;

    #[test]
    fn every_figure_is_drawn_twice_and_the_same_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let ladder = small();
        assert_eq!(stale(&ladder, folder.path()).unwrap(), NAMES);
        write(&ladder, folder.path()).unwrap();
        assert!(stale(&ladder, folder.path()).unwrap().is_empty());
        for name in NAMES {
            let png = std::fs::read(folder.path().join(name).with_extension("png")).unwrap();
            assert!(
                png.len() > 10_000 && png.starts_with(b"\x89PNG"),
                "{name}: {}",
                png.len()
            );
            let svg =
                std::fs::read_to_string(folder.path().join(name).with_extension("svg")).unwrap();
            for rung in ladder.rungs() {
                assert!(svg.contains(rung), "{name} does not name {rung}");
            }
        }
    }
}
