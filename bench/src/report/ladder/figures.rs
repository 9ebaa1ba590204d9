//! The figures of a ladder, each as SVG and as PNG: how it looks is in `canvas`, what is in it in the others.

mod admitted;
pub mod calibration;
mod canvas;
mod cdf;
mod curves;
mod drawn;
mod scatter;
pub mod simulated;

use super::Ladder;
use admitted::Admitted;
pub use drawn::{Drawn, links, update, write};

/// All that its records give.
pub fn of(ladder: &Ladder) -> Vec<Drawn> {
    let mut all = vec![
        Drawn::new("latency", curves::latency(ladder)),
        Drawn::new("goodput", curves::goodput(ladder)),
        Drawn::new("cdf", cdf::Cdf::of(ladder)),
        Drawn::new("scatter", scatter::Scatter::of(ladder)),
    ];
    let admitted = Admitted::of(ladder).map(|f| Drawn::new("admitted", f));
    all.extend(admitted);
    all
}

/// A table of links to them.
pub fn table(ladder: &Ladder) -> String {
    links(&ladder.name, &of(ladder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ladder::tests::{promising, small};

    #[test]
    fn every_figure_is_drawn_twice_and_the_same_each_time() {
        for (ladder, names) in [
            (small(), &["latency", "goodput", "cdf", "scatter"][..]),
            (
                promising(),
                &["latency", "goodput", "cdf", "scatter", "admitted"][..],
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let all = of(&ladder);
            assert_eq!(drawn::stale(&all, folder.path()).unwrap(), names);
            write(&all, folder.path()).unwrap();
            assert!(drawn::stale(&all, folder.path()).unwrap().is_empty());
            for name in names {
                let path = folder.path().join(name);
                let png = std::fs::read(path.with_extension("png")).unwrap();
                assert!(
                    png.len() > 10_000 && png.starts_with(b"\x89PNG"),
                    "{name}: {}",
                    png.len()
                );
                let svg = std::fs::read_to_string(path.with_extension("svg")).unwrap();
                let shown = match *name {
                    "admitted" => ladder.deciding(),
                    _ => ladder.rungs(),
                };
                for rung in shown {
                    assert!(svg.contains(rung), "{name} does not name {rung}");
                }
            }
        }
    }
}
