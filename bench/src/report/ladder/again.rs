//! Cells that were run again, beside what they had been: on the same engine, which says how far apart two runs of one cell
//! are, or on a later one, which says what its change has changed.

use super::metric::{E2E_P50, E2E_P99, GOODPUT, Metric, digits};
use super::point::mark;
use super::{Cell, Ladder};
use crate::report::markdown::Table;

const COLUMNS: [&Metric; 3] = [&E2E_P50, &E2E_P99, &GOODPUT];

pub fn table(ladder: &Ladder) -> String {
    let mut t = Table::new(
        &[
            &["cell", "engine", "again on"],
            &COLUMNS.map(|m| m.name)[..],
        ]
        .concat(),
    );
    let engine = |cell: &Cell| {
        let fingerprint = cell.meta.engine_fingerprint.as_deref();
        fingerprint.map_or_else(|| "unknown".into(), |f| f.chars().take(8).collect())
    };
    let mut shown = Vec::new();
    for again in &ladder.repeats {
        let is_it = |c: &&Cell| (&c.rung, c.rate, c.seed) == (&again.rung, again.rate, again.seed);
        let Some(before) = ladder.cells.iter().find(is_it) else {
            continue;
        };
        let (then, now): (String, String) = (engine(before), engine(again));
        let on = if now == then { "the same" } else { &now };
        let head = [
            again.name(),
            then.clone() + mark(before.disturbed.is_some()),
            on.to_owned() + mark(again.disturbed.is_some()),
        ];
        shown.extend([before, again]);
        t.row(
            head.into_iter()
                .chain(COLUMNS.map(|m| change(m, before, again))),
        );
    }
    if ladder.repeats.is_empty() {
        return "None.\n".into();
    }
    match shown.iter().any(|c| c.disturbed.is_some()) {
        true => {
            t.text
                + "\n‡ That run was disturbed: its canary was off, or others used the machine meanwhile.\n"
        }
        false => t.text,
    }
}

fn change(metric: &Metric, before: &Cell, again: &Cell) -> String {
    let of = |cell: &Cell| (metric.get)(&cell.summary);
    match (of(before), of(again)) {
        (Some(a), Some(b)) if a > 0.0 => {
            let digits = digits(a);
            format!(
                "{a:.digits$} → {b:.digits$} ({:+.1}%)",
                100.0 * (b / a - 1.0)
            )
        }
        _ => "–".into(),
    }
}
