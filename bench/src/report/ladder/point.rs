//! One rung under one load.

use super::Cell;
use crate::load::metrics::Summary;
use crate::load::record::Record;
use crate::stats::Spread;

/// The cells of one rung at one rate, one a seed.
#[derive(Clone, Copy)]
pub struct Point<'a> {
    pub rung: &'a str,
    pub rate: f64,
    pub cells: &'a [Cell],
}

impl<'a> Point<'a> {
    /// Over the seeds that have the value; none if none has.
    pub fn spread(&self, of: impl Fn(&Summary) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.cells.iter().filter_map(|c| of(&c.summary)).collect();
        (!values.is_empty()).then(|| Spread::of(&values))
    }

    /// The queue of one of its cells still grew at its end: its latencies are the run's length, and what came out
    /// is not quoted as capacity.
    pub fn grows(&self) -> bool {
        self.cells.iter().any(|c| c.summary.queue_grows)
    }

    /// Measured requests of all seeds.
    pub fn measured(&self) -> usize {
        self.cells.iter().map(|c| c.summary.measured).sum()
    }

    /// Those requests.
    pub fn records(&self) -> impl Iterator<Item = &'a Record> + use<'a> {
        self.cells.iter().flat_map(Cell::measured)
    }

    /// The rate, with a dagger where the queue still grew.
    pub fn load(&self) -> String {
        format!("{}{}", self.rate, if self.grows() { " †" } else { "" })
    }
}

/// What the dagger of [`Point::load`] means.
pub const GROWS: &str = "† The queue still grew when the arrivals ended: latencies are the run's length, not the server's.\n";
