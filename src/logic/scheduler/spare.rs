//! Time that promised requests left unused, kept for the best-effort lane.
//!
//! A request of the lane that comes beside a single reply of somebody else would wait for it on an engine that has
//! been idle half of the time, and miss what it would have made on a server without lanes. So idle time can be used
//! later, beside promised requests. Well below saturation that makes the lane about as good as no lane. Beyond it hardly any
//! is left over, but what an earlier calm has left, and the pauses between promised requests, still cost some promises.

use crate::logic::time::Timestamp;

/// What each µs with promised requests takes off. Where they take more than 1 / (1 + this) of the time nothing is kept.
const BUSY_COSTS: f64 = 0.4;
/// The most that is kept, in µs. With a tenth of it a burst after a calm costs promises less, and the lane misses more
/// where a load is not far from saturation.
const MOST_US: f64 = 5e6;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spare {
    us: f64,
    /// Nothing is known of the time before the first look.
    looked_at: Option<Timestamp>,
}

impl Spare {
    /// Takes in that it is `now`, and whether promised requests were computed since this was said last.
    pub fn pass(&mut self, now: Timestamp, promised: bool) {
        let since = self.looked_at.replace(now).unwrap_or(now);
        let passed = now.since(since).as_micros() as f64;
        let change = if promised { -BUSY_COSTS } else { 1.0 } * passed;
        self.us = (self.us + change).clamp(0.0, MOST_US);
    }

    /// What there is, in µs.
    pub fn us(&self) -> f64 {
        self.us
    }

    /// Takes `us` out, as far as there is so much, and says how much that is.
    pub fn take(&mut self, us: f64) -> f64 {
        let taken = us.clamp(0.0, self.us);
        self.us -= taken;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of `period` ms, `busy` of which promised requests take.
    fn after(busy: u64, period: u64) -> f64 {
        let mut spare = Spare::default();
        spare.pass(Timestamp(0), false);
        for turn in 0..10_000 {
            let from = turn * period;
            spare.pass(Timestamp(1000 * (from + busy)), true);
            spare.pass(Timestamp(1000 * (from + period)), false);
        }
        spare.us()
    }

    #[test]
    fn idle_time_is_kept_where_there_is_plenty_and_not_where_there_is_not() {
        assert_eq!(after(0, 100), MOST_US);
        assert_eq!(after(60, 100), MOST_US);
        // What the last pause left.
        assert_eq!(after(80, 100), 20e3);
        assert_eq!(after(100, 100), 0.0);
    }

    #[test]
    fn it_is_spent_once() {
        let mut spare = Spare::default();
        spare.pass(Timestamp(7000), false);
        assert_eq!(spare.us(), 0.0, "nobody looked");
        spare.pass(Timestamp(8000), false);
        assert_eq!(
            [700.0, 700.0, 700.0].map(|us| spare.take(us)),
            [700.0, 300.0, 0.0]
        );
        assert_eq!(spare.take(-5.0), 0.0);
    }
}
