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

    /// One of its cells was disturbed to the last.
    fn is_disturbed(&self) -> bool {
        self.cells.iter().any(|c| c.disturbed.is_some())
    }

    /// The rate, with the marks of what its cells met.
    pub fn load(&self) -> String {
        marked(&[self])
    }

    /// The rate, with the mark of a disturbed machine alone.
    pub fn rate(&self) -> String {
        format!("{}{}", self.rate, mark(self.is_disturbed()))
    }
}

/// The rate of what is compared, with a dagger where a queue still grew and the mark of a disturbed machine.
pub fn marked(points: &[&Point]) -> String {
    let grows = points.iter().any(|p| p.grows());
    let disturbed = points.iter().any(|p| p.is_disturbed());
    let dagger = if grows { " †" } else { "" };
    format!("{}{dagger}{}", points[0].rate, mark(disturbed))
}

/// What stands behind the name of what was `disturbed`.
pub fn mark(disturbed: bool) -> &'static str {
    if disturbed { " ‡" } else { "" }
}

/// What that means, where there is any.
pub fn disturbed<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> String {
    let all = cells.clone().count();
    match cells.filter(|c| c.disturbed.is_some()).count() {
        0 => String::new(),
        n => format!(
            "‡ With a cell that was disturbed in its last attempt too: its canary was off, or others used the machine \
             meanwhile. {n} of {all} were; journal.jsonl says which and by what.\n"
        ),
    }
}

/// What the dagger of [`Point::load`] means.
pub const GROWS: &str = "† The queue still grew when the arrivals ended: latencies are the run's length, not the server's.\n";

#[cfg(test)]
#[path = "disturbed_tests.rs"]
mod tests;
