//! Everything that got worse from one rung to the next: a ladder that only shows what it gained is an
//! advertisement.

use super::metric::{
    E2E_P50, E2E_P99, FRAME_GAP_P99, GOODPUT, Metric, OF_ADMITTED, OF_ALL, OUTPUT_TOKENS, SHED,
    TOKEN_GAP_P50, TTFT_P50, TTFT_P99,
};
use super::point::marked;
use super::{Ladder, Point};
use crate::report::markdown::Table;
use crate::stats::Spread;

/// Smaller changes of a median are not listed.
const WORSE_BY: f64 = 0.05;

const COMPARED: [&Metric; 11] = [
    &TTFT_P50,
    &TTFT_P99,
    &E2E_P50,
    &E2E_P99,
    &FRAME_GAP_P99,
    &TOKEN_GAP_P50,
    &GOODPUT,
    &OF_ALL,
    &OF_ADMITTED,
    &OUTPUT_TOKENS,
    &SHED,
];

/// One metric at one load.
struct Change {
    load: String,
    before: Spread,
    after: Spread,
    /// By how much the median is worse, as a share of what it was; infinite from zero.
    by: f64,
    /// No seed of the one rung is where a seed of the other is.
    is_apart: bool,
    /// One has no spread to be beyond.
    seeds: usize,
}

pub fn table(ladder: &Ladder) -> String {
    let mut t = Table::new(&[
        "from → to",
        "metric",
        "worst at, 1/s",
        "before",
        "after",
        "change",
        "beyond the seeds' spread",
        "loads affected, 1/s",
    ]);
    let mut any = false;
    for pair in ladder.rungs().windows(2) {
        for metric in COMPARED {
            let changes = changes(ladder, pair[0], pair[1], metric);
            let Some(worst) = changes.iter().max_by(|a, b| a.by.total_cmp(&b.by)) else {
                continue;
            };
            any = true;
            let loads: Vec<&str> = changes.iter().map(|c| c.load.as_str()).collect();
            let digits = super::metric::digits(worst.before.median.min(worst.after.median));
            t.row([
                format!("{} → {}", pair[0], pair[1]),
                metric.name.to_owned(),
                worst.load.clone(),
                worst.before.show(digits),
                worst.after.show(digits),
                percent(worst, metric.less_is_worse),
                match (worst.is_apart, worst.seeds) {
                    (_, 1) => "–",
                    (true, _) => "yes",
                    (false, _) => "no",
                }
                .to_owned(),
                loads.join(", "),
            ]);
        }
    }
    if any {
        t.text + "\n" + &ladder.notes()
    } else {
        "Nothing did.\n".into()
    }
}

fn percent(change: &Change, less: bool) -> String {
    match change.by {
        by if by.is_infinite() => "from nothing".into(),
        by if less => format!("−{:.0}%", by * 100.0),
        by => format!("+{:.0}%", by * 100.0),
    }
}

fn changes(ladder: &Ladder, from: &str, to: &str, metric: &Metric) -> Vec<Change> {
    let before: Vec<Point> = ladder.points_of(from).collect();
    let of = |after: Point| {
        let same = before
            .iter()
            .find(|p| p.rate.total_cmp(&after.rate).is_eq())?;
        let (a, b) = (same.spread(metric.get)?, after.spread(metric.get)?);
        let (by, is_apart) = if metric.less_is_worse {
            (1.0 - b.median / a.median, b.max < a.min)
        } else {
            (b.median / a.median - 1.0, b.min > a.max)
        };
        // From nothing to nothing is no change.
        (by > WORSE_BY).then(|| Change {
            load: marked(&[&after, same]),
            before: a,
            after: b,
            by,
            is_apart,
            seeds: after.cells.len().min(same.cells.len()),
        })
    };
    ladder.points_of(to).filter_map(of).collect()
}
