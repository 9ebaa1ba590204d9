//! The ladder's cells beside the same cells in virtual time: the same arrivals, with the sizes that the run found out,
//! under the cost model of the calibration that stands beside the folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::metric::{GOODPUT, digits};
use super::{Cell, Ladder, Point};
use crate::calibrate::Calibration;
use crate::load::arrivals::{Extent, Process};
use crate::load::driver::Loop;
use crate::load::metrics;
use crate::load::mix::Mix;
use crate::report::markdown::Table;
use crate::stats::Spread;
use crate::twin::arrivals::{Answers, Offer, Size, observed};
use crate::twin::cell::{self, Offered};
use crate::twin::lab::Lab;
use crate::twin::rung::{RUNGS, Rung};
use crate::twin::{fitted, simulate};

/// Goodput agrees within the largest of: this share of it, its spread over the replicates, and
const SHARE: f64 = 0.1;
/// this share of what was offered.
const OF_OFFERED: f64 = 0.05;

/// The calibration of a folder of cells: in it or beside it.
pub fn calibration(folder: &Path) -> Option<PathBuf> {
    let beside = folder.parent().unwrap_or(folder);
    let files = [folder, beside].map(|f| f.join("calibration.json"));
    files.into_iter().find(|f| f.exists())
}

pub fn table(ladder: &Ladder) -> String {
    let Some(file) = &ladder.calibration else {
        return "There is no calibration.json beside the cells to simulate them with.\n".into();
    };
    simulated(ladder, file).unwrap_or_else(|e| format!("Not simulated: {e:#}.\n"))
}

fn simulated(ladder: &Ladder, file: &Path) -> Result<String> {
    let lab = lab(&Calibration::read(file)?)?;
    let sizes = sizes(ladder);
    let mut t = Table::new(&[
        "rung",
        "offered, 1/s",
        "goodput measured, 1/s",
        "simulated, 1/s",
        "difference",
        "within",
        "",
    ]);
    let (mut n, mut agree) = (0, 0);
    for point in ladder.points() {
        let Some(measured) = point.spread(GOODPUT.get) else {
            continue;
        };
        let Some(goodputs) = goodputs(&lab, &point, &sizes)? else {
            continue;
        };
        let simulated = Spread::of(&goodputs);
        let difference = simulated.median - measured.median;
        let spread = measured.max - measured.min;
        let within = (SHARE * measured.median)
            .max(spread)
            .max(OF_OFFERED * point.rate);
        let agrees = difference.abs() <= within;
        n += 1;
        agree += usize::from(agrees);
        let digits = digits(measured.median);
        t.row([
            point.rung.to_owned(),
            point.load(),
            measured.show(digits),
            simulated.show(digits),
            format!("{difference:+.3}"),
            format!("{within:.3}"),
            if agrees { "agrees" } else { "**differs**" }.into(),
        ]);
    }
    Ok(format!(
        "{agree} of {n} agree: within the largest of 10%, the spread over the seeds, and 0.05 × offered.\n\n{}\n{}",
        t.text,
        ladder.notes()
    ))
}

/// The rungs under the calibration's costs.
fn lab(calibration: &Calibration) -> Result<Lab> {
    let rung = |file: &str| Rung::load(Path::new(file));
    let mut lab = Lab {
        cost: calibration.fit.model.into(),
        rungs: RUNGS.into_iter().map(rung).collect::<Result<_>>()?,
        offer: Offer {
            mix: calibration.mix,
            answers: Answers::Capped,
            rate: 1.0,
            extent: Extent::Requests(1),
            seed: 0,
            observed: BTreeMap::new(),
        },
        artifact: None,
    };
    lab.artifact = Some(Arc::new(fitted::artifact(
        &lab,
        simulate::CALIBRATION_SEED,
    )?));
    Ok(lab)
}

/// What the runs of each seed found out of its requests, whatever the rung and the rate.
fn sizes(ladder: &Ladder) -> BTreeMap<u64, BTreeMap<u32, Size>> {
    let mut sizes: BTreeMap<u64, BTreeMap<u32, Size>> = BTreeMap::new();
    for cell in &ladder.cells {
        sizes
            .entry(cell.seed)
            .or_default()
            .extend(observed(&cell.records));
    }
    sizes
}

/// Of each cell of the point; `None` where the twin can't offer what was offered.
fn goodputs(
    lab: &Lab,
    point: &Point,
    sizes: &BTreeMap<u64, BTreeMap<u32, Size>>,
) -> Result<Option<Vec<f64>>> {
    let Some(at) = lab.rungs.iter().position(|r| r.name == point.rung) else {
        return Ok(None);
    };
    let one = |cell: &Cell| -> Result<Option<f64>> {
        let told = &cell.meta.cell;
        let schedule = &told.schedule;
        if told.mode != Loop::Open || schedule.process != Process::Poisson || told.mix == Mix::Trace
        {
            return Ok(None);
        }
        let slo = cell.summary.slo.context("the cells have no SLO")?;
        let offer = Offer {
            mix: told.mix,
            answers: Answers::Capped,
            rate: schedule.rate,
            extent: schedule.extent,
            seed: schedule.seed,
            observed: sizes.get(&cell.seed).cloned().unwrap_or_default(),
        };
        let us = |s: f64| Some((s * 1e6) as u64);
        let trial = lab
            .trials(us(slo.slo_s), us(told.timeout_s))
            .swap_remove(at);
        let requests = offer.requests();
        let offered = Offered {
            load: 0.0,
            offer,
            requests,
        };
        let records = cell::records(&trial.run(&offered.requests), &offered.requests);
        let pairs = records.iter().zip(&cell.records);
        let measured: Vec<_> = pairs.filter(|(_, r)| r.measured).map(|(s, _)| s).collect();
        let slo = metrics::slo(&measured, slo.slo_s, cell.summary.window_s);
        Ok(Some(slo.goodput_per_s))
    };
    point.cells.iter().map(one).collect()
}
