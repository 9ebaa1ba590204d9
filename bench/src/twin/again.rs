//! Whether it helps to come again when one was told to: the cells once more, with clients who do.

use cadenced::logic::conformal::policy::Verdict;
use serde::{Deserialize, Serialize};

use super::cell::Offered;
use super::engine::{Return, Trial};
use crate::report::markdown::Table;

/// Of one rung, load and seed. Counted are those who come again while others still arrive.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Returns {
    pub rung: String,
    pub load: f64,
    pub seed: u64,
    pub came: usize,
    /// Of these.
    pub promised: usize,
    pub explored: usize,
    /// What they were told, together.
    pub waited_s: u64,
}

/// Runs `trial` with clients who come again.
pub fn returns(trial: &Trial, offered: &Offered) -> Returns {
    let trial = Trial {
        come_again: true,
        ..trial.clone()
    };
    let (_, returns) = trial.run_with_returns(&offered.requests);
    let end_us = (offered.seconds() * 1e6) as u64;
    let came: Vec<&Return> = returns.iter().filter(|r| r.at_us <= end_us).collect();
    let count = |verdict: Verdict| {
        let is = |r: &&&Return| r.decision.is_some_and(|d| d.verdict == verdict);
        came.iter().filter(is).count()
    };
    Returns {
        rung: trial.rung.name.to_owned(),
        load: offered.load,
        seed: offered.offer.seed,
        came: came.len(),
        promised: count(Verdict::Promised),
        explored: count(Verdict::Explored),
        waited_s: came.iter().map(|r| u64::from(r.after_s)).sum(),
    }
}

/// Markdown: the seeds together; empty where nobody came again.
pub fn table(returns: &[Returns]) -> String {
    let mut t = Table::new(&[
        "rung",
        "load",
        "came again",
        "after, s",
        "promised, %",
        "explored, %",
    ]);
    let mut sorted: Vec<&Returns> = returns.iter().filter(|r| r.came > 0).collect();
    if sorted.is_empty() {
        return String::new();
    }
    sorted.sort_by(|a, b| a.rung.cmp(&b.rung).then(a.load.total_cmp(&b.load)));
    for seeds in sorted.chunk_by(|a, b| a.rung == b.rung && a.load == b.load) {
        let sum = |of: fn(&Returns) -> usize| seeds.iter().map(|r| of(r)).sum::<usize>();
        let came = sum(|r| r.came);
        let percent = |n: usize| format!("{:.1}", 100.0 * n as f64 / came as f64);
        let waited_s: u64 = seeds.iter().map(|r| r.waited_s).sum();
        t.row([
            seeds[0].rung.clone(),
            format!("{:.2}", seeds[0].load),
            came.to_string(),
            format!("{:.1}", waited_s as f64 / came as f64),
            percent(sum(|r| r.promised)),
            percent(sum(|r| r.explored)),
        ]);
    }
    t.text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::arrivals::Offer;
    use crate::twin::lab::Lab;
    use crate::twin::rung::Rung;

    /// Who is refused for now comes again once, when told to, and is decided on again; whatever steps are skipped.
    #[test]
    fn who_is_refused_for_now_comes_again_when_told_to() {
        let lab = Lab::of(Rung::conformal());
        let requests = Offer {
            rate: 3.0,
            ..lab.offer.clone()
        }
        .requests();
        let trial = Trial {
            come_again: true,
            ..lab.trials(Some(1_600_000), None).swap_remove(0)
        };
        let (fates, returns) = trial.run_with_returns(&requests);
        let is_for_now = |v: Verdict| v == Verdict::Overloaded || v == Verdict::Unsupported;
        let refused = fates.iter().enumerate();
        let refused = refused.filter(|(_, f)| f.decision.is_some_and(|d| is_for_now(d.verdict)));
        let refused: Vec<usize> = refused.map(|(i, _)| i).collect();
        let told: Vec<usize> = returns.iter().map(|r| r.index).collect();
        assert_eq!(told, refused);
        assert!(told.len() > 10, "{}", told.len());
        for r in &returns {
            assert!((1..=60).contains(&r.after_s));
            let waited_us = r.at_us - requests[r.index].at_us;
            assert_eq!(waited_us, u64::from(r.after_s) * 1_000_000);
            assert!(r.decision.is_some(), "the house is never full");
        }
        let stepped = Trial {
            skip: false,
            ..trial
        };
        assert!(stepped.run_with_returns(&requests) == (fates, returns));
    }
}
