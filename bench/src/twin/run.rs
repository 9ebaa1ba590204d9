//! One run of a cell, from one moment at which something happens to the next.

mod again;
mod skip;

use cadenced::ids::RequestId;
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::request::{Outcome, RequestSpec, Terms};
use cadenced::logic::time::Timestamp;

use super::cost::{Composition, PS_PER_US};
use super::daemon::{Daemon, Departure, Entry, Planned};
use super::engine::{Fate, Request, Return, Trial};
use again::Again;

/// What the engine is at. Moments in picoseconds.
#[derive(Clone, Copy)]
enum Phase {
    Idle {
        ask_again: Option<u64>,
    },
    Computing {
        until: u64,
    },
    /// So many steps that are all alike, which the daemon has not taken yet.
    Skipping {
        first: Composition,
        steps: u32,
        /// What the last of them takes.
        last_ps: u64,
        until: u64,
    },
}

pub struct Run<'a> {
    trial: &'a Trial,
    requests: &'a [Request],
    daemon: Daemon,
    /// Picoseconds.
    now: u64,
    phase: Phase,
    /// Of the step in flight, in picoseconds.
    step_ps: u64,
    /// Requests that have arrived.
    arrived: usize,
    /// Requests whose patience has been looked at: they arrived, so they leave, in order.
    leavers: usize,
    first_token: Vec<Option<u64>>,
    decisions: Vec<Option<Decision>>,
    fates: Vec<Option<Fate>>,
    again: Again,
}

impl<'a> Run<'a> {
    /// Before the first request.
    pub fn new(trial: &'a Trial, requests: &'a [Request]) -> Self {
        let mut daemon = Daemon::new(&trial.rung, trial.controller.clone());
        daemon.tells_when = trial.come_again;
        Self {
            trial,
            requests,
            daemon,
            now: 0,
            phase: Phase::Idle { ask_again: None },
            step_ps: 0,
            arrived: 0,
            leavers: 0,
            // Of those that come again as well.
            first_token: vec![None; 2 * requests.len()],
            decisions: vec![None; requests.len()],
            fates: vec![None; requests.len()],
            again: Again::default(),
        }
    }

    /// What became of each, and of those that came again, after the last moment.
    ///
    /// # Panics
    /// If the daemon lost a request or kept some of its memory.
    pub fn fates(self) -> (Vec<Fate>, Vec<Return>) {
        assert!(self.daemon.is_empty(), "the daemon kept something");
        let fates: Option<Vec<Fate>> = self.fates.into_iter().collect();
        (fates.expect("every request ends"), self.again.returns)
    }

    /// Goes to the next moment at which something happens. What clients do comes before what the engine
    /// does at the same moment. False when nothing is left.
    pub fn advance(&mut self) -> bool {
        let due = match self.phase {
            Phase::Idle { ask_again } => ask_again,
            Phase::Computing { until } | Phase::Skipping { until, .. } => Some(until),
        };
        let expiry = self.next_expiry();
        let next = [due, expiry].into_iter().flatten().min();
        let before = |at: u64| next.is_none_or(|next| at <= next);
        let (arrival, leave) = (self.next_arrival(), self.next_leave());
        let first = [arrival, leave].into_iter().flatten().min();
        let again = self.again.next().filter(|at| before(*at));
        if let Some(at) = again.filter(|at| first.is_none_or(|first| *at < first)) {
            self.now = at;
            self.come_again();
        } else if let Some(at) = arrival.filter(|at| before(*at) && leave.is_none_or(|l| *at <= l))
        {
            self.now = at;
            self.arrive();
        } else if let Some(at) = leave.filter(|at| before(*at)) {
            self.now = at;
            self.leave();
        } else if let Some(at) = expiry.filter(|at| before(*at)) {
            self.now = at;
            self.expire();
        } else if let Some(at) = due {
            self.now = at;
            self.engine();
        } else {
            return false;
        }
        true
    }

    fn next_arrival(&self) -> Option<u64> {
        self.requests.get(self.arrived).map(|r| r.at_us * PS_PER_US)
    }

    fn next_leave(&mut self) -> Option<u64> {
        let patience_us = self.trial.patience_us?;
        while self.leavers < self.arrived && self.fates[self.leavers].is_some() {
            self.leavers += 1;
        }
        let has_come = self.leavers < self.arrived;
        has_come.then(|| (self.requests[self.leavers].at_us + patience_us) * PS_PER_US)
    }

    /// The wait queue's alarm goes off a tick after the moment that it is for.
    fn next_expiry(&self) -> Option<u64> {
        let at = self.daemon.next_expiry()?;
        Some((at.0 + 1) * PS_PER_US)
    }

    fn expire(&mut self) {
        let mut ended = Vec::new();
        let now = Timestamp(self.now / PS_PER_US);
        self.daemon.expire(now, |departure| ended.push(departure));
        self.leave_with(ended);
    }

    fn arrive(&mut self) {
        self.land();
        let index = self.arrived;
        self.arrived += 1;
        let request = self.requests[index];
        let entry = self.submit(index, &request);
        self.decisions[index] = entry.decision;
        if let Some(after_s) = entry.retry_after_s {
            self.again.tell(index, &request, after_s);
        }
        if let Some(outcome) = entry.refused {
            self.end(index, outcome, 0, None);
        }
        self.wake(&entry);
    }

    /// Who waits from now on sets an idle engine going.
    fn wake(&mut self, entry: &Entry) {
        if entry.refused.is_none() && matches!(self.phase, Phase::Idle { .. }) {
            self.turn();
        }
    }

    /// A request is at the door, under a number of its own.
    fn submit(&mut self, number: usize, request: &Request) -> Entry {
        let slo_us = self.trial.slo_us;
        let deadline = slo_us.map_or(Timestamp::NEVER, |slo| Timestamp(request.at_us + slo));
        let spec = RequestSpec {
            id: RequestId(number as u64),
            arrival: Timestamp(request.at_us),
            deadline,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            preempted: false,
            terms: Terms {
                due: deadline,
                ..Terms::default()
            },
        };
        let (text, answer_tokens) = (request.text, request.answer_tokens);
        self.daemon.submit(spec, text, answer_tokens)
    }

    fn leave(&mut self) {
        self.land();
        let index = self.leavers;
        self.leavers += 1;
        let now = Timestamp(self.now / PS_PER_US);
        self.daemon.cancel(RequestId(index as u64), now);
        // For its client it has ended, whenever the engine hears of it.
        self.end(index, Outcome::Cancelled, 0, None);
    }

    /// What the engine waited for has come.
    fn engine(&mut self) {
        match self.phase {
            Phase::Idle { .. } => {}
            Phase::Skipping { first, steps, .. } => {
                self.daemon.skip(self.trial.cost.decodes(first, steps));
            }
            Phase::Computing { .. } => {
                let (now_us, first_token) = (us(self.now), &mut self.first_token);
                let now = Timestamp(self.now / PS_PER_US);
                let begun = |id: RequestId| first_token[id.0 as usize] = Some(now_us);
                if let Some(next) = self.daemon.complete(now, self.step_ps, begun) {
                    self.compute(next);
                    return;
                }
                if self.trial.skip && self.skip() {
                    return;
                }
            }
        }
        self.turn();
    }

    fn turn(&mut self) {
        let now = Timestamp(self.now / PS_PER_US);
        let mut ended = Vec::new();
        let turn = self.daemon.turn(now, |departure| ended.push(departure));
        self.leave_with(ended);
        match turn {
            Planned::Step(step) => self.compute(step),
            Planned::Idle { ask_again } => {
                let ask_again = ask_again.map(|at| at.0 * PS_PER_US);
                self.phase = Phase::Idle { ask_again };
            }
        }
    }

    fn compute(&mut self, step: Composition) {
        self.step_ps = self.trial.cost.of(step);
        self.phase = Phase::Computing {
            until: self.now + self.step_ps,
        };
    }

    fn leave_with(&mut self, ended: Vec<Departure>) {
        for Departure {
            id,
            outcome,
            generated,
            cached_tokens,
        } in ended
        {
            self.end(id.0 as usize, outcome, generated, cached_tokens);
        }
    }

    /// The first end is the one that counts.
    fn end(&mut self, index: usize, outcome: Outcome, generated: u32, cached_tokens: Option<u32>) {
        let end_us = us(self.now);
        // What becomes of who has come again is known at the door.
        let Some(fate) = self.fates.get_mut(index) else {
            return;
        };
        fate.get_or_insert(Fate {
            outcome,
            first_token_us: self.first_token[index],
            end_us,
            generated,
            cached_tokens,
            decision: self.decisions[index],
        });
    }
}

/// In microseconds, rounded up: nothing is reported earlier than it was.
fn us(ps: u64) -> u64 {
    ps.div_ceil(PS_PER_US)
}
