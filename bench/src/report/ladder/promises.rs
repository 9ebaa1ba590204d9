//! What was promised and whether it was kept, a row for each rung that decides by a bound and each rate; beside it
//! what became of the requests that got no promise.

use super::metric::{GOODPUT, PREFIX_HITS, digits};
use super::tally::{Tally, verdict};
use super::{Ladder, Point};
use crate::report::markdown::{Table, counts};

impl Ladder {
    /// Rungs at which a bound decides.
    pub fn deciding(&self) -> Vec<&str> {
        let decides = |p: Point| p.records().any(|r| verdict(r).is_some());
        let mut rungs = self.rungs();
        rungs.retain(|rung| self.points_of(rung).any(decides));
        rungs
    }

    /// The confidences of a rung's promises: one, unless requests named their own.
    pub fn levels_of(&self, rung: &str) -> Vec<f64> {
        let records = self.points_of(rung).flat_map(|p| p.records());
        let mut levels: Vec<f64> = records.filter_map(|r| r.level).collect();
        levels.sort_by(f64::total_cmp);
        levels.dedup();
        levels
    }

    /// Of all seeds of a point.
    pub fn tally(&self, point: &Point) -> Tally {
        Tally::of(point.records(), self.slo_s)
    }
}

pub fn table(ladder: &Ladder) -> String {
    let deciding = ladder.deciding();
    if deciding.is_empty() {
        return "No rung promises anything.\n".into();
    }
    let around = (
        ["rung", "level", "offered, 1/s"],
        [GOODPUT.name, PREFIX_HITS.name],
    );
    let mut promises = Table::new(&[&around.0[..], &PROMISED, &around.1].concat());
    let mut apart = Table::new(&[
        "rung",
        "offered, 1/s",
        "promise left open",
        "explored",
        "observed",
        "best effort: in time",
        "late",
        "dropped",
        "lost",
        "undecided",
        "refused, by reason",
    ]);
    for rung in deciding {
        let levels: Vec<String> = ladder.levels_of(rung).iter().map(f64::to_string).collect();
        for point in ladder.points_of(rung) {
            let tally = ladder.tally(&point);
            let head = [rung.to_owned(), levels.join(", "), point.load()];
            let tail = [GOODPUT.show(&point), PREFIX_HITS.show(&point)];
            promises.row(head.into_iter().chain(promised(&tally)).chain(tail));
            let lane = tally.lane;
            let numbers = [
                tally.open,
                tally.explored,
                tally.observed,
                lane.in_time,
                lane.late,
                lane.dropped,
                lane.lost,
                tally.undecided,
            ];
            apart.row(
                [rung.to_owned(), point.load()]
                    .into_iter()
                    .chain(numbers.map(|n| n.to_string()))
                    .chain([counts([&tally.refused])]),
            );
        }
    }
    format!(
        "{}\nThe others, none of which is in a share of what was kept:\n\n{}\n{}",
        promises.text,
        apart.text,
        ladder.notes()
    )
}

/// The heads of [`promised`]'s cells.
pub const PROMISED: [&str; 6] = [
    "n",
    "promised",
    "kept (95% interval)",
    "by the client's clock",
    "bound, mean, s",
    "actual, mean, s",
];

/// Of how many what share was promised, and what came of that.
pub fn promised(tally: &Tally) -> [String; 6] {
    let n = tally.promised();
    let seen = tally.coverage();
    let kept = seen
        .coverage()
        .zip(seen.interval())
        .map(|(share, (low, high))| {
            format!(
                "{} of {} = {} ({:.1}–{:.1})",
                seen.kept,
                seen.n,
                percent(share),
                100.0 * low.max(0.0),
                100.0 * high
            )
        });
    let by_client = (seen.n > 0).then(|| percent(tally.kept_by_client as f64 / seen.n as f64));
    let dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let seconds = |s: Option<f64>| dash(s.map(|s| format!("{s:.*}", digits(s))));
    [
        tally.offered.to_string(),
        format!("{n} = {}", percent(n as f64 / tally.offered.max(1) as f64)),
        dash(kept),
        dash(by_client),
        seconds(tally.bound_mean_s()),
        seconds(tally.actual_mean_s()),
    ]
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
#[path = "promises_tests.rs"]
mod tests;
