//! The figures of a simulated grid: the same curves, with the clairvoyant's ceiling.

use super::Drawn;
use super::curves::{Curves, Panel, Sample};
use crate::stats::Spread;
use crate::twin::cell::Cell;
use crate::twin::simulate::Grid;

const CEILING: &str = "clairvoyant, at most";

/// Both.
pub fn of(grid: &Grid) -> Vec<Drawn> {
    vec![
        Drawn::new("latency", latency(grid)),
        Drawn::new("goodput", goodput(grid)),
    ]
}

fn latency(grid: &Grid) -> Curves {
    let slo = || Some((grid.slo_s, format!("SLO {} s", grid.slo_s)));
    let panel = |caption, of: fn(&Cell) -> Option<f64>, level| Panel {
        level,
        ..Panel::new(caption, "seconds", lines(grid, of))
    };
    let panels = vec![
        panel("Time to first token, p50", |c| c.ttft_s.p50, None),
        panel("Time to first token, p99", |c| c.ttft_s.p99, None),
        panel(
            "End to end, p50, of what was let in",
            |c| c.e2e_s.p50,
            slo(),
        ),
        panel(
            "End to end, p99, of what was let in",
            |c| c.e2e_s.p99,
            slo(),
        ),
    ];
    let title = "Latency against offered load, in virtual time";
    Curves::new(title, names(grid), panels, rate_max(grid)).on_one_scale()
}

fn goodput(grid: &Grid) -> Curves {
    let mut good = lines(grid, |c| Some(c.goodput_per_s));
    let mut seeds = grid.ceilings.clone();
    seeds.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    let ceiling = seeds
        .chunk_by(|a, b| a.rate_per_s == b.rate_per_s)
        .map(|its| {
            let most: Vec<f64> = its.iter().map(|c| c.at_most_per_s).collect();
            Sample::new(its[0].rate_per_s, Spread::of(&most), false)
        });
    good.push(ceiling.collect());
    let good = Panel {
        has_diagonal: true,
        ..Panel::new("Goodput: completed within the SLO", "requests/s", good)
    };
    let share = |c: &Cell| Some(100.0 * c.shed as f64 / c.offered as f64);
    let shed = Panel::new("Shed: refused at once", "% of offered", lines(grid, share));
    let mut legend = names(grid);
    legend.push(CEILING.to_owned());
    let title = format!("Goodput and shed in virtual time, SLO {} s", grid.slo_s);
    Curves::new(&title, legend, vec![good, shed], rate_max(grid))
}

fn names(grid: &Grid) -> Vec<String> {
    grid.rungs().into_iter().map(str::to_owned).collect()
}

fn rate_max(grid: &Grid) -> f64 {
    grid.cells.iter().map(|c| c.rate_per_s).fold(0.0, f64::max)
}

/// One for each rung.
fn lines(grid: &Grid, of: fn(&Cell) -> Option<f64>) -> Vec<Vec<Sample>> {
    let line = |rung: &str| {
        let mut cells: Vec<&Cell> = grid.cells.iter().filter(|c| c.rung == rung).collect();
        cells.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
        let same = cells.chunk_by(|a, b| a.rate_per_s == b.rate_per_s);
        same.filter_map(|cells| {
            let values: Vec<f64> = cells.iter().filter_map(|c| of(c)).collect();
            let grows = cells.iter().any(|c| c.queue_grows);
            let sample = || Sample::new(cells[0].rate_per_s, Spread::of(&values), grows);
            (!values.is_empty()).then(sample)
        })
        .collect()
    };
    grid.rungs().into_iter().map(line).collect()
}
