//! What was completed within the SLO, of what was offered, beside what was refused and why.

use std::collections::BTreeMap;

use super::metric::{GOODPUT, Metric, OF_ADMITTED, OF_ALL, SHED};
use super::{GROWS, Ladder, Point};
use crate::report::markdown::Table;

const COLUMNS: [&Metric; 4] = [&GOODPUT, &OF_ALL, &OF_ADMITTED, &SHED];

pub fn table(ladder: &Ladder) -> String {
    let Some(slo_s) = ladder.slo_s else {
        return "The cells have no SLO; `report --slo-ms` takes one.\n".into();
    };
    let head = [
        &[ladder.subject(), "offered, 1/s", "n"],
        &COLUMNS.map(|m| m.name)[..],
    ]
    .concat();
    let mut t = Table::new(&[&head[..], &["shed, by reason", "gave up", "failed"]].concat());
    for point in ladder.points() {
        let head = [
            point.rung.to_owned(),
            point.load(),
            point.measured().to_string(),
        ];
        let sum = |of: fn(&crate::load::metrics::Summary) -> usize| {
            point
                .cells
                .iter()
                .map(|c| of(&c.summary))
                .sum::<usize>()
                .to_string()
        };
        let tail = [reasons(&point), sum(|s| s.censored), sum(|s| s.failed)];
        t.row(
            head.into_iter()
                .chain(COLUMNS.map(|m| m.show(&point)))
                .chain(tail),
        );
    }
    format!(
        "SLO: the whole answer within {slo_s} s of its intended arrival.\n\n{}\n{GROWS}",
        t.text
    )
}

/// Refusals of all seeds together.
fn reasons(point: &Point) -> String {
    let mut all = BTreeMap::new();
    for (reason, n) in point.cells.iter().flat_map(|c| &c.summary.shed_by_reason) {
        *all.entry(reason).or_insert(0) += n;
    }
    let all: Vec<String> = all
        .iter()
        .map(|(reason, n)| format!("{n} × {reason}"))
        .collect();
    if all.is_empty() {
        "–".into()
    } else {
        all.join(", ")
    }
}
