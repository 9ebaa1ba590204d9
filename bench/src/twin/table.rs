//! The grid for a reader: one row for each rung and load, the mean over the seeds with the lowest and the
//! highest.

use super::cell::Cell;
use super::lab::Ceiling;
use super::simulate::Grid;

/// Markdown: a sentence on what was simulated, and the table.
pub fn markdown(grid: &Grid) -> String {
    let mut lines = vec![
        format!(
            "Virtual time: {} s of arrivals, SLO {:.1} s, saturation {:.3}/s; mean (lowest–highest) over \
             the seeds, n of each. A p99 of fewer than 100 is their maximum.",
            grid.duration_s, grid.slo_s, grid.saturation_per_s
        ),
        String::new(),
        "| rung | load | offered/s | TTFT p50, s | TTFT p99, s | E2E p50, s | E2E p99, s | n | goodput/s | \
         of the ceiling | shed | gave up | in flight | queue |"
            .into(),
        format!("|{}", " --- |".repeat(14)),
    ];
    let mut rows: Vec<(&str, f64)> = Vec::new();
    for cell in &grid.cells {
        if !rows.contains(&(&cell.rung, cell.load)) {
            rows.push((&cell.rung, cell.load));
        }
    }
    // Rung by rung; within one, the loads are in order already.
    rows.sort_by(|a, b| a.0.cmp(b.0));
    lines.extend(rows.into_iter().map(|(rung, load)| row(grid, rung, load)));
    let mut loads: Vec<f64> = grid.ceilings.iter().map(|c| c.load).collect();
    loads.dedup();
    lines.extend(loads.into_iter().map(|load| ceiling(grid, load)));
    lines.join("\n")
}

fn row(grid: &Grid, rung: &str, load: f64) -> String {
    let is_in = |c: &&Cell| c.rung == rung && c.load == load;
    let cells: Vec<&Cell> = grid.cells.iter().filter(is_in).collect();
    let show = |of: &dyn Fn(&Cell) -> Option<f64>, digits: usize| {
        spread(cells.iter().filter_map(|c| of(c)).collect(), digits)
    };
    let percent = |n: usize, c: &Cell| Some(100.0 * n as f64 / c.offered as f64);
    let of_ceiling = |c: &Cell| {
        let is_its = |x: &&Ceiling| x.load == c.load && x.seed == c.seed;
        let ceiling = grid.ceilings.iter().find(is_its)?;
        Some(100.0 * c.goodput_per_s / ceiling.at_most_per_s).filter(|x| x.is_finite())
    };
    let n: Vec<String> = cells.iter().map(|c| c.e2e_s.n.to_string()).collect();
    let growing = cells.iter().filter(|c| c.queue_grows).count();
    let queue = match growing {
        0 => "steady".to_owned(),
        n => format!("**grows** ({n} of {})", cells.len()),
    };
    let columns = [
        rung.to_owned(),
        format!("{load:.2}"),
        show(&|c| Some(c.offered as f64 / grid.duration_s), 2),
        show(&|c| c.ttft_s.p50, 2),
        show(&|c| c.ttft_s.p99, 2),
        show(&|c| c.e2e_s.p50, 2),
        show(&|c| c.e2e_s.p99, 2),
        n.join(", "),
        show(&|c| Some(c.goodput_per_s), 3),
        show(&of_ceiling, 0) + " %",
        show(&|c| percent(c.shed, c), 1) + " %",
        show(&|c| percent(c.gave_up, c), 1) + " %",
        show(&|c| Some(c.mean_in_flight), 1),
        queue,
    ];
    format!("| {} |", columns.join(" | "))
}

fn ceiling(grid: &Grid, load: f64) -> String {
    let of = |value: &dyn Fn(&Ceiling) -> f64| {
        let its = grid.ceilings.iter().filter(|c| c.load == load);
        spread(its.map(value).collect(), 3)
    };
    format!(
        "| clairvoyant | {load:.2} | | | | | | | at least {}, at most {} | | | | | |",
        of(&|c| c.at_least_per_s),
        of(&|c| c.at_most_per_s)
    )
}

/// `mean (lowest–highest)`, or the one value.
fn spread(values: Vec<f64>, digits: usize) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    match values.len() {
        0 => "none".into(),
        1 => format!("{mean:.digits$}"),
        _ => format!("{mean:.digits$} ({low:.digits$}–{high:.digits$})"),
    }
}
