//! Several ladders together: the same rungs at other confidences, so that what a confidence costs stands in one table and
//! whether it is worth its name on one curve. They are the folders called `ladder` and `ladder-…`; markers call them
//! `ladders/TABLE`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::figures::calibration::{Calibration, Series, Share};
use super::figures::{self, Drawn};
use super::metric::{GOODPUT, SHED};
use super::promises::{PROMISED, promised};
use super::tally::Tally;
use super::{Cell, GROWS, Ladder, Point, point};
use crate::load::soundness;
use crate::report::markdown::Table;
use crate::report::{MISSING, conformal};

/// What stands before the slash of a marker, and where the figure is below bench/results.
pub const FOLDER: &str = "ladders";

/// See the module's text. Those among them that promise something.
pub struct Joint<'a>(Vec<&'a Ladder>);

/// A rung of one of them, whose promises all have one level.
struct Arm<'a> {
    rung: &'a str,
    level: f64,
    ladder: &'a Ladder,
}

impl<'a> Joint<'a> {
    /// # Errors
    /// [`soundness::MeasurementUnsound`] where their engines differ; others where they offered other things.
    pub fn of(all: &'a BTreeMap<String, Ladder>) -> Result<Self> {
        let is_one = |name: &str| name == "ladder" || name.starts_with("ladder-");
        let ladders: Vec<&Ladder> = all
            .values()
            .filter(|l| is_one(&l.name) && !l.deciding().is_empty())
            .collect();
        let cells = || ladders.iter().flat_map(|l| &l.cells);
        let engine = |l: &&'a Ladder, cell: &Cell| {
            let (name, engine) = cell.engine();
            (format!("{}/{name}", l.name), engine)
        };
        let engines = ladders
            .iter()
            .flat_map(|l| l.cells.iter().map(|c| engine(l, c)));
        let engines: Vec<_> = engines.collect();
        soundness::refuse(Vec::from_iter(soundness::mixed_fingerprints(&engines)))?;
        let mut offers = cells().map(|c| {
            let schedule = &c.meta.cell.schedule;
            let arrivals = (schedule.process, schedule.extent);
            (c.meta.cell.mix, c.meta.cell.slo_ms, arrivals)
        });
        let first = offers.next();
        ensure!(
            offers.all(|offer| Some(offer) == first),
            "the ladders differ in mix, SLO or arrivals"
        );
        Ok(Self(ladders))
    }

    fn arms(&self) -> Vec<Arm<'a>> {
        let mut arms = Vec::new();
        for &ladder in &self.0 {
            for rung in ladder.deciding() {
                if let [level] = ladder.levels_of(rung)[..] {
                    arms.push(Arm {
                        rung,
                        level,
                        ladder,
                    });
                }
            }
        }
        arms.sort_by(|a, b| a.rung.cmp(b.rung).then(a.level.total_cmp(&b.level)));
        arms
    }

    /// # Errors
    /// When there is no such table.
    pub fn table(&self, name: &str) -> Result<String> {
        let body = match name {
            "frontier" => self.frontier(),
            "figures" => figures::links(FOLDER, &self.figures(Vec::new())),
            _ => bail!("there is no table called {name}"),
        };
        if body.is_empty() {
            return Ok(MISSING.into());
        }
        let origins: String = self.0.iter().map(|l| l.origin()).collect();
        Ok(body + "\n" + &origins)
    }

    /// Of rungs that were run at several levels; nothing if none was.
    fn frontier(&self) -> String {
        let arms = self.arms();
        let same_rung = arms.chunk_by(|a, b| a.rung == b.rung);
        let several = same_rung.filter(|its| its[0].level < its[its.len() - 1].level);
        let mut rows: Vec<(Point, &Arm)> = several
            .flatten()
            .flat_map(|arm| arm.ladder.points_of(arm.rung).map(move |p| (p, arm)))
            .collect();
        if rows.is_empty() {
            return String::new();
        }
        // By rung and level already.
        rows.sort_by(|(a, _), (b, _)| a.rung.cmp(b.rung).then(a.rate.total_cmp(&b.rate)));
        let around = (["rung", "offered, 1/s", "level"], [GOODPUT.name, SHED.name]);
        let mut t = Table::new(&[&around.0[..], &PROMISED, &around.1].concat());
        for (point, arm) in rows {
            let head = [point.rung.to_owned(), point.load(), arm.level.to_string()];
            let tail = [GOODPUT.show(&point), SHED.show(&point)];
            let middle = promised(&arm.ladder.tally(&point));
            t.row(head.into_iter().chain(middle).chain(tail));
        }
        let cells = self.0.iter().flat_map(|l| &l.cells);
        format!("{}\n{GROWS}{}", t.text, point::disturbed(cells))
    }

    /// None where nothing was promised. `offline` is what the bounds were worth on requests of a calibration.
    fn figures(&self, offline: Vec<Share>) -> Vec<Drawn> {
        let arms = self.arms();
        let mut series: Vec<Series> = arms
            .chunk_by(|a, b| a.rung == b.rung)
            .map(|its| Series {
                name: its[0].rung.to_owned(),
                shares: its
                    .chunk_by(|a, b| a.level == b.level)
                    .filter_map(share)
                    .collect(),
            })
            .collect();
        series.retain(|s| !s.shares.is_empty());
        if series.is_empty() {
            return Vec::new();
        }
        if !offline.is_empty() {
            series.push(Series {
                name: "offline, tested rounds".into(),
                shares: offline,
            });
        }
        vec![Drawn::new("calibration", Calibration::of(series))]
    }
}

/// Of arms of one rung and level; none if they promised nothing.
fn share(arms: &[Arm]) -> Option<Share> {
    let points = arms.iter().flat_map(|a| a.ladder.points_of(a.rung));
    let seen = Tally::of(points.flat_map(|p| p.records()), None).coverage();
    Some(Share {
        level: arms[0].level,
        kept: seen.coverage()?,
        interval: seen.interval()?,
    })
}

/// Draws their figure where it differs from what is there, or only says that it does.
///
/// # Errors
/// As [`Joint::of`], and when it can't be drawn or written.
pub fn figures(
    results: &Path,
    ladders: &BTreeMap<String, Ladder>,
    check: bool,
) -> Result<Vec<String>> {
    let drawn = Joint::of(ladders)?.figures(conformal::shares(results)?);
    figures::update(&drawn, results, FOLDER, check)
}

#[cfg(test)]
#[path = "joint_tests.rs"]
mod tests;
