//! The wait queue: admitted requests that do not run yet, in the order in which they shall.
//!
//! `push`, `pop` and `remove` cost O(log n). The order is decided when a request is taken, not when it is
//! put in, so a late arrival with a tight deadline passes those that can wait. Ties go to the earlier
//! arrival. Nothing here is ever dropped for being late: on these rungs admitted work never expires.

use std::collections::BTreeMap;
use std::time::Duration;

use super::request::RequestSpec;
use super::time::Timestamp;
use crate::ids::RequestId;

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

/// Position in the queue: (not preempted, deadline or zero, arrival, id); the id makes it unique.
type Key = (bool, Timestamp, Timestamp, RequestId);

/// See the module's text. `P` is what travels with the request.
#[derive(Debug)]
pub struct WaitQueue<P> {
    order: QueueOrder,
    capacity: usize,
    entries: BTreeMap<Key, (RequestSpec, P)>,
    keys: BTreeMap<RequestId, Key>,
    /// Sum of `max_tokens` over the entries.
    max_tokens: u64,
    /// Prompt tokens that an entry's start has to compute, and their sum.
    prefill: fn(&RequestSpec, &P) -> u64,
    prefill_tokens: u64,
}

impl<P> WaitQueue<P> {
    /// An empty queue that holds at most `capacity` requests.
    #[must_use]
    pub fn new(order: QueueOrder, capacity: usize) -> Self {
        Self {
            order,
            capacity,
            entries: BTreeMap::new(),
            keys: BTreeMap::new(),
            max_tokens: 0,
            prefill: |spec, _| u64::from(spec.prompt_tokens),
            prefill_tokens: 0,
        }
    }

    /// The queue, if what a request has to compute is not its whole prompt. While a request waits, `prefill`
    /// says the same of it.
    #[must_use]
    pub fn counting_prefill(self, prefill: fn(&RequestSpec, &P) -> u64) -> Self {
        Self { prefill, ..self }
    }

    fn key(&self, spec: &RequestSpec) -> Key {
        let class = match self.order {
            QueueOrder::Arrival => Timestamp(0),
            QueueOrder::Deadline => spec.deadline,
        };
        (!spec.preempted, class, spec.arrival, spec.id)
    }

    /// Puts a request in.
    ///
    /// # Errors
    /// Gives the payload back when the queue is full.
    pub fn push(&mut self, spec: RequestSpec, payload: P) -> Result<(), P> {
        if self.entries.len() >= self.capacity {
            return Err(payload);
        }
        self.put_back(spec, payload);
        Ok(())
    }

    /// Returns a request that was taken and could not start, or that ran and was preempted. It keeps its place
    /// (a preempted one at the head), and is exempt from the capacity: it was admitted once, and that is not
    /// taken back.
    pub fn put_back(&mut self, spec: RequestSpec, payload: P) {
        let key = self.key(&spec);
        self.keys.insert(spec.id, key);
        self.max_tokens += u64::from(spec.max_tokens);
        self.prefill_tokens += (self.prefill)(&spec, &payload);
        self.entries.insert(key, (spec, payload));
    }

    /// Takes the first request if `rule` lets any go now. Call it until it gives `None` or the seats are full.
    pub fn pop(&mut self) -> Option<(RequestSpec, P)> {
        let (_, (spec, payload)) = self.entries.pop_first()?;
        self.keys.remove(&spec.id);
        self.max_tokens -= u64::from(spec.max_tokens);
        self.prefill_tokens -= (self.prefill)(&spec, &payload);
        Some((spec, payload))
    }

    /// How many requests `rule` lets go now; if none though some wait, when to ask again.
    #[must_use]
    pub fn ready(&self, rule: TakeRule, now: Timestamp) -> (usize, Option<Timestamp>) {
        let n = rule.seats.min(self.entries.len());
        let Some(fill) = rule.fill else {
            return (n, None);
        };
        if n == 0 || self.entries.len() >= fill.batch {
            return (n, None);
        }
        // The queue is in order of arrival under this rule, but `min` does not depend on it.
        let oldest = self
            .entries
            .values()
            .map(|(s, _)| s.arrival)
            .min()
            .unwrap_or(now);
        let due = oldest + fill.timeout;
        if now >= due {
            (n, None)
        } else {
            (0, Some(due))
        }
    }

    /// Takes a request out wherever it stands, for a client that went away.
    pub fn remove(&mut self, id: RequestId) -> Option<(RequestSpec, P)> {
        let key = self.keys.remove(&id)?;
        let entry = self.entries.remove(&key)?;
        self.max_tokens -= u64::from(entry.0.max_tokens);
        self.prefill_tokens -= (self.prefill)(&entry.0, &entry.1);
        Some(entry)
    }

    /// Waiting requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many of them would go before a request like this.
    #[must_use]
    pub fn position(&self, spec: &RequestSpec) -> usize {
        self.entries.range(..self.key(spec)).count()
    }

    /// Prompt tokens that the waiting requests have to compute, together.
    #[must_use]
    pub fn prefill_tokens_waiting(&self) -> u64 {
        self.prefill_tokens
    }

    /// Output tokens that the waiting requests may ask for, together.
    #[must_use]
    pub fn max_tokens_waiting(&self) -> u64 {
        self.max_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(id: u64, arrival: u64, deadline: u64) -> RequestSpec {
        RequestSpec {
            id: RequestId(id),
            arrival: Timestamp(arrival),
            deadline: Timestamp(deadline),
            prompt_tokens: 1,
            max_tokens: 1 + (id % 3) as u32,
            preempted: false,
        }
    }

    #[test]
    fn a_full_queue_gives_the_payload_back_but_takes_returned_work() {
        let mut q = WaitQueue::new(QueueOrder::Arrival, 1);
        assert_eq!(q.push(spec(1, 1, 9), "a"), Ok(()));
        assert_eq!(q.push(spec(2, 2, 9), "b"), Err("b"));
        q.put_back(spec(0, 0, 9), "returned");
        assert_eq!(q.pop().map(|(_, p)| p), Some("returned"));
    }

    #[test]
    fn who_was_preempted_goes_first_whatever_the_deadlines() {
        let mut q = WaitQueue::new(QueueOrder::Deadline, 9);
        q.push(spec(1, 1, 5), ()).unwrap();
        let preempted = RequestSpec {
            preempted: true,
            ..spec(2, 2, 9)
        };
        q.put_back(preempted, ());
        assert_eq!(q.pop().map(|(s, ())| s.id), Some(RequestId(2)));
    }

    #[test]
    fn a_static_batch_starts_when_full_or_after_the_timeout() {
        let rule = TakeRule {
            seats: 2,
            fill: Some(FillRule {
                batch: 2,
                timeout: Duration::from_micros(10),
            }),
        };
        let mut q = WaitQueue::new(QueueOrder::Arrival, 9);
        assert_eq!(q.ready(rule, Timestamp(0)), (0, None));
        q.push(spec(1, 5, 9), ()).unwrap();
        assert_eq!(q.ready(rule, Timestamp(6)), (0, Some(Timestamp(15))));
        assert_eq!(q.ready(rule, Timestamp(15)), (1, None));
        q.push(spec(2, 7, 9), ()).unwrap();
        assert_eq!(q.ready(rule, Timestamp(7)), (2, None));
    }

    proptest! {
        /// Against a plain list, sorted at every look.
        #[test]
        fn agrees_with_a_sorted_list(by_deadline: bool, ops in prop::collection::vec((0u8..4, 0u64..4, 0u64..4), 0..60)) {
            let order = if by_deadline { QueueOrder::Deadline } else { QueueOrder::Arrival };
            let mut q = WaitQueue::new(order, 5);
            let mut model: Vec<RequestSpec> = Vec::new();
            for (id, (op, a, d)) in ops.into_iter().enumerate() {
                let s = spec(id as u64, a, d);
                match op {
                    0 | 1 => {
                        let pushed = q.push(s, ()).is_ok();
                        prop_assert_eq!(pushed, model.len() < 5);
                        if pushed { model.push(s); }
                    }
                    2 => {
                        model.sort_by_key(|s| (if by_deadline { s.deadline } else { Timestamp(0) }, s.arrival, s.id));
                        let expected = if model.is_empty() { None } else { Some(model.remove(0)) };
                        prop_assert_eq!(q.pop().map(|(s, ())| s), expected);
                    }
                    _ => {
                        let victim = RequestId(a);
                        let at = model.iter().position(|s| s.id == victim);
                        let expected = at.map(|i| model.remove(i));
                        prop_assert_eq!(q.remove(victim).map(|(s, ())| s), expected);
                    }
                }
                prop_assert_eq!(q.len(), model.len());
                prop_assert_eq!(q.prefill_tokens_waiting(), q.len() as u64);
                model.sort_by_key(|s| (if by_deadline { s.deadline } else { Timestamp(0) }, s.arrival, s.id));
                for (place, s) in model.iter().enumerate() {
                    prop_assert_eq!(q.position(s), place);
                }
                prop_assert_eq!(q.max_tokens_waiting(), model.iter().map(|s| u64::from(s.max_tokens)).sum::<u64>());
            }
            prop_assert_eq!(q.is_empty(), model.is_empty());
        }
    }
}
