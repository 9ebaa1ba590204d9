//! The wait queue: admitted requests that do not run yet, in the order in which they shall.
//!
//! There are two lanes: whoever may break no promise goes first, whatever the deadlines, and the best-effort
//! lane gets only seats that nobody needs. `push`, `take` and `remove` cost O(log n). The order is decided when
//! a request is taken, not when it is put in, so a late arrival with a tight deadline passes those that can
//! wait. Ties go to the earlier arrival. Who is past the moment at which it is to be given up
//! ([`Terms::drop_at`](super::request::Terms)) is taken out by [`WaitQueue::take_expired`]; nothing else is ever
//! dropped for being late.

mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::request::{Lane, RequestSpec};
use super::time::Timestamp;
use crate::ids::RequestId;
use line::{Key, Line, Prefill};

/// In which order waiting requests run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueOrder {
    /// First come, first served.
    Arrival,
    /// Earliest deadline first; requests without a deadline come last, by arrival.
    Deadline,
}

/// What the scheduler asks for when it plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakeRule {
    /// At most so many requests.
    pub seats: usize,
    /// The first so many of these seats are free; the best-effort lane runs in the others and yields them, and
    /// gets none of them. At most `seats`.
    pub free: usize,
    /// Give nothing until a whole batch waits, or the oldest has waited long enough.
    pub fill: Option<FillRule>,
}

/// When a static batch may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FillRule {
    /// So many waiting requests make a full batch.
    pub batch: usize,
    /// The oldest need not wait longer than this for the batch to fill.
    pub timeout: Duration,
}

/// See the module's text. `P` is what travels with the request.
#[derive(Debug)]
pub struct WaitQueue<P> {
    order: QueueOrder,
    capacity: usize,
    lanes: [Line<P>; 2],
    keys: BTreeMap<RequestId, (Lane, Key)>,
    /// When each of those that are to be given up is.
    expiries: BTreeSet<(Timestamp, RequestId)>,
    prefill: Prefill<P>,
}

impl<P> WaitQueue<P> {
    /// An empty queue that holds at most `capacity` requests.
    #[must_use]
    pub fn new(order: QueueOrder, capacity: usize) -> Self {
        Self {
            order,
            capacity,
            lanes: [Line::default(), Line::default()],
            keys: BTreeMap::new(),
            expiries: BTreeSet::new(),
            prefill: |spec, _| u64::from(spec.prompt_tokens),
        }
    }

    /// The queue, if what a request has to compute is not its whole prompt. While a request waits, `prefill`
    /// says the same of it.
    #[must_use]
    pub fn counting_prefill(self, prefill: fn(&RequestSpec, &P) -> u64) -> Self {
        Self { prefill, ..self }
    }

    fn key(&self, spec: &RequestSpec) -> Key {
        // Nothing is promised in the lane, and what it may have is seldom enough for all: most is had of it where the
        // small ones go first. It yields too often for who yielded to go first there.
        if spec.yields() {
            let open_end = spec.deadline == Timestamp::NEVER;
            return (open_end, spec.terms.work.into(), spec.arrival, spec.id);
        }
        let class = match self.order {
            QueueOrder::Arrival => 0,
            QueueOrder::Deadline => spec.deadline.0,
        };
        (!spec.preempted, class, spec.arrival, spec.id)
    }

    /// Puts a request in.
    ///
    /// # Errors
    /// Gives the payload back when the queue is full.
    pub fn push(&mut self, spec: RequestSpec, payload: P) -> Result<(), P> {
        if self.len() >= self.capacity {
            return Err(payload);
        }
        self.put_back(spec, payload);
        Ok(())
    }

    /// Returns a request that was taken and could not start, or that ran and was preempted. It keeps its place
    /// (a preempted one at the head, outside of the best-effort lane), and is exempt from the capacity: it was
    /// admitted once, and that is not taken back.
    pub fn put_back(&mut self, spec: RequestSpec, payload: P) {
        let (lane, key) = (spec.terms.lane, self.key(&spec));
        self.keys.insert(spec.id, (lane, key));
        if spec.terms.drop_at != Timestamp::NEVER {
            self.expiries.insert((spec.terms.drop_at, spec.id));
        }
        self.lanes[lane.index()].insert(key, (spec, payload), self.prefill);
    }

    /// Takes the first request that `rule` lets go; the rule has a seat less afterwards. `None` if there is
    /// none. A batch that fills ([`Self::filling`]) is the caller's to wait for.
    pub fn take(&mut self, rule: &mut TakeRule) -> Option<(RequestSpec, P)> {
        let [promised, best_effort] = &mut self.lanes;
        let mut first = None;
        if rule.seats > 0 {
            first = promised.pop(self.prefill);
        }
        if first.is_none() && rule.free > 0 {
            first = best_effort.pop(self.prefill);
        }
        let entry = first?;
        rule.seats = rule.seats.saturating_sub(1);
        rule.free = rule.free.saturating_sub(1);
        self.forget(&entry.0);
        Some(entry)
    }

    fn forget(&mut self, spec: &RequestSpec) {
        self.keys.remove(&spec.id);
        self.expiries.remove(&(spec.terms.drop_at, spec.id));
    }

    /// While a batch fills that `rule` wants full: when to ask again.
    #[must_use]
    pub fn filling(&self, rule: &TakeRule, now: Timestamp) -> Option<Timestamp> {
        let fill = rule.fill.filter(|fill| self.len() < fill.batch)?;
        let waits_until = |s: &RequestSpec| {
            if s.terms.alone {
                s.arrival
            } else {
                s.arrival + fill.timeout
            }
        };
        let specs = self.lanes.iter().flat_map(Line::specs);
        let due = specs.map(waits_until).min()?;
        (now < due).then_some(due)
    }

    /// Takes a request out wherever it stands, for a client that went away.
    pub fn remove(&mut self, id: RequestId) -> Option<(RequestSpec, P)> {
        let (lane, key) = self.keys.get(&id)?;
        let entry = self.lanes[lane.index()].remove(key, self.prefill)?;
        self.forget(&entry.0);
        Some(entry)
    }

    /// Takes out a request that is to be given up by now.
    pub fn take_expired(&mut self, now: Timestamp) -> Option<(RequestSpec, P)> {
        let (_, id) = self.expiries.first().filter(|(at, _)| *at <= now)?;
        self.remove(*id)
    }

    /// When the next request is to be given up, if it still waits then.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Waiting requests of both lanes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Waiting requests of one lane.
    #[must_use]
    pub fn waiting(&self, lane: Lane) -> usize {
        self.lanes[lane.index()].len()
    }

    /// How many of them would go before a request like this.
    #[must_use]
    pub fn position(&self, spec: &RequestSpec) -> usize {
        let ahead = if spec.yields() {
            self.waiting(Lane::Promised)
        } else {
            0
        };
        ahead + self.lanes[spec.terms.lane.index()].position(&self.key(spec))
    }

    /// Prompt tokens that the waiting requests of a lane have to compute, together.
    #[must_use]
    pub fn prefill_tokens_waiting(&self, lane: Lane) -> u64 {
        self.lanes[lane.index()].prefill_tokens
    }

    /// Output tokens that the waiting requests of a lane may ask for, together.
    #[must_use]
    pub fn max_tokens_waiting(&self, lane: Lane) -> u64 {
        self.lanes[lane.index()].max_tokens
    }
}

#[cfg(test)]
#[path = "wait_queue_tests.rs"]
mod tests;
