//! What the best-effort lane costs and brings: rung 6 beside rung 4, which admits the same requests without looking at
//! their bounds. Below saturation it may not lose more than a fiftieth of the goodput, the arrivals being the same.

use anyhow::{Result, bail};

use super::cell::{BestEffort, Cell, Promises};
use super::simulate::Grid;
use crate::report::markdown::Table;

/// The rung with the lane, and the one that it is compared with.
const LANE: &str = "rung6-best-effort";
const REFERENCE: &str = "rung4-cache";
/// What must be left of the goodput at each load below saturation.
const RATIO_MIN: f64 = 0.98;

/// One load: the cells of the seeds, in their order.
struct Pairs<'a> {
    load: f64,
    reference: Vec<&'a Cell>,
    lane: Vec<&'a Cell>,
}

fn within(cells: &[&Cell]) -> usize {
    cells.iter().map(|c| c.within_slo).sum()
}

fn ratio(lane: usize, reference: usize) -> f64 {
    match reference {
        0 => f64::INFINITY,
        n => lane as f64 / n as f64,
    }
}

impl<'a> Pairs<'a> {
    /// Where both rungs are.
    fn all(grid: &'a Grid) -> Vec<Self> {
        let mut loads: Vec<f64> = grid.ceilings.iter().map(|c| c.load).collect();
        loads.dedup();
        let of = |rung: &str, load: f64| -> Vec<&'a Cell> {
            let is_in = |c: &&Cell| c.rung == rung && c.load == load;
            grid.cells.iter().filter(is_in).collect()
        };
        let pairs = loads.into_iter().map(|load| Self {
            load,
            reference: of(REFERENCE, load),
            lane: of(LANE, load),
        });
        let pairs = pairs.filter(|p| !p.lane.is_empty() && p.lane.len() == p.reference.len());
        pairs.collect()
    }

    /// Of the goodput, over all seeds together.
    fn ratio(&self) -> f64 {
        ratio(within(&self.lane), within(&self.reference))
    }

    fn lowest_ratio(&self) -> f64 {
        let pairs = self.lane.iter().zip(&self.reference);
        let ratios = pairs.map(|(l, r)| ratio(l.within_slo, r.within_slo));
        ratios.fold(f64::INFINITY, f64::min)
    }

    /// `None` where nothing is required, or there is no goodput to keep a share of.
    fn holds(&self) -> Option<bool> {
        let has_any = within(&self.reference) > 0;
        (self.load < 1.0 && has_any).then(|| self.ratio() >= RATIO_MIN)
    }

    fn row(&self, seconds: f64) -> [String; 11] {
        let told = || self.lane.iter().filter_map(|c| c.promises);
        let sum = |of: fn(&Promises) -> usize| told().map(|p| of(&p)).sum::<usize>();
        let lane = |of: fn(&BestEffort) -> usize| told().map(|p| of(&p.best_effort)).sum::<usize>();
        let per_s = |cells: &[&Cell]| within(cells) as f64 / (seconds * cells.len() as f64);
        let show = |ratio: f64| match ratio.is_finite() {
            true => format!("{ratio:.3}"),
            false => "–".into(),
        };
        let promised = sum(|p| p.n());
        let kept = match promised {
            0 => "–".into(),
            n => format!("{:.1}", 100.0 * sum(|p| p.kept) as f64 / n as f64),
        };
        let required = match self.holds() {
            None if self.load < 1.0 => "no goodput to compare",
            None => "",
            Some(true) => "holds",
            Some(false) => "**does not hold**",
        };
        [
            format!("{:.2}", self.load),
            format!("{:.3}", per_s(&self.reference)),
            format!("{:.3}", per_s(&self.lane)),
            show(self.ratio()),
            show(self.lowest_ratio()),
            required.into(),
            promised.to_string(),
            kept,
            lane(|l| l.admitted).to_string(),
            lane(|l| l.in_time).to_string(),
            lane(|l| l.dropped).to_string(),
        ]
    }
}

/// Markdown; empty where one of the two rungs is missing.
pub fn table(grid: &Grid) -> String {
    let pairs = Pairs::all(grid);
    if pairs.is_empty() {
        return String::new();
    }
    let required = format!("at least {RATIO_MIN} below saturation");
    let mut t = Table::new(&[
        "load",
        "goodput of rung 4, 1/s",
        "of rung 6, 1/s",
        "ratio",
        "lowest seed",
        &required,
        "promised",
        "kept, %",
        "best effort",
        "in time",
        "dropped",
    ]);
    for pair in pairs {
        t.row(pair.row(grid.duration_s));
    }
    t.text
}

/// # Errors
/// Names the loads at which the lane costs more than it may.
pub fn judge(grid: &Grid) -> Result<()> {
    let broken = Pairs::all(grid)
        .into_iter()
        .filter(|p| p.holds() == Some(false));
    let broken: Vec<String> = broken
        .map(|p| format!("{:.3} at load {:.2}", p.ratio(), p.load))
        .collect();
    if !broken.is_empty() {
        bail!(
            "{LANE} has less than {RATIO_MIN} of {REFERENCE}'s goodput: {}",
            broken.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all;
    use crate::twin::rung::Rung;
    use crate::twin::simulate::{SimulateArgs, simulate};

    /// The requirement itself, over three seeds; and that it is one.
    #[test]
    fn below_saturation_the_lane_costs_next_to_no_goodput() {
        let [.., reference, _, _, lane] = Rung::files();
        let mut args: SimulateArgs = all::given("simulate", &[]).unwrap();
        args.rungs = vec![reference, lane];
        args.loads = vec![0.25, 0.5, 0.75, 1.5];
        let mut grid = simulate(&args).unwrap();
        println!("{}", table(&grid));
        judge(&grid).unwrap();
        assert_eq!(table(&grid).lines().count(), 2 + 4);
        let told = |c: &Cell| c.promises.map_or(0, |p| p.best_effort.in_time);
        assert!(grid.cells.iter().map(told).sum::<usize>() > 100);
        let lost = |c: &&mut Cell| c.rung == LANE && c.load == 0.5;
        for c in grid.cells.iter_mut().filter(lost) {
            c.within_slo /= 2;
        }
        let why = judge(&grid).unwrap_err().to_string();
        assert!(why.ends_with("at load 0.50"), "{why}");
        // Of no goodput there is no share: it was said to hold.
        for c in grid.cells.iter_mut().filter(|c| c.load == 0.5) {
            c.within_slo = 0;
        }
        judge(&grid).unwrap();
        let table = table(&grid);
        let row = table.lines().find(|l| l.starts_with("| 0.50 |")).unwrap();
        assert!(row.contains("| – | – | no goodput to compare |"), "{row}");
    }
}
