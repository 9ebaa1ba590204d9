//! One run of a cell, from one moment at which something happens to the next.

use cadenced::ids::RequestId;
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::request::{Outcome, RequestSpec, Terms};
use cadenced::logic::time::Timestamp;

use super::cost::{Composition, PS_PER_US};
use super::daemon::{Daemon, Departure, Planned};
use super::engine::{Fate, Request, Trial};

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
    /// Of the last step, in picoseconds.
    step_ps: u64,
    /// Requests that have arrived.
    arrived: usize,
    /// Requests whose patience has been looked at: they arrived, so they leave, in order.
    leavers: usize,
    first_token: Vec<Option<u64>>,
    decisions: Vec<Option<Decision>>,
    fates: Vec<Option<Fate>>,
}

impl<'a> Run<'a> {
    /// Before the first request.
    pub fn new(trial: &'a Trial, requests: &'a [Request]) -> Self {
        Self {
            trial,
            requests,
            daemon: Daemon::new(&trial.rung, trial.controller.clone()),
            now: 0,
            phase: Phase::Idle { ask_again: None },
            step_ps: 0,
            arrived: 0,
            leavers: 0,
            first_token: vec![None; requests.len()],
            decisions: vec![None; requests.len()],
            fates: vec![None; requests.len()],
        }
    }

    /// What became of each, after the last moment.
    ///
    /// # Panics
    /// If the daemon lost a request or kept some of its memory.
    pub fn fates(self) -> Vec<Fate> {
        assert!(self.daemon.is_empty(), "the daemon kept something");
        let fates: Option<Vec<Fate>> = self.fates.into_iter().collect();
        fates.expect("every request ends")
    }

    /// Goes to the next moment at which something happens. What clients do comes before what the engine
    /// does at the same moment. False when nothing is left.
    pub fn advance(&mut self) -> bool {
        let due = match self.phase {
            Phase::Idle { ask_again } => ask_again,
            Phase::Computing { until } | Phase::Skipping { until, .. } => Some(until),
        };
        let before = |at: u64| due.is_none_or(|due| at <= due);
        let (arrival, leave) = (self.next_arrival(), self.next_leave());
        if let Some(at) = arrival.filter(|at| before(*at) && leave.is_none_or(|l| *at <= l)) {
            self.now = at;
            self.arrive();
        } else if let Some(at) = leave.filter(|at| before(*at)) {
            self.now = at;
            self.leave();
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

    fn arrive(&mut self) {
        self.land();
        let index = self.arrived;
        self.arrived += 1;
        let request = &self.requests[index];
        let slo_us = self.trial.slo_us;
        let spec = RequestSpec {
            id: RequestId(index as u64),
            arrival: Timestamp(request.at_us),
            deadline: slo_us.map_or(Timestamp::NEVER, |slo| Timestamp(request.at_us + slo)),
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            preempted: false,
            terms: Terms::default(),
        };
        let (text, answer_tokens) = (request.text, request.answer_tokens);
        let entry = self.daemon.submit(spec, text, answer_tokens);
        self.decisions[index] = entry.decision;
        if let Some(outcome) = entry.refused {
            self.end(index, outcome, 0, None);
        } else if matches!(self.phase, Phase::Idle { .. }) {
            self.turn();
        }
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

    /// Before a client does something in the last of several steps that are all alike: that one is begun as any
    /// other, if what is decided now depends on it.
    fn land(&mut self) {
        let Phase::Skipping {
            first,
            steps,
            last_ps,
            until,
        } = self.phase
        else {
            return;
        };
        if !self.daemon.watches() {
            return;
        }
        let now = std::mem::replace(&mut self.now, until - last_ps);
        let cost = self.trial.cost;
        self.daemon.skip(cost.decodes(first, steps - 1));
        if let Some(ps) = cost.decodes(first, steps - 1).last() {
            self.step_ps = ps;
        }
        self.turn();
        self.now = now;
    }

    /// What the engine waited for has come.
    fn engine(&mut self) {
        match self.phase {
            Phase::Idle { .. } => {}
            Phase::Skipping {
                first,
                steps,
                last_ps,
                ..
            } => {
                self.daemon.skip(self.trial.cost.decodes(first, steps));
                self.step_ps = last_ps;
            }
            Phase::Computing { .. } => {
                let (now_us, first_token) = (us(self.now), &mut self.first_token);
                self.daemon
                    .complete(self.step_ps, |id| first_token[id.0 as usize] = Some(now_us));
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
        let token_time_us = self.step_ps as f64 / PS_PER_US as f64;
        let turn = self
            .daemon
            .turn(now, token_time_us, |departure| ended.push(departure));
        for Departure {
            id,
            outcome,
            generated,
            cached_tokens,
        } in ended
        {
            self.end(id.0 as usize, outcome, generated, cached_tokens);
        }
        self.phase = match turn {
            Planned::Step(step) => {
                self.step_ps = self.trial.cost.of(step);
                Phase::Computing {
                    until: self.now + self.step_ps,
                }
            }
            Planned::Idle { ask_again } => Phase::Idle {
                ask_again: ask_again.map(|at| at.0 * PS_PER_US),
            },
        };
    }

    /// Begins steps that are all alike, as many as begin before a client can change anything.
    fn skip(&mut self) -> bool {
        let Some(steady) = self.daemon.steady() else {
            return false;
        };
        let ends_with_an_arrival = steady.ends_with_an_arrival || self.daemon.watches();
        let arrival = self.next_arrival().filter(|_| ends_with_an_arrival);
        let client = [arrival, self.next_leave()].into_iter().flatten().min();
        let within = client.map_or(u64::MAX, |at| at - self.now);
        let cost = &self.trial.cost;
        let steps = cost.decodes_begun(steady.first, steady.steps, within);
        let took = cost.of_decodes(steady.first, steps);
        self.phase = Phase::Skipping {
            first: steady.first,
            steps,
            last_ps: took - cost.of_decodes(steady.first, steps.saturating_sub(1)),
            until: self.now + took,
        };
        true
    }

    /// The first end is the one that counts.
    fn end(&mut self, index: usize, outcome: Outcome, generated: u32, cached_tokens: Option<u32>) {
        let end_us = us(self.now);
        self.fates[index].get_or_insert(Fate {
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
