//! Measured figures against the budget's.

use super::Measured;
use super::budget::{Budget, Figures};
use crate::load::soundness::Unsound;

/// A p99 may be so much higher.
const LATENCY_MAX: f64 = 1.15;
/// Goodput may be so much lower.
const GOODPUT_MIN: f64 = 0.9;

/// One figure at one rate.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    pub name: &'static str,
    pub rate_per_s: f64,
    pub budget: f64,
    pub measured: f64,
    /// The worst that passes.
    pub limit: f64,
    less_is_worse: bool,
}

impl Line {
    pub fn is_regression(&self) -> bool {
        if self.less_is_worse {
            self.measured < self.limit
        } else {
            self.measured > self.limit
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, bound) = (
            if self.is_regression() {
                "REGRESSED"
            } else {
                "ok"
            },
            if self.less_is_worse {
                "at least"
            } else {
                "at most"
            },
        );
        write!(
            f,
            "{word:<10} {:<13} at {:.3}/s: {:.3} (budget {:.3}, {bound} {:.3})",
            self.name, self.rate_per_s, self.measured, self.budget, self.limit
        )
    }
}

/// Every figure of the budget.
///
/// # Errors
/// When what was measured can't be compared with the budget: another SLO, a rate without cells, too few arrivals,
/// nothing completed.
pub fn judge(budget: &Budget, measured: &Measured) -> Result<Vec<Line>, Vec<Unsound>> {
    if (budget.slo_s - measured.slo_s).abs() > 1e-9 {
        return Err(vec![Unsound::AnotherSlo {
            wanted_s: budget.slo_s,
            slo_s: measured.slo_s,
        }]);
    }
    let (mut lines, mut found) = (Vec::new(), Vec::new());
    for wanted in &budget.rates {
        match Figures::of(measured, &budget.rung, wanted.rate_per_s) {
            Ok(figures) => lines.extend(compare(wanted, &figures)),
            Err(reasons) => found.extend(reasons),
        }
    }
    if budget.rates.is_empty() {
        found.push(Unsound::NothingCompleted { arrivals: 0 });
    }
    if found.is_empty() {
        Ok(lines)
    } else {
        Err(found)
    }
}

fn compare(budget: &Figures, measured: &Figures) -> [Line; 3] {
    let line = |name, of: fn(&Figures) -> f64, factor: f64, less_is_worse| Line {
        name,
        rate_per_s: budget.rate_per_s,
        budget: of(budget),
        measured: of(measured),
        limit: of(budget) * factor,
        less_is_worse,
    };
    [
        line("TTFT p99, s", |f| f.ttft_p99_s, LATENCY_MAX, false),
        line("E2E p99, s", |f| f.e2e_p99_s, LATENCY_MAX, false),
        line("goodput, 1/s", |f| f.goodput_per_s, GOODPUT_MIN, true),
    ]
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
