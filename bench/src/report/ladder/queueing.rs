//! How much of the time to the first token was spent waiting for others: by the server's own account where it
//! gives one, and by comparison with the least loaded cell of the same rung.

use super::metric::digits;
use super::{Ladder, Point};
use crate::load::metrics::Summary;
use crate::report::markdown::Table;

pub fn table(ladder: &Ladder) -> String {
    let mut t = Table::new(&[
        ladder.subject(),
        "offered, 1/s",
        "TTFT, mean, s",
        "beyond the lowest load's",
        "queue's share, by the server",
        "queue, mean, ms",
        "prefill, mean, ms",
        "first decode, mean, ms",
    ]);
    for rung in ladder.rungs() {
        let mean = |p: &Point| p.spread(|s| s.ttft.mean).map(|s| s.median);
        let lowest = ladder.points_of(rung).next().as_ref().and_then(mean);
        for point in ladder.points_of(rung) {
            let beyond = mean(&point)
                .zip(lowest)
                .map(|(here, alone)| (1.0 - alone / here).max(0.0));
            let told = |of: fn(&Summary) -> Option<f64>| {
                let s = point.spread(of).map(|s| s.median);
                s.map_or_else(|| "not told".into(), |v| format!("{v:.*}", digits(v)))
            };
            t.row([
                rung.to_owned(),
                point.load(),
                told(|s| s.ttft.mean),
                beyond.map_or_else(|| "–".into(), |share| format!("{:.0}%", share * 100.0)),
                point.spread(|s| s.split?.queue_share).map_or_else(
                    || "not told".into(),
                    |s| format!("{:.0}%", s.median * 100.0),
                ),
                told(|s| s.split?.queue_ms.mean),
                told(|s| s.split?.prefill_ms.mean),
                told(|s| s.split?.first_decode_ms.mean),
            ]);
        }
    }
    t.text
        + "\nMedians over the seeds. *Beyond the lowest load's*: the share of the mean that exceeds the same rung's mean at\n\
           the lowest load, which is queueing and sharing steps together.\n"
        + &ladder.notes()
}
