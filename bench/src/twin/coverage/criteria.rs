//! What must hold of a study. Judged are the arms that follow what happens; the static one stands beside them.

use serde::{Deserialize, Serialize};

use super::cell::{CoverageCell, Kept};
use super::{Arm, Class};

/// Of all cells together, the chance that some cell is blamed for bad luck.
const ERROR: f64 = 0.05;
/// Admissions of an arm spread no more than Poisson's by so many standard deviations of their dispersion.
const SIGMAS: f64 = 4.0;
/// Neighbouring bins that swing against each other more than this oscillate.
const LAG1_MIN: f64 = -0.5;
/// At [`SERVING_LOAD`], at least this share is promised of a class that fits the SLO on an idle server: less is a
/// lock-out, and how much more it is, is the price of the level.
const SERVED_MIN: f64 = 0.2;
pub const SERVING_LOAD: f64 = 0.5;

/// One requirement on one arm.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Criterion {
    pub arm: Arm,
    pub name: String,
    pub holds: bool,
    /// What was found.
    pub found: String,
}

/// All of them.
pub fn judge(cells: &[CoverageCell], classes: &[Class], slo_s: f64) -> Vec<Criterion> {
    let mut all = Vec::new();
    for arm in [Arm::Conformal, Arm::SelfCalibrating] {
        let of_arm: Vec<&CoverageCell> = cells.iter().filter(|c| c.arm == arm).collect();
        let mut alphas: Vec<f64> = of_arm.iter().map(|c| c.alpha).collect();
        alphas.sort_by(|a, b| b.total_cmp(a));
        alphas.dedup();
        all.push(no_cell_below(arm, &of_arm));
        for alpha in alphas {
            let at: Vec<&CoverageCell> = of_arm
                .iter()
                .copied()
                .filter(|c| c.alpha == alpha)
                .collect();
            all.push(pooled(arm, alpha, &at));
            all.push(served(arm, alpha, &at, classes, slo_s));
        }
        all.push(steady(arm, &of_arm));
    }
    all
}

/// No cell's one-sided interval lies wholly below its level.
fn no_cell_below(arm: Arm, cells: &[&CoverageCell]) -> Criterion {
    let error = ERROR / cells.len() as f64;
    let chance = |c: &&&CoverageCell| chance_of_misses(c.promised, c.alpha);
    let below = cells.iter().filter(|c| chance(c) < error).count();
    let worst = cells.iter().min_by(|a, b| chance(a).total_cmp(&chance(b)));
    let found = worst.map_or_else(String::new, |c| {
        format!(
            "{below} of {} cells; the worst keeps {} of {} at α {}, load {}, seed {}{}",
            cells.len(),
            c.promised.kept,
            c.promised.n,
            c.alpha,
            c.load,
            c.seed,
            if c.shifted { ", shifted" } else { "" },
        )
    });
    Criterion {
        arm,
        name: format!(
            "no cell's coverage is below its level (one-sided 95%, Bonferroni over {})",
            cells.len()
        ),
        holds: below == 0,
        found,
    }
}

fn pooled(arm: Arm, alpha: f64, cells: &[&CoverageCell]) -> Criterion {
    let sum = |of: fn(&CoverageCell) -> Kept| {
        cells
            .iter()
            .map(|c| of(c))
            .fold(Kept::default(), |a, b| Kept {
                n: a.n + b.n,
                kept: a.kept + b.kept,
            })
    };
    let (all, window) = (sum(|c| c.promised), sum(|c| c.in_window));
    let show = |k: Kept| {
        k.share()
            .map_or_else(|| "none".into(), |s| format!("{s:.4} of {}", k.n))
    };
    Criterion {
        arm,
        name: format!("pooled coverage at α {alpha} is at least {}", 1.0 - alpha),
        holds: all.share().is_some_and(|s| s >= 1.0 - alpha),
        found: format!(
            "{}; in the windows after shifts {}",
            show(all),
            show(window)
        ),
    }
}

/// No lock-out: whoever fits an idle server is served while it is half loaded.
fn served(
    arm: Arm,
    alpha: f64,
    cells: &[&CoverageCell],
    classes: &[Class],
    slo_s: f64,
) -> Criterion {
    let half: Vec<_> = cells
        .iter()
        .filter(|c| c.load == SERVING_LOAD && !c.shifted)
        .collect();
    let mut rates = Vec::new();
    for (i, class) in classes
        .iter()
        .enumerate()
        .filter(|(_, c)| c.idle_p99_s <= slo_s)
    {
        let (offered, promised) = half.iter().fold((0, 0), |(offered, promised), c| {
            (offered + c.classes[i].0, promised + c.classes[i].1)
        });
        if offered > 0 {
            rates.push((class.from, promised as f64 / offered as f64));
        }
    }
    let shown: Vec<String> = rates
        .iter()
        .map(|(from, r)| format!("{from}+ {:.0}%", 100.0 * r))
        .collect();
    Criterion {
        arm,
        name: format!(
            "no lock-out at α {alpha}: what fits an idle server is promised at {SERVING_LOAD} × saturation"
        ),
        holds: !rates.is_empty() && rates.iter().all(|(_, r)| *r >= SERVED_MIN),
        found: format!("by cap: {}", shown.join(", ")),
    }
}

/// No oscillation.
fn steady(arm: Arm, cells: &[&CoverageCell]) -> Criterion {
    let stationary = cells.iter().filter(|c| !c.shifted);
    let (mut swings, mut n, mut worst) = (0, 0, (0.0_f64, 0.0_f64));
    for s in stationary.flat_map(|c| &c.spreading) {
        let most = 1.0 + SIGMAS * (2.0 / (s.bins as f64 - 1.0)).sqrt();
        n += 1;
        swings += usize::from(s.dispersion > most || s.lag1 < LAG1_MIN);
        worst = (worst.0.max(s.dispersion), worst.1.min(s.lag1));
    }
    Criterion {
        arm,
        name: "admissions do not oscillate: spread no wider than Poisson's, neighbours not opposed"
            .into(),
        holds: swings == 0,
        found: format!(
            "{swings} of {n}; variance over mean at most {:.2}, lag-1 autocorrelation at least {:.2}",
            worst.0, worst.1
        ),
    }
}

/// The chance of so many broken promises or more, if each is broken with probability α.
pub fn chance_of_misses(kept: Kept, alpha: f64) -> f64 {
    let misses = kept.n - kept.kept;
    // The probability of k misses from that of k - 1.
    let (mut p, mut below) = ((1.0 - alpha).powi(kept.n as i32), 0.0);
    for k in 0..misses {
        below += p;
        p *= (kept.n - k) as f64 / (k + 1) as f64 * alpha / (1.0 - alpha);
    }
    (1.0 - below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_have_their_binomial_chance() {
        let chance = |n, kept, alpha| chance_of_misses(Kept { n, kept }, alpha);
        assert_eq!(chance(0, 0, 0.1), 1.0);
        assert!((chance(2, 1, 0.1) - 0.19).abs() < 1e-12);
        assert!((chance(2, 0, 0.1) - 0.01).abs() < 1e-12);
        assert!((chance(10, 7, 0.2) - 0.322_200).abs() < 1e-5);
        assert!(chance(1500, 1100, 0.2) < 1e-8);
    }
}
