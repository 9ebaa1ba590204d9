//! Measured figures against the budget's.

use super::budget::Figures;
use crate::load::soundness::Unsound;
use crate::twin::cell::Cell;

/// A p99 may be so much higher; one so much lower is an improvement.
const LATENCY_MAX: f64 = 1.15;
/// Goodput may be so much lower; one so much higher is an improvement.
const GOODPUT_MIN: f64 = 0.9;

/// Of the offered rate; less of it is no improvement.
const GOODPUT_GRAIN: f64 = 0.01;

/// One figure at one rate.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    pub rung: String,
    pub name: &'static str,
    pub rate_per_s: f64,
    pub budget: f64,
    pub measured: f64,
    /// What the budget times this is, is the worst that passes.
    factor: f64,
    less_is_worse: bool,
}

impl Line {
    /// The worst that passes.
    fn limit(&self) -> f64 {
        self.budget * self.factor
    }

    pub fn is_regression(&self) -> bool {
        if self.less_is_worse {
            self.measured < self.limit()
        } else {
            self.measured > self.limit()
        }
    }

    /// Better by as much as would be a regression if it were the other way; in goodput, by a share of what is offered
    /// as well, since anything is many times nothing.
    pub fn is_improvement(&self) -> bool {
        let mirrored = self.measured * self.factor;
        if self.less_is_worse {
            let gained = self.measured - self.budget;
            mirrored > self.budget && gained > GOODPUT_GRAIN * self.rate_per_s
        } else {
            mirrored < self.budget
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.is_regression() {
            "REGRESSED"
        } else if self.is_improvement() {
            "improved"
        } else {
            "ok"
        };
        let bound = if self.less_is_worse {
            "at least"
        } else {
            "at most"
        };
        write!(
            f,
            "{word:<10} {} {:<13} at {:.2}/s: {:.3} (budget {:.3}, {bound} {:.3})",
            self.rung,
            self.name,
            self.rate_per_s,
            self.measured,
            self.budget,
            self.limit()
        )
    }
}

/// The figures of a rung's cells at one rate of the budget; with the share of its promises that is kept, which must not
/// fall below their `level` whatever the budget.
///
/// # Errors
/// When the cells say nothing: none, too few arrivals, nothing completed.
pub fn judge(
    rung: &str,
    budget: &Figures,
    level: Option<f64>,
    cells: &[Cell],
) -> Result<Vec<Line>, Vec<Unsound>> {
    let measured = Figures::of(cells, budget.rate_per_s)?;
    let line = |name, of: fn(&Figures) -> f64, factor: f64, less_is_worse| Line {
        rung: rung.to_owned(),
        name,
        rate_per_s: budget.rate_per_s,
        budget: of(budget),
        measured: of(&measured),
        factor,
        less_is_worse,
    };
    let mut lines = vec![
        line("TTFT p99, s", |f| f.ttft_p99_s, LATENCY_MAX, false),
        line("E2E p99, s", |f| f.e2e_p99_s, LATENCY_MAX, false),
        line("goodput, 1/s", |f| f.goodput_per_s, GOODPUT_MIN, true),
    ];
    if let Some(level) = level {
        // Without a promise none is broken.
        let kept: fn(&Figures) -> f64 = |f| f.kept.unwrap_or(1.0);
        lines.push(line("promises kept", kept, level / kept(budget), true));
    }
    Ok(lines)
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
