//! The next step: every row of the promised lane, then what the best-effort lane may have beside them.

use super::policy::StepOrder;
use super::step::{RowPlan, StepPlan, Work};
use super::{Scheduler, Sequence};
use crate::logic::kv::BLOCK_TOKENS;
use crate::logic::request::Lane;
use crate::logic::time::Timestamp;

/// What a running request may do in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    Prefill,
    Decode,
    Pause,
}

impl<P> Scheduler<P> {
    /// Those of a lane, with their places in the running set and what they may do in the next step.
    pub(super) fn members(&self, lane: Lane) -> impl Iterator<Item = (usize, &Sequence<P>, May)> {
        let mut decodes = match lane {
            Lane::Promised => usize::MAX,
            Lane::BestEffort => self.allowance.decodes,
        };
        let running = self.running.iter().enumerate();
        let of_lane = running.filter(move |(_, s)| s.spec.terms.lane == lane);
        of_lane.map(move |(index, s)| {
            let may = if s.prefilling() {
                May::Prefill
            } else if decodes == 0 {
                May::Pause
            } else {
                decodes -= 1;
                May::Decode
            };
            (index, s, may)
        })
    }

    /// Fills `plan` with the next step and freezes it. An empty plan is no step.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        assert!(!self.in_flight, "one step at a time");
        plan.rows.clear();
        plan.ops.clear();
        plan.ops.append(&mut self.ops);
        let mut budget = self.limits.prefill_budget;
        let goes_on = self.plan_lane(Lane::Promised, &mut budget, plan);
        plan.promised_rows = plan.rows.len();
        if goes_on {
            budget = budget.min(self.allowance.prompt_tokens);
            self.plan_lane(Lane::BestEffort, &mut budget, plan);
        }
        plan.promised_share = match plan.promised_rows == plan.rows.len() {
            true => 1.0,
            false => {
                let loads = plan.loads();
                self.lane.cost.share(loads.promised, loads.best_effort)
            }
        };
        if !plan.is_empty() {
            self.last_step = self.last_step.next();
            self.in_flight = true;
        }
        plan.id = self.last_step;
        plan.ahead = self.steps_ahead(plan);
    }

    /// Steps that may follow this one without anybody being asked: all rows decode, and nobody reaches its last
    /// token or the end of a block before the last of them. What the model's memory is rid of is reported first;
    /// the best-effort lane and who may be given up are looked at before every step.
    fn steps_ahead(&self, plan: &StepPlan) -> u32 {
        let looked_at =
            |s: &Sequence<P>| s.spec.yields() || s.spec.terms.drop_at != Timestamp::NEVER;
        let asks = |s: &Sequence<P>| s.prefilling() || looked_at(s);
        if !plan.ops.is_empty() || self.running.iter().any(asks) {
            return 0;
        }
        let of = |s: &Sequence<P>| {
            let tokens_left = s.spec.max_tokens - s.num_generated;
            let block_end = (s.booked / BLOCK_TOKENS + 1) * BLOCK_TOKENS - 1;
            let room = s
                .lease
                .capacity()
                .min(block_end)
                .saturating_sub(s.num_computed);
            tokens_left.min(room).saturating_sub(1)
        };
        self.running.iter().map(of).min().unwrap_or(0)
    }

    /// Adds a lane's rows. False if nothing may be computed beside them.
    fn plan_lane(&self, lane: Lane, budget: &mut u32, plan: &mut StepPlan) -> bool {
        let prefill_due = self.members(lane).any(|(.., may)| may == May::Prefill);
        let alone = prefill_due && self.policy.order() == StepOrder::PrefillFirst;
        if !alone {
            self.plan_decodes(lane, plan);
        }
        if prefill_due {
            self.plan_prefills(lane, budget, plan);
        }
        !alone
    }

    fn plan_decodes(&self, lane: Lane, plan: &mut StepPlan) {
        let room = self.limits.n_batch.saturating_sub(plan.tokens()) as usize;
        let decode = |(index, s, may): (usize, &Sequence<P>, May)| {
            let token = s.last_token.filter(|_| may == May::Decode)?;
            let work = Work::Decode {
                position: s.num_computed,
                token,
                index: s.num_generated,
            };
            Some(row(index, s, work))
        };
        plan.rows
            .extend(self.members(lane).filter_map(decode).take(room));
    }

    /// Chunks in order of admission, so that a long prompt advances under a flood of short ones.
    fn plan_prefills(&self, lane: Lane, budget: &mut u32, plan: &mut StepPlan) {
        *budget = (*budget).min(self.limits.n_batch.saturating_sub(plan.tokens()));
        for (index, s, may) in self.members(lane) {
            if may != May::Prefill {
                continue;
            }
            if *budget == 0 {
                break;
            }
            let rest = s.prefill_end - s.num_computed;
            let len = rest.min(*budget);
            *budget -= len;
            let work = Work::Prefill {
                start: s.num_computed,
                len,
                samples: (len == rest).then_some(s.num_generated),
            };
            plan.rows.push(row(index, s, work));
        }
    }
}

fn row<P>(index: usize, s: &Sequence<P>, work: Work) -> RowPlan {
    RowPlan {
        index,
        request: s.spec.id,
        seq: s.lease.seq,
        work,
    }
}
