//! What the best-effort lane may add to a latency. A calibration is made without a lane, so a model can't know; but what
//! the lane may do to others is bounded (`scheduler/lane.rs`), so it need not.

use super::features::{Feature, Features};
use super::policy::{Fallback, Settings};
use super::predictor::Estimate;
use super::snapshot::Pace;
use crate::logic::scheduler::lane;

/// See the module's text.
pub(super) struct LaneDelay {
    /// Whoever is promised nothing goes there: that it is empty now says little.
    always: bool,
    factor: f64,
    step_ms: f64,
}

impl LaneDelay {
    /// With an idle engine's pace as given.
    pub fn of(settings: &Settings, idle: Pace) -> Self {
        Self {
            always: settings.unfit == Fallback::BestEffort,
            factor: 1.0 + settings.lane_slowdown,
            step_ms: lane::STEPS * idle.step_ms,
        }
    }

    /// The estimate with it, where there may be somebody in the lane.
    pub fn added(&self, estimate: Estimate, features: &Features) -> Estimate {
        if !self.always && features.get(Feature::BestEffortRunning) == 0.0 {
            return estimate;
        }
        let with = |ms: f64| ms * self.factor + self.step_ms;
        Estimate {
            hi: with(estimate.hi),
            lo: with(estimate.lo),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::features::COUNT;
    use super::super::testing::without_exploring;
    use super::*;

    #[test]
    fn a_bound_allows_for_the_lane_where_somebody_may_be_in_it() {
        let idle = Pace {
            step_ms: 5.0,
            tokens_per_s: 200.0,
        };
        let added = |unfit, running: f32| {
            let settings = Settings {
                unfit,
                lane_slowdown: 0.25,
                ..without_exploring()
            };
            let mut x = Features([0.0; COUNT]);
            x.0[Feature::BestEffortRunning as usize] = running;
            let estimate = Estimate {
                hi: 100.0,
                lo: 40.0,
            };
            let Estimate { hi, lo } = LaneDelay::of(&settings, idle).added(estimate, &x);
            (hi, lo)
        };
        assert_eq!(added(Fallback::Refuse, 0.0), (100.0, 40.0));
        assert_eq!(added(Fallback::Refuse, 1.0), (135.0, 60.0));
        assert_eq!(added(Fallback::BestEffort, 0.0), (135.0, 60.0));
    }
}
