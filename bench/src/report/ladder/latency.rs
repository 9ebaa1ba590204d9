//! Latency against offered load, a row for each rung and rate.

use super::metric::{E2E_P50, E2E_P99, FRAME_GAP_P99, IN_FLIGHT, Metric, TTFT_P50, TTFT_P99};
use super::{Ladder, caveats};
use crate::report::markdown::Table;

const COLUMNS: [&Metric; 6] = [
    &TTFT_P50,
    &TTFT_P99,
    &E2E_P50,
    &E2E_P99,
    &FRAME_GAP_P99,
    &IN_FLIGHT,
];

pub fn table(ladder: &Ladder) -> String {
    let mut t = Table::new(
        &[
            &[ladder.subject(), "offered, 1/s", "n"],
            &COLUMNS.map(|m| m.name)[..],
        ]
        .concat(),
    );
    for point in ladder.points() {
        let head = [
            point.rung.to_owned(),
            point.load(),
            point.measured().to_string(),
        ];
        t.row(head.into_iter().chain(COLUMNS.map(|m| m.show(&point))));
    }
    t.text
        + "\nNearest-rank percentiles of n requests, by seed: median (lowest–highest). ≥: clients gave up.\n"
        + &ladder.notes()
        + &caveats::of(ladder)
}
