//! The study for a reader.

use super::cell::{CoverageCell, Kept};
use super::{Arm, Study};
use crate::report::markdown::Table;

/// Everything, for a terminal.
pub fn all(study: &Study) -> String {
    [criteria(study), arms(study), levels(study), shifts(study)].join("\n")
}

/// What must hold, and what was found.
pub fn criteria(study: &Study) -> String {
    let mut t = Table::new(&["arm", "required", "", "found"]);
    for c in &study.criteria {
        let holds = if c.holds {
            "holds"
        } else {
            "**does not hold**"
        };
        t.row([
            c.arm.name().into(),
            c.name.clone(),
            holds.into(),
            c.found.clone(),
        ]);
    }
    t.text
}

/// All arms at all levels, the loads together, without a shift.
pub fn arms(study: &Study) -> String {
    let by = |c: &CoverageCell| (c.arm, c.alpha);
    rows(study, false, by, &Arm::ALL)
}

/// Promises of the deployed arm by level and load, without a shift.
pub fn levels(study: &Study) -> String {
    let by = |c: &CoverageCell| (c.alpha, c.load);
    rows(study, false, by, &[Arm::Conformal])
}

/// The same where the workload shifts midway.
pub fn shifts(study: &Study) -> String {
    let by = |c: &CoverageCell| (c.alpha, c.load);
    rows(study, true, by, &[Arm::Conformal])
}

/// A row for each of what `by` tells apart.
fn rows<K: PartialEq>(
    study: &Study,
    shifted: bool,
    by: impl Fn(&CoverageCell) -> K,
    arms: &[Arm],
) -> String {
    let mut t = Table::new(&[
        "arm",
        "α",
        "load",
        "kept, %",
        "lowest seed",
        "n",
        if shifted {
            "in the window, %"
        } else {
            "explored, %"
        },
        "promised, %",
        "422, %",
        "503, %",
        "unsupported, %",
        "bound, s",
        "actual, s",
        "goodput of the oracle's, %",
        "prefix hits, %",
        "variance / mean",
        "lag 1",
    ]);
    let is_in = |c: &&CoverageCell| c.shifted == shifted && arms.contains(&c.arm);
    let mut cells: Vec<&CoverageCell> = study.cells.iter().filter(is_in).collect();
    cells.sort_by(|a, b| {
        a.arm
            .cmp(&b.arm)
            .then(b.alpha.total_cmp(&a.alpha))
            .then(a.load.total_cmp(&b.load))
    });
    for cells in cells.chunk_by(|a, b| by(a) == by(b)) {
        t.row(row(cells, shifted));
    }
    t.text
}

fn row(cells: &[&CoverageCell], shifted: bool) -> Vec<String> {
    let first = cells[0];
    let total = |of: &dyn Fn(&CoverageCell) -> usize| cells.iter().map(|c| of(c)).sum::<usize>();
    let offered = total(&|c| c.offered);
    let percent = |n: usize, of: usize| match of {
        0 => "–".into(),
        of => format!("{:.1}", 100.0 * n as f64 / of as f64),
    };
    let of_offered = |of: &dyn Fn(&CoverageCell) -> usize| percent(total(of), offered);
    let mean = |of: &dyn Fn(&CoverageCell) -> Option<f64>, digits: usize| {
        let values: Vec<f64> = cells.iter().filter_map(|c| of(c)).collect();
        match values.len() {
            0 => "–".into(),
            n => format!("{:.digits$}", values.iter().sum::<f64>() / n as f64),
        }
    };
    let sum =
        |of: &dyn Fn(&CoverageCell) -> Kept| percent(total(&|c| of(c).kept), total(&|c| of(c).n));
    let shares = cells.iter().filter_map(|c| c.promised.share());
    let lowest = shares.fold(f64::INFINITY, f64::min);
    let widest =
        |of: &dyn Fn(&super::cell::Spreading) -> f64, worse: fn(f64, f64) -> f64, start: f64| {
            let all = cells.iter().flat_map(|c| &c.spreading).map(of);
            let worst = all.fold(start, worse);
            if worst.is_finite() {
                format!("{worst:.2}")
            } else {
                "–".into()
            }
        };
    vec![
        first.arm.name().into(),
        first.alpha.to_string(),
        loads(cells),
        sum(&|c| c.promised),
        if lowest.is_finite() {
            format!("{:.1}", 100.0 * lowest)
        } else {
            "–".into()
        },
        total(&|c| c.promised.n).to_string(),
        if shifted {
            sum(&|c| c.in_window)
        } else {
            of_offered(&|c| c.explored)
        },
        of_offered(&|c| c.promised.n + c.in_window.n),
        of_offered(&|c| c.infeasible),
        of_offered(&|c| c.overloaded + c.full),
        of_offered(&|c| c.unsupported),
        mean(&|c| c.bound_s, 2),
        mean(&|c| c.actual_s, 2),
        percent(total(&|c| c.within_slo), total(&|c| c.most_within)),
        mean(&|c| c.hit_rate.map(|r| 100.0 * r), 0),
        widest(&|s| s.dispersion, f64::max, f64::NEG_INFINITY),
        widest(&|s| s.lag1, f64::min, f64::INFINITY),
    ]
}

/// The load of all of them, or from the lowest to the highest.
fn loads(cells: &[&CoverageCell]) -> String {
    let (low, high) = (cells[0].load, cells[cells.len() - 1].load);
    if low == high {
        low.to_string()
    } else {
        format!("{low}–{high}")
    }
}
