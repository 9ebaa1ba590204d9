//! Who yields its seat and its memory.

use super::{Scheduler, Sequence};
use crate::logic::time::Timestamp;

impl<P> Scheduler<P> {
    /// Takes a running sequence off its seat: one of the best-effort lane if there is any, and of these the one
    /// with the most slack (time to its deadline beyond what it still needs). Never the oldest request of those
    /// that go first, so that something always finishes; `None` if there is no other.
    pub fn preempt(&mut self, now: Timestamp) -> Option<Sequence<P>> {
        let place = |s: &Sequence<P>| (s.spec.terms.lane, s.spec.arrival, s.spec.id);
        let first = self.running.iter().map(place).min()?;
        self.preempt_of(now, |s| place(s) != first)
    }

    /// The same of the best-effort lane, for one that goes before all of it.
    pub fn preempt_best_effort(&mut self, now: Timestamp) -> Option<Sequence<P>> {
        self.preempt_of(now, |s| s.spec.yields())
    }

    fn preempt_of(
        &mut self,
        now: Timestamp,
        may_go: impl Fn(&Sequence<P>) -> bool,
    ) -> Option<Sequence<P>> {
        assert!(!self.in_flight, "its row is being computed");
        let token_time_us = self.step_us;
        let slack = |s: &Sequence<P>| {
            let left = f64::from(s.spec.max_tokens - s.num_generated) * token_time_us;
            s.spec.deadline.0.saturating_sub(now.0) as f64 - left
        };
        let (index, _) = self
            .running
            .iter()
            .enumerate()
            .filter(|(_, s)| s.ended.is_none() && may_go(s))
            // One that has yielded before does so again only if nobody else of its lane can; among equals the
            // one that came last has the least to lose.
            .max_by(|(i, a), (j, b)| {
                let lane = a.spec.terms.lane.cmp(&b.spec.terms.lane);
                let fresh = b.spec.preempted.cmp(&a.spec.preempted);
                let slack = slack(a).total_cmp(&slack(b));
                lane.then(fresh).then(slack).then(i.cmp(j))
            })?;
        let mut s = self.running.remove(index);
        s.spec.preempted = true;
        Some(s)
    }
}
