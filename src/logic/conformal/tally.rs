//! The record of promises. Coverage is of requests that were promised something and seen to their end;
//! everything else is counted beside it, under its own name.

/// Promises that were seen to their end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promises {
    pub kept: u64,
    pub missed: u64,
    /// The client left while the promise could still be kept.
    pub censored: u64,
    /// The client left after it was broken. Not in the coverage, which censored requests stay out of.
    pub censored_late: u64,
}

impl Promises {
    /// Kept promises over those seen to their end.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        let n = self.kept + self.missed;
        (n > 0).then(|| self.kept as f64 / n as f64)
    }
}

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub promised: Promises,
    /// Bounds of requests that were admitted without looking at them: what coverage would have been.
    pub observed: Promises,
    pub explored: u64,
    pub best_effort: u64,
    /// Promised requests that were moved to the best-effort lane when they were taken from the queue, or not run
    /// at all. They are among the promised above: kept or missed.
    pub demoted: u64,
    pub revoked: u64,
    /// Ran before anything was calibrated.
    pub unbounded: u64,
}
