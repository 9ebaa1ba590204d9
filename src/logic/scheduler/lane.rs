//! What the best-effort lane may do in a step, so that nobody's promise depends on what is in it.
//!
//! A promised request sees the lane in two ways only, whatever the lane is full of. Its own steps get longer by a
//! fixed share at most, over time: steps of promised requests earn credit, and what the lane computes beside them is
//! paid out of it. And the step that it meets when it arrives may be one of the lane's, which are short
//! ([`STEPS`]). So what a promise must allow for is known in advance, and bounds that were calibrated without a lane
//! hold with one.
//!
//! What a promise need not feel is lent besides: idle time that was kept (`spare.rs`), as far as every promised request
//! would still be done in good time if it used all of its cap.

use super::Sequence;
use super::cost::{Load, StepCost};
use super::spare::Spare;
use crate::logic::ewma::Ewma;
use crate::logic::request::RequestSpec;
use crate::logic::time::Timestamp;

/// What the lane computes in one step takes about as long at most as so many steps of a single reply. More would hold
/// up promised newcomers; with less, what a step costs whatever it computes would be most of it.
pub const STEPS: f64 = 2.0;

/// The share of the time to its end that a promised request may be planned to need, for idle time to be lent beside it.
const PLANNED: f64 = 0.9;

/// What the lane may compute in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// So many of its requests may decode.
    pub decodes: usize,
    /// Prompt tokens of all of them together.
    pub prompt_tokens: u32,
}

impl Allowance {
    /// Nobody is in its way.
    pub const ALL: Self = Self {
        decodes: usize::MAX,
        prompt_tokens: u32::MAX,
    };
}

/// A step's work, by lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loads {
    pub promised: Load,
    pub best_effort: Load,
}

/// Watches over that. See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneKeeper {
    /// By which share of their length steps with promised requests may get longer, on average.
    slowdown: f64,
    pub cost: StepCost,
    /// What replies used of their caps, of late.
    used: Ewma,
    /// µs that the lane may take beside promised requests.
    credit_us: f64,
    /// What it may take besides, as far as that can be spared.
    spare: Spare,
}

impl LaneKeeper {
    pub fn new(slowdown: f64) -> Self {
        Self {
            slowdown,
            cost: StepCost::default(),
            used: Ewma::new(0.05),
            credit_us: 0.0,
            spare: Spare::default(),
        }
    }

    /// Takes in that it is `now`, and what was computed since this was said last.
    pub fn pass(&mut self, now: Timestamp, done: Option<Loads>) {
        self.spare
            .pass(now, done.is_some_and(|loads| !loads.promised.is_empty()));
    }

    /// Takes in what a step computed and how long it took.
    pub fn observe_step(&mut self, loads: Loads, step_us: f64) {
        let Loads {
            promised,
            best_effort,
        } = loads;
        self.cost.observe(promised + best_effort, step_us);
        if promised.is_empty() {
            // Who is promised something from here on meets no credit that others have earned.
            self.credit_us = 0.0;
            return;
        }
        let own_us = self.cost.share(promised, best_effort) * step_us;
        let (earned, lane_us) = (self.slowdown * own_us, step_us - own_us);
        let credit = self.credit_us + earned;
        let lent = self.spare.take(lane_us - credit.max(0.0));
        self.credit_us = (credit - lane_us + lent).min(self.longest_us());
    }

    /// What the lane may take in one step.
    fn longest_us(&self) -> f64 {
        let reply = Load {
            decodes: 1,
            prompt_tokens: 0,
        };
        STEPS * self.cost.step_us(reply)
    }

    /// Takes a reply in that ended by itself or at its cap.
    pub fn observe_reply(&mut self, spec: &RequestSpec, generated: u32) {
        self.used
            .observe(f64::from(generated) / f64::from(spec.max_tokens.max(1)));
    }

    /// What the lane may compute in the next step beside others who can spare so many µs, or alone (`None`), if so many
    /// of its requests could decode.
    pub fn allowance(&self, slack_us: Option<f64>, decodes: usize) -> Allowance {
        let alone = slack_us.is_none();
        let budget_us = match slack_us {
            None => self.longest_us() - self.cost.fixed_us(),
            Some(slack_us) => {
                let lent_us = self.spare.us().min(slack_us);
                (self.credit_us.max(0.0) + lent_us).min(self.longest_us())
            }
        };
        let (decode_us, token_us) = (self.cost.decode_us(), self.cost.prompt_token_us());
        // Nothing was measured yet.
        if self.longest_us() == 0.0 {
            return Allowance::ALL;
        }
        let fit = |us: f64, each_us: f64| (us.max(0.0) / each_us) as u32;
        // Alone it always gets on.
        let most = fit(budget_us, decode_us).max(u32::from(alone));
        let decoding = decodes.min(most as usize);
        let left_us = budget_us - decoding as f64 * decode_us;
        let least = u32::from(alone && decoding == 0);
        Allowance {
            decodes: decoding,
            prompt_tokens: fit(left_us, token_us).max(least),
        }
    }

    /// Whether it is not expected to be done in time. False for who has nothing to lose any more, or never had.
    fn needs_more_than_is_left<P>(&self, s: &Sequence<P>, step_us: f64, now: Timestamp) -> bool {
        // Once the promise is broken there still is the deadline.
        let by = [s.spec.terms.due, s.spec.deadline];
        let Some(by) = by.into_iter().find(|by| *by > now) else {
            return false;
        };
        let reply = (f64::from(cap_left(s)) * self.used.get().unwrap_or(1.0)).max(1.0);
        let need_us = reply * step_us + f64::from(prompt_left(s)) * self.cost.prompt_token_us();
        by != Timestamp::NEVER && need_us > by.since(now).as_micros() as f64
    }

    /// How long all promised requests of `running` can certainly be held up, in µs; `None` if there is none of them.
    pub fn slack_us<P>(&self, running: &[Sequence<P>], now: Timestamp) -> Option<f64> {
        let promised = promised(running);
        let step_us = self.step_us_of(promised.clone());
        let prompts: u32 = promised.clone().map(prompt_left).sum();
        let prompts_us = f64::from(prompts) * self.cost.prompt_token_us();
        let slack = |s: &Sequence<P>| match s.spec.terms.due {
            Timestamp::NEVER => f64::INFINITY,
            due => {
                let left_us = PLANNED * due.since(now).as_micros() as f64;
                let need_us = prompts_us + f64::from(cap_left(s)) * step_us;
                // What it earns for the lane meanwhile is the lane's anyway.
                left_us - (1.0 + self.slowdown) * need_us
            }
        };
        promised.map(slack).reduce(f64::min).map(|us| us.max(0.0))
    }

    /// A step in which all of them decode.
    fn step_us_of<'a, P: 'a>(&self, who: impl Iterator<Item = &'a Sequence<P>>) -> f64 {
        self.cost.step_us(Load {
            decodes: who.count() as u32,
            prompt_tokens: 0,
        })
    }

    /// How many promised requests of `running` are not expected to be done in time, all of which decode on.
    pub fn late<P>(&self, running: &[Sequence<P>], now: Timestamp) -> usize {
        let promised = promised(running);
        let step_us = self.step_us_of(promised.clone());
        let is_late = |s: &&Sequence<P>| {
            s.spec.terms.due <= now || self.needs_more_than_is_left(s, step_us, now)
        };
        promised.filter(is_late).count()
    }
}

/// Those of the promised lane who go on.
fn promised<P>(running: &[Sequence<P>]) -> impl Iterator<Item = &Sequence<P>> + Clone {
    let goes_on = |s: &&Sequence<P>| !s.spec.yields() && s.ended.is_none();
    running.iter().filter(goes_on)
}

/// Tokens that it has to compute before it goes on with its reply.
fn prompt_left<P>(s: &Sequence<P>) -> u32 {
    s.prefill_end.saturating_sub(s.num_computed)
}

/// Tokens that its reply may still have.
fn cap_left<P>(s: &Sequence<P>) -> u32 {
    s.spec.max_tokens.saturating_sub(s.num_generated)
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
