//! What a step costs, learnt from the steps themselves: a fixed part, a part for each sequence that decodes and one
//! for each prompt token.
//!
//! Least squares of the relative error over about the last 100 steps, with no cost below zero (coordinate descent
//! on the normal equations, from where the last step left it). What contexts of other lengths cost is not in it: it
//! follows as they grow.

/// What a step computes, as far as its cost goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Sequences that decode.
    pub decodes: u32,
    pub prompt_tokens: u32,
}

impl Load {
    /// Whether there is nothing to compute.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl std::ops::Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            decodes: self.decodes + other.decodes,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
        }
    }
}

/// How much of what was learnt is left after another step.
const KEPT: f64 = 0.99;
/// Passes over the coordinates for each step. It goes on from the last solution, which has moved little.
const PASSES: usize = 4;

/// See the module's text. Taking a step in is O(1), and so is asking.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCost {
    /// The sums of the normal equations: products of the inputs with each other and with the target.
    inputs: [[f64; 3]; 3],
    target: [f64; 3],
    /// In µs: of a step, of a sequence that decodes, of a prompt token.
    us: [f64; 3],
}

impl StepCost {
    /// Takes in that a step with this load took so long.
    pub fn observe(&mut self, load: Load, step_us: f64) {
        if load.is_empty() || !(step_us.is_finite() && step_us > 0.0) {
            return;
        }
        // Divided by the length, so that the target is 1 and what is squared is the relative error.
        let x = parts(load).map(|part| part / step_us);
        for i in 0..3 {
            for j in 0..3 {
                self.inputs[i][j] = KEPT * self.inputs[i][j] + x[i] * x[j];
            }
            self.target[i] = KEPT * self.target[i] + x[i];
        }
        // The step itself last: what was not seen apart is put on what is in it, which is the safe side for whoever asks
        // what more of that would cost.
        for i in [1, 2, 0].into_iter().cycle().take(3 * PASSES) {
            let own = self.inputs[i][i];
            // A kind of work that was never seen keeps a cost of zero.
            if own > 0.0 {
                let others = (0..3).filter(|j| *j != i);
                let rest: f64 = others.map(|j| self.inputs[i][j] * self.us[j]).sum();
                self.us[i] = ((self.target[i] - rest) / own).max(0.0);
            }
        }
    }

    /// What a step with this load takes, in µs; 0 without a load, and before the first step.
    #[must_use]
    pub fn step_us(&self, load: Load) -> f64 {
        if load.is_empty() {
            return 0.0;
        }
        parts(load).iter().zip(self.us).map(|(n, us)| n * us).sum()
    }

    /// What a step takes whatever it computes, in µs.
    #[must_use]
    pub fn fixed_us(&self) -> f64 {
        self.us[0]
    }

    /// What one more sequence that decodes adds to a step, in µs.
    #[must_use]
    pub fn decode_us(&self) -> f64 {
        self.us[1]
    }

    /// What one more prompt token adds to a step, in µs. Until one was seen, what a decoded token costs: prompts are
    /// computed side by side and cost no more.
    #[must_use]
    pub fn prompt_token_us(&self) -> f64 {
        if self.inputs[2][2] > 0.0 {
            self.us[2]
        } else {
            self.step_us(Load {
                decodes: 1,
                prompt_tokens: 0,
            })
        }
    }

    /// The share of `part` in a step that has `rest` as well; 1 where nothing is known. The step itself is the
    /// part's, if there is one.
    #[must_use]
    pub fn share(&self, part: Load, rest: Load) -> f64 {
        let (alone, all) = (self.step_us(part), self.step_us(part + rest));
        match (part.is_empty(), all > 0.0) {
            (true, _) => 0.0,
            (false, true) => alone / all,
            (false, false) => 1.0,
        }
    }
}

fn parts(load: Load) -> [f64; 3] {
    [1.0, load.decodes.into(), load.prompt_tokens.into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(decodes: u32, prompt_tokens: u32) -> Load {
        Load {
            decodes,
            prompt_tokens,
        }
    }

    proptest! {
        /// From steps of any mixture it finds the costs that made them, follows when they change, and never says a
        /// negative one.
        #[test]
        fn finds_the_costs_that_made_the_steps(
            costs in prop::array::uniform3(0u32..9000),
            later in prop::array::uniform3(1u32..9000),
            loads in prop::collection::vec((0u32..9, 0u32..3), 40..60),
        ) {
            let made = |us: [u32; 3], l: Load| {
                f64::from(us[0] + us[1] * l.decodes + us[2] * l.prompt_tokens)
            };
            let mut cost = StepCost::default();
            for us in [costs, later] {
                for (decodes, chunk) in loads.iter().cycle().take(3000) {
                    let load = load(*decodes, 32 * chunk);
                    cost.observe(load, made(us, load));
                    prop_assert!(cost.us.iter().all(|us| *us >= 0.0));
                }
            }
            // Of the kind that was seen last: what was never seen apart can't be told apart.
            for (decodes, chunk) in &loads[..8] {
                let load = load(*decodes, 32 * chunk);
                if !load.is_empty() {
                    let (is, said) = (made(later, load), cost.step_us(load));
                    prop_assert!((said / is - 1.0).abs() < 0.02, "{load:?}: {said}, is {is}");
                }
            }
        }
    }

    #[test]
    fn knows_nothing_before_the_first_step_and_costs_nothing_without_work() {
        let mut cost = StepCost::default();
        assert_eq!(cost.step_us(load(1, 0)), 0.0);
        assert_eq!(cost.share(load(1, 0), load(1, 0)), 1.0);
        cost.observe(load(0, 0), 5.0);
        cost.observe(load(1, 0), 0.0);
        assert_eq!(cost.step_us(load(1, 0)), 0.0);
        cost.observe(load(1, 0), 4000.0);
        assert!((cost.step_us(load(1, 0)) - 4000.0).abs() < 1.0);
        assert!((cost.prompt_token_us() - 4000.0).abs() < 1.0);
        assert_eq!(cost.step_us(load(0, 0)), 0.0);
        assert_eq!(cost.share(load(0, 0), load(1, 0)), 0.0);
    }

    #[test]
    fn the_step_itself_is_the_first_parts() {
        let mut cost = StepCost::default();
        for i in 0..2000 {
            let l = load(1 + i % 4, 8 * (i % 3));
            cost.observe(
                l,
                f64::from(2000 + 3000 * l.decodes + 500 * l.prompt_tokens),
            );
        }
        // 5000 of 11,000.
        assert!((cost.share(load(1, 0), load(2, 0)) - 5.0 / 11.0).abs() < 1e-3);
        assert!((cost.decode_us() - 3000.0).abs() < 10.0);
        assert!((cost.prompt_token_us() - 500.0).abs() < 5.0);
    }
}
