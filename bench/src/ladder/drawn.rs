//! The arrivals of all seeds, written down before the sweep: nobody can choose among them afterwards, and each
//! cell is checked against them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::load::arrivals::{Extent, Process, Schedule};
use crate::load::mix::{Class, Mix, Workload};
use crate::load::record::Record;
use crate::load::validate::KsTest;

/// One seed's, at one request a second; other rates are the same sequence at another speed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Drawn {
    pub seed: u64,
    /// The gaps against the exponential: reported, never selected on.
    pub gaps: Option<KsTest>,
    pub arrivals: Vec<Arrival>,
}

/// A request that will be sent.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Arrival {
    at_us: u64,
    class: Class,
    group: u32,
    turn: u32,
    max_tokens: u32,
}

impl Drawn {
    /// `n` arrivals of a seed.
    pub fn draw(mix: Mix, seed: u64, n: usize) -> Self {
        let schedule = Schedule {
            process: Process::Poisson,
            rate: 1.0,
            extent: Extent::Requests(n),
            seed,
            burst: None,
        };
        let offsets = schedule.offsets_us();
        let gaps = KsTest::of(&offsets, 1.0);
        let arrivals = offsets.into_iter().zip(Workload::new(mix, seed, &[]));
        Self {
            seed,
            gaps,
            arrivals: arrivals
                .map(|(at_us, ask)| Arrival {
                    at_us,
                    class: ask.class,
                    group: ask.group,
                    turn: ask.turn,
                    max_tokens: ask.max_tokens,
                })
                .collect(),
        }
    }

    /// Whether these requests are the drawn ones at `rate`.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(&self, records: &[Record], rate: f64) -> Result<()> {
        ensure!(
            records.len() == self.arrivals.len(),
            "{} requests were offered, {} were drawn",
            records.len(),
            self.arrivals.len()
        );
        // Both were rounded to microseconds.
        let tolerance_us = 1.0 + 1.0 / rate;
        for (r, a) in records.iter().zip(&self.arrivals) {
            let off_us = (r.intended_us as f64 - a.at_us as f64 / rate).abs();
            let same = (r.class, r.group, r.turn, r.max_tokens)
                == (a.class, a.group, a.turn, a.max_tokens);
            ensure!(
                same && off_us <= tolerance_us,
                "request {} is not the one that was drawn",
                r.index
            );
        }
        Ok(())
    }
}

/// Writes the arrivals of all seeds into `folder`, or finds them there.
///
/// # Errors
/// When others are there.
pub fn settle(plan: &Plan, folder: &Path) -> Result<Vec<Drawn>> {
    let offer = &plan.offer;
    let all: Vec<Drawn> = (0..offer.seeds)
        .map(|seed| Drawn::draw(offer.mix, seed, offer.arrivals))
        .collect();
    let file = folder.join("arrivals.json");
    let text = serde_json::to_string(&all)? + "\n";
    if file.exists() {
        ensure!(
            std::fs::read_to_string(&file)? == text,
            "{} was drawn by another generator",
            file.display()
        );
    } else {
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::plan::tests::plan;

    fn offered(seed: u64, rate: f64) -> Vec<Record> {
        let schedule = Schedule {
            process: Process::Poisson,
            rate,
            extent: Extent::Requests(50),
            seed,
            burst: None,
        };
        let asks = schedule
            .offsets_us()
            .into_iter()
            .zip(Workload::new(Mix::Short, seed, &[]));
        let record = |(index, (intended_us, ask)): (u32, (u64, crate::load::mix::Ask))| Record {
            index,
            class: ask.class,
            group: ask.group,
            turn: ask.turn,
            max_tokens: ask.max_tokens,
            intended_us,
            ..Record::default()
        };
        (0..).zip(asks).map(record).collect()
    }

    #[test]
    fn what_a_cell_offers_is_what_was_drawn_and_nothing_else() {
        let drawn = Drawn::draw(Mix::Short, 3, 50);
        for rate in [0.05, 0.7, 1.0, 12.0, 400.0] {
            drawn.check(&offered(3, rate), rate).unwrap();
            assert!(drawn.check(&offered(4, rate), rate).is_err());
            assert!(drawn.check(&offered(3, rate)[..49], rate).is_err());
        }
        let mut late = offered(3, 1.0);
        late[7].intended_us += 3;
        let error = drawn.check(&late, 1.0).unwrap_err().to_string();
        assert!(error.contains("request 7"), "{error}");
    }

    #[test]
    fn the_arrivals_on_file_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(2, &[1.0], 3);
        let first = settle(&plan, folder.path()).unwrap();
        assert_eq!(first.len(), 3);
        assert_eq!(settle(&plan, folder.path()).unwrap(), first);
        std::fs::write(folder.path().join("arrivals.json"), "[]").unwrap();
        assert!(settle(&plan, folder.path()).is_err());
    }
}
