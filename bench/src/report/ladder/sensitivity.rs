//! Whether the order of the rungs is a matter of the SLO that was chosen: peak goodput at other targets.

use super::{Ladder, Point, point};
use crate::load::metrics;
use crate::load::record::Record;
use crate::report::markdown::Table;
use crate::stats::Spread;

/// Multiples of the SLO.
const FACTORS: [f64; 6] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0];

pub fn table(ladder: &Ladder) -> String {
    let Some(slo_s) = ladder.slo_s else {
        return "The cells have no SLO; `report --slo-ms` takes one.\n".into();
    };
    let head = FACTORS.map(|f| format!("{f} × = {:.3} s", f * slo_s));
    let head: Vec<&str> = std::iter::once(ladder.subject())
        .chain(head.iter().map(String::as_str))
        .collect();
    let mut t = Table::new(&head);
    for rung in ladder.rungs() {
        let cells = FACTORS.map(|f| peak(ladder, rung, f * slo_s));
        t.row(std::iter::once(rung.to_owned()).chain(cells));
    }
    t.text
        + "\nThe highest median over the seeds, in requests/s, and the offered load at which it was reached.\n"
        + &point::disturbed(ladder.cells.iter())
}

fn peak(ladder: &Ladder, rung: &str, slo_s: f64) -> String {
    let at = ladder
        .points_of(rung)
        .map(|p| (goodput_per_s(&p, slo_s), p.rate()));
    let best = at.max_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or_else(
        || "–".into(),
        |(value, rate)| format!("{value:.2} at {rate}"),
    )
}

fn goodput_per_s(point: &Point, slo_s: f64) -> f64 {
    let of = |cell: &super::Cell| {
        let measured: Vec<&Record> = cell.measured().collect();
        metrics::slo(&measured, slo_s, cell.summary.window_s).goodput_per_s
    };
    Spread::of(&point.cells.iter().map(of).collect::<Vec<_>>()).median
}
