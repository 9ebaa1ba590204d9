//! What was completed within the SLO, of what was offered, beside what was refused and why.

use super::metric::{GOODPUT, Metric, OF_ADMITTED, OF_ALL, SHED};
use super::{Ladder, caveats};
use crate::report::markdown::{Table, counts};

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
    let mut t = Table::new(
        &[
            &head[..],
            &["shed, by reason", "gave up", "failed, by reason"],
        ]
        .concat(),
    );
    for point in ladder.points() {
        let head = [
            point.rung.to_owned(),
            point.load(),
            point.measured().to_string(),
        ];
        let cells = || point.cells.iter().map(|c| &c.summary);
        let tail = [
            counts(cells().map(|s| &s.shed_by_reason)),
            cells().map(|s| s.censored).sum::<usize>().to_string(),
            counts(cells().map(|s| &s.failed_by_error)),
        ];
        t.row(
            head.into_iter()
                .chain(COLUMNS.map(|m| m.show(&point)))
                .chain(tail),
        );
    }
    format!(
        "SLO: the whole answer within {slo_s} s of its intended arrival.\n\n{}\n{}",
        t.text,
        ladder.notes() + &caveats::of(ladder)
    )
}
