//! One setting changed at a time: every variant beside the default, and what of it is more than chance. The variants are
//! the folder's rungs, called `section.key=value`; the rung called `default` is what they are variants of.

use super::metric::{
    E2E_P99, FRAME_GAP_MAX, FRAME_GAP_P50, FRAME_GAP_P99, FRAME_GAP_P999, GOODPUT, Metric,
    OUTPUT_TOKENS, TTFT_P50, TTFT_P99,
};
use super::point::marked;
use super::verdict::Verdict;
use super::{Cell, Ladder, Point, origin};
use crate::load::metrics::Summary;
use crate::load::quantile::fewest_for;
use crate::report::markdown::Table;

/// What the variants differ from.
pub const DEFAULT: &str = "default";

/// Its tables, by their names.
pub const TABLES: [&str; 2] = ["knobs", "verdicts"];

/// Of how many values something is.
type Count = fn(&Summary) -> usize;

/// A metric, and for a percentile of how many values it is.
struct Column {
    metric: &'static Metric,
    percentile: Option<(f64, Count)>,
}

const fn plain(metric: &'static Metric) -> Column {
    Column {
        metric,
        percentile: None,
    }
}

const fn percentile(metric: &'static Metric, p: f64, n: Count) -> Column {
    Column {
        metric,
        percentile: Some((p, n)),
    }
}

fn gaps(s: &Summary) -> usize {
    s.frame_gap.n
}

const COLUMNS: [Column; 9] = [
    plain(&FRAME_GAP_P50),
    percentile(&FRAME_GAP_P99, 99.0, gaps),
    percentile(&FRAME_GAP_P999, 99.9, gaps),
    plain(&FRAME_GAP_MAX),
    plain(&TTFT_P50),
    percentile(&TTFT_P99, 99.0, |s| s.ttft.n),
    percentile(&E2E_P99, 99.0, |s| s.e2e.n),
    plain(&OUTPUT_TOKENS),
    plain(&GOODPUT),
];

const FEW: &str = "\\* Of fewer values in a replicate than the percentile takes (100 for p99, 1000 for p99.9): the maximum.\n";

impl Column {
    /// The percentile is the maximum under a name that it has not earned.
    fn is_of_few(&self, point: &Point) -> bool {
        self.percentile
            .is_some_and(|(p, n)| fewest(point, n) < fewest_for(p))
    }

    fn mark(&self, point: &Point, text: String) -> String {
        if self.is_of_few(point) && text != "–" {
            text + " \\*"
        } else {
            text
        }
    }

    fn verdict(&self, default: &Point, variant: &Point) -> Verdict {
        let is_bound = |cell: &Cell| (self.metric.is_bound)(&cell.summary);
        if default.cells.iter().chain(variant.cells).any(is_bound) {
            return Verdict::Open;
        }
        let pair = |cell: &Cell| {
            let same = default.cells.iter().find(|c| c.seed == cell.seed)?;
            let [a, b] = [same, cell].map(|c| (self.metric.get)(&c.summary));
            Some((a?, b?))
        };
        let pairs: Vec<_> = variant.cells.iter().filter_map(pair).collect();
        Verdict::of(&pairs)
    }
}

/// In the replicate that has the fewest.
fn fewest(point: &Point, n: Count) -> usize {
    let all = point.cells.iter().map(|c| n(&c.summary));
    all.min().unwrap_or(0)
}

/// Variants of one key together, by their value.
fn sort(points: &mut [Point]) {
    let number = |value: &str| value.parse().unwrap_or(f64::INFINITY);
    points.sort_by(|a, b| {
        let [(a_key, a), (b_key, b)] =
            [a, b].map(|p| p.rung.split_once('=').unwrap_or(("", p.rung)));
        let values = number(a).total_cmp(&number(b));
        a_key.cmp(b_key).then(values).then(a.cmp(b))
    });
}

impl Ladder {
    /// Its rungs are variants of one.
    pub fn is_of_knobs(&self) -> bool {
        self.rungs().contains(&DEFAULT)
    }

    fn columns(&self) -> impl Iterator<Item = &'static Column> {
        let has_slo = self.slo_s.is_some();
        COLUMNS
            .iter()
            .filter(move |c| has_slo || c.metric.name != GOODPUT.name)
    }

    /// The default first.
    fn variants(&self) -> Vec<Point<'_>> {
        let mut points: Vec<Point> = self.points().collect();
        sort(&mut points);
        points
    }

    fn table_of(&self, head: &[&'static str]) -> Table {
        let names = self.columns().map(|c| c.metric.name);
        Table::new(&head.iter().copied().chain(names).collect::<Vec<_>>())
    }
}

/// What was measured of each.
pub fn table(ladder: &Ladder) -> String {
    let mut t = ladder.table_of(&["setting", "offered, 1/s", "requests", "gaps"]);
    for point in ladder.variants() {
        let head = [
            point.rung.to_owned(),
            point.load(),
            fewest(&point, |s| s.measured).to_string(),
            fewest(&point, gaps).to_string(),
        ];
        let shown = ladder
            .columns()
            .map(|c| c.mark(&point, c.metric.show(&point)));
        t.row(head.into_iter().chain(shown));
    }
    let metas = ladder.cells.iter().filter(|c| c.rung == DEFAULT);
    let rung = origin::all(metas.map(|c| &c.meta), |m| m.server.rung.as_deref());
    format!(
        "{}\nThe default is {rung}; each variant differs from it in one key. Medians over the replicates \
         (lowest–highest); requests and gaps are of the replicate with the fewest.\n{FEW}{}",
        t.text,
        ladder.notes()
    )
}

/// What of it is a difference.
pub fn verdicts(ladder: &Ladder) -> String {
    let points = ladder.variants();
    let mut t = ladder.table_of(&["setting", "offered, 1/s"]);
    for variant in points.iter().filter(|p| p.rung != DEFAULT) {
        let is_its = |p: &&Point| p.rung == DEFAULT && p.rate.total_cmp(&variant.rate).is_eq();
        let Some(default) = points.iter().find(is_its) else {
            continue;
        };
        let verdict = |c: &Column| c.mark(variant, c.verdict(default, variant).show());
        let head = [variant.rung.to_owned(), marked(&[variant, default])];
        t.row(head.into_iter().chain(ladder.columns().map(verdict)));
    }
    format!(
        "{}\nThe median over the replicates of variant ÷ default, both under the same arrivals. *none*: that factor is no \
         farther from 1 than the replicates' factors are from one another. Of three replicates that differ by chance alone \
         one in eleven passes for a difference all the same. –: no ratio.\n{FEW}{}",
        t.text,
        ladder.notes()
    )
}

#[cfg(test)]
#[path = "knobs_tests.rs"]
mod tests;
