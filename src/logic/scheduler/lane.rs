//! What the best-effort lane may do in a step, so that nobody's promise depends on what is in it.
//!
//! A promised request sees the lane in two ways only, whatever the lane is full of. Its own steps get longer by a
//! fixed share at most, over time: steps of promised requests earn credit, and what the lane computes beside them is
//! paid out of it. And the step that it meets when it arrives may be one of the lane's, which are short
//! ([`STEPS`]). So what a promise must allow for is known in advance, and bounds that were calibrated without a lane
//! hold with one.

use super::Sequence;
use super::cost::{Load, StepCost};
use crate::logic::ewma::Ewma;
use crate::logic::request::RequestSpec;
use crate::logic::time::Timestamp;

/// What the lane computes in one step takes about as long at most as so many steps of a single reply. More would hold
/// up promised newcomers; with less, what a step costs whatever it computes would be most of it.
pub const STEPS: f64 = 2.0;

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
}

impl LaneKeeper {
    pub fn new(slowdown: f64) -> Self {
        Self {
            slowdown,
            cost: StepCost::default(),
            used: Ewma::new(0.05),
            credit_us: 0.0,
        }
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
        let earned = self.slowdown * own_us - (step_us - own_us);
        self.credit_us = (self.credit_us + earned).min(self.longest_us());
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

    /// What the lane may compute in the next step, `alone` or beside others, if so many of its requests could
    /// decode.
    pub fn allowance(&self, alone: bool, decodes: usize) -> Allowance {
        let budget_us = match alone {
            true => self.longest_us() - self.cost.fixed_us(),
            false => self.credit_us.max(0.0),
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
        let prompt = s.prefill_end.saturating_sub(s.num_computed);
        let cap = s.spec.max_tokens.saturating_sub(s.num_generated);
        let reply = (f64::from(cap) * self.used.get().unwrap_or(1.0)).max(1.0);
        let need_us = reply * step_us + f64::from(prompt) * self.cost.prompt_token_us();
        by != Timestamp::NEVER && need_us > by.since(now).as_micros() as f64
    }

    /// How many promised requests of `running` are not expected to be done in time, all of which decode on.
    pub fn late<P>(&self, running: &[Sequence<P>], now: Timestamp) -> usize {
        let promised = running
            .iter()
            .filter(|s| !s.spec.yields() && s.ended.is_none());
        let step_us = self.cost.step_us(Load {
            decodes: promised.clone().count() as u32,
            prompt_tokens: 0,
        });
        let is_late = |s: &&Sequence<P>| {
            s.spec.terms.due <= now || self.needs_more_than_is_left(s, step_us, now)
        };
        promised.filter(is_late).count()
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
