//! Whether the generator kept its schedule, a row for each run.

use super::Ladder;
use crate::load::soundness::LAG_P99_MS_GOOD;
use crate::report::markdown::Table;

pub fn table(ladder: &Ladder) -> String {
    let mut t = Table::new(&[
        "offered, 1/s",
        "seed",
        "requests",
        "completed",
        "output tokens/s, middle 60%",
        "cores",
        "send lag, ms",
        "p99 below 5 ms",
    ]);
    for cell in ladder.points().flat_map(|p| p.cells) {
        let s = &cell.summary;
        let lag = s.send_lag.scaled(1e3);
        t.row([
            cell.rate.to_string(),
            cell.seed.to_string(),
            s.requests.to_string(),
            s.completed.to_string(),
            format!("{:.0}", s.capacity.tokens_per_s),
            format!("{:.2}", cell.meta.generator_cores),
            lag.show(2),
            if lag.p99.is_some_and(|p99| p99 < LAG_P99_MS_GOOD) {
                "yes"
            } else {
                "no"
            }
            .to_owned(),
        ]);
    }
    t.text
}
