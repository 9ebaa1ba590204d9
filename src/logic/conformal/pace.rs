//! The engine's pace as it is measured and published: averages over its steps, which relax while it is idle.

use std::time::Duration;

use super::snapshot::Pace;
use crate::logic::ewma::Ewma;

/// In how long an idle engine's averages come half way back to those of an engine that has been idle for
/// long: what a burst has left behind says little of the request that comes a few seconds after it.
const IDLE_HALF_LIFE: Duration = Duration::from_secs(1);

/// Averages over about the last 20 steps: a second or two on a CPU.
#[derive(Clone, Copy, Debug)]
pub struct PaceMeter {
    step_ms: Ewma,
    tokens_per_s: Ewma,
}

impl Default for PaceMeter {
    fn default() -> Self {
        Self {
            step_ms: Ewma::new(0.05),
            tokens_per_s: Ewma::new(0.05),
        }
    }
}

impl PaceMeter {
    /// Takes a step's length and the tokens that it generated in.
    pub fn observe(&mut self, seconds: f64, generated: u32) {
        self.step_ms.observe(seconds * 1e3);
        if generated > 0 && seconds > 0.0 {
            self.tokens_per_s.observe(f64::from(generated) / seconds);
        }
    }

    /// Average length of a step; `None` before the first.
    #[must_use]
    pub fn step_ms(&self) -> Option<f64> {
        self.step_ms.get()
    }

    /// Average output rate of all sequences together; `None` before the first token.
    #[must_use]
    pub fn tokens_per_s(&self) -> Option<f64> {
        self.tokens_per_s.get()
    }
}

/// The pace at the moment of a decision, out of what was last published: averages, if there are any, and for how
/// long there has been nothing to do. `idle` is the pace of an engine that has been idle for long.
#[must_use]
pub fn pace_now(
    step_ms: Option<f64>,
    tokens_per_s: Option<f64>,
    idle_for: Option<Duration>,
    idle: Pace,
) -> Pace {
    let pace = Pace {
        step_ms: step_ms.unwrap_or(idle.step_ms),
        tokens_per_s: tokens_per_s.unwrap_or(idle.tokens_per_s),
    };
    match idle_for {
        None => pace,
        Some(idle_for) => pace.relaxed(idle, idle_for, IDLE_HALF_LIFE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_relax_to_idle_only_while_nothing_runs() {
        let idle = Pace {
            step_ms: 4.0,
            tokens_per_s: 100.0,
        };
        let mut meter = PaceMeter::default();
        assert_eq!(
            pace_now(meter.step_ms(), meter.tokens_per_s(), None, idle),
            idle
        );
        meter.observe(0.012, 0);
        assert_eq!((meter.step_ms(), meter.tokens_per_s()), (Some(12.0), None));
        meter.observe(0.012, 6);
        let now = |idle_for| pace_now(meter.step_ms(), meter.tokens_per_s(), idle_for, idle);
        assert_eq!(now(None).tokens_per_s, 500.0);
        assert_eq!(now(Some(IDLE_HALF_LIFE)).step_ms, 8.0);
        assert_eq!(now(Some(IDLE_HALF_LIFE)).tokens_per_s, 300.0);
    }
}
