//! What a step takes: the `[fake]` section's cost model, in its names and units, and the integer arithmetic
//! in which the twin adds it up.
//!
//! Costs are rounded once, to picoseconds. From there on everything is exact, so that `n` steps at once are
//! the sum of `n` steps one by one, to the last digit. A clock of 64 bits goes on for 213 days.

use std::ops::Add;

use cadenced::logic::scheduler::step::{StepPlan, Work};
use cadenced::model::fake::FakeConfig;
use serde::{Deserialize, Serialize};

/// Picoseconds in a microsecond.
pub const PS_PER_US: u64 = 1_000_000;

/// Microseconds: of a step, of each prompt token, of each decoding sequence, and of each token in the cache
/// before what a row computes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    pub step_us: f64,
    pub prefill_token_us: f64,
    pub decode_seq_us: f64,
    pub cached_token_us: f64,
}

impl From<&FakeConfig> for CostModel {
    fn from(fake: &FakeConfig) -> Self {
        Self {
            step_us: fake.step_us,
            prefill_token_us: fake.prefill_token_us,
            decode_seq_us: fake.decode_seq_us,
            cached_token_us: fake.cached_token_us,
        }
    }
}

#[cfg(test)]
impl Default for CostModel {
    /// The fake backend's defaults.
    fn default() -> Self {
        Self::from(&super::rung::config(None).unwrap().fake)
    }
}

/// What the cost of a step depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Composition {
    pub prefill_tokens: u32,
    /// Rows of one token; the last token of a prompt, when it comes alone, is one of them.
    pub decode_seqs: u32,
    /// Tokens in the cache before each row, summed over the rows.
    pub cached_tokens: u64,
}

impl Composition {
    /// Of a plan. A plan that only gives memory back is empty, and costs nothing.
    pub fn of(plan: &StepPlan) -> Self {
        plan.rows
            .iter()
            .fold(Self::default(), |sum, row| sum + Self::of_row(row.work))
    }

    fn of_row(work: Work) -> Self {
        Self::of_tokens(work.position(), work.tokens())
    }

    /// Of a row of so many tokens that finds `position` in the cache.
    pub fn of_tokens(position: u32, tokens: u32) -> Self {
        let (prefill_tokens, decode_seqs) = match tokens {
            1 => (0, 1),
            tokens => (tokens, 0),
        };
        Self {
            prefill_tokens,
            decode_seqs,
            cached_tokens: position.into(),
        }
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl Add for Composition {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            prefill_tokens: self.prefill_tokens + other.prefill_tokens,
            decode_seqs: self.decode_seqs + other.decode_seqs,
            cached_tokens: self.cached_tokens + other.cached_tokens,
        }
    }
}

/// A [`CostModel`] in whole picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepCost {
    pub step_ps: u64,
    pub prefill_token_ps: u64,
    pub decode_seq_ps: u64,
    pub cached_token_ps: u64,
}

impl From<CostModel> for StepCost {
    fn from(model: CostModel) -> Self {
        let ps = |us: f64| (us * PS_PER_US as f64).round() as u64;
        Self {
            step_ps: ps(model.step_us),
            prefill_token_ps: ps(model.prefill_token_us),
            decode_seq_ps: ps(model.decode_seq_us),
            cached_token_ps: ps(model.cached_token_us),
        }
    }
}

impl StepCost {
    /// Picoseconds of one step.
    pub fn of(&self, step: Composition) -> u64 {
        if step.is_empty() {
            return 0;
        }
        self.step_ps
            + self.prefill_token_ps * u64::from(step.prefill_tokens)
            + self.decode_seq_ps * u64::from(step.decode_seqs)
            + self.cached_token_ps * step.cached_tokens
    }

    /// Picoseconds of each of `steps` such steps as [`Self::of_decodes`] adds up.
    pub fn decodes(self, first: Composition, steps: u32) -> impl ExactSizeIterator<Item = u64> {
        let (start, growth) = (
            self.of(first),
            self.cached_token_ps * u64::from(first.decode_seqs),
        );
        (0..steps).map(move |i| start + growth * u64::from(i))
    }

    /// Picoseconds of `steps` steps of decoding, the first of which is `first`: each finds one more token
    /// of each sequence in the cache.
    pub fn of_decodes(&self, first: Composition, steps: u32) -> u64 {
        let steps = u64::from(steps);
        let growth = self.cached_token_ps * u64::from(first.decode_seqs);
        self.of(first) * steps + growth * (steps * steps.saturating_sub(1) / 2)
    }

    /// How many of `steps` such steps begin within less than `within_ps`.
    pub fn decodes_begun(&self, first: Composition, steps: u32, within_ps: u64) -> u32 {
        let (mut begun, mut not) = (0, steps + 1);
        while not - begun > 1 {
            let middle = begun + (not - begun) / 2;
            if self.of_decodes(first, middle - 1) < within_ps {
                begun = middle;
            } else {
                not = middle;
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn steps_at_once_cost_what_they_cost_one_by_one(
            seqs in 1..5u32, cached in 0..50u64, steps in 0..20u32, within in 0..400u64,
        ) {
            let cost = StepCost { step_ps: 7, prefill_token_ps: 5, decode_seq_ps: 3, cached_token_ps: 2 };
            let first = Composition { prefill_tokens: 0, decode_seqs: seqs, cached_tokens: cached };
            let (mut sum, mut begun, mut step) = (0, 0, first);
            for _ in 0..steps {
                begun += u32::from(sum < within);
                sum += cost.of(step);
                step.cached_tokens += u64::from(seqs);
            }
            prop_assert_eq!(cost.of_decodes(first, steps), sum);
            prop_assert_eq!(cost.decodes(first, steps).sum::<u64>(), sum);
            prop_assert_eq!(cost.decodes_begun(first, steps, within), begun);
        }
    }

    #[test]
    fn a_step_is_priced_as_the_fake_prices_it() {
        let cost = StepCost::from(CostModel::default());
        let step = Composition {
            prefill_tokens: 256,
            decode_seqs: 2,
            cached_tokens: 1000,
        };
        assert_eq!(
            cost.of(step),
            (2000 + 256 * 1500 + 2 * 3500 + 1000 * 2) * PS_PER_US
        );
        assert_eq!(cost.of(Composition::default()), 0);
    }
}
