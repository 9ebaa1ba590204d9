//! The most that each rung delivered: tokens over the middle 60% of a run whose queue did not grow, and goodput.

use super::metric::{GOODPUT, IN_FLIGHT, Metric, OUTPUT_TOKENS, REQUESTS};
use super::{Ladder, Point, point};
use crate::report::markdown::Table;

pub fn table(ladder: &Ladder) -> String {
    let mut t = Table::new(&[
        ladder.subject(),
        "output tokens/s",
        "requests/s",
        "in flight",
        "at, 1/s",
        "queue grows from, 1/s",
        "peak goodput, 1/s",
        "reached at, 1/s",
    ]);
    for rung in ladder.rungs() {
        let points: Vec<Point> = ladder.points_of(rung).collect();
        let steady = best(points.iter().filter(|p| !p.grows()), &OUTPUT_TOKENS);
        let of = |m: &Metric| steady.map_or_else(|| "–".into(), |p| m.show(p));
        let grows = points.iter().find(|p| p.grows());
        let good = best(points.iter(), &GOODPUT).filter(|_| ladder.slo_s.is_some());
        t.row([
            rung.to_owned(),
            of(&OUTPUT_TOKENS),
            of(&REQUESTS),
            of(&IN_FLIGHT),
            steady.map_or_else(|| "–".into(), Point::rate),
            grows.map_or_else(|| "never".into(), Point::rate),
            good.map_or_else(|| "–".into(), |p| GOODPUT.show(p)),
            good.map_or_else(|| "–".into(), Point::rate),
        ]);
    }
    t.text
        + "\nOutput over the middle 60% of the arrivals, at the load with the most of it among those whose queue did not\ngrow in any seed: a growing queue is never quoted as capacity.\n"
        + &point::disturbed(ladder.cells.iter())
}

/// The point with the highest median.
fn best<'a>(points: impl Iterator<Item = &'a Point<'a>>, metric: &Metric) -> Option<&'a Point<'a>> {
    let value = |p: &Point| p.spread(metric.get).map_or(f64::NEG_INFINITY, |s| s.median);
    points.max_by(|a, b| value(a).total_cmp(&value(b)))
}
