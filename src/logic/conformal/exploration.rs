//! Who runs although its bound does not fit or there is none, for what there is to learn of it: a controller that refuses
//! everything would never see that it could stop.

use super::controller::{Controller, NoBound};
use super::features::is_of_request;
use super::policy::Decision;
use super::snapshot::Snapshot;

/// Refusals in a row, in multiples of what lies between two of the exploration quota, that may be a lock-out.
const BARREN: u64 = 4;

/// What the quota makes of a request that would be refused.
struct Turn {
    /// The idle engine is to be looked at again.
    replenishes: bool,
    /// It runs as one of those that do so.
    warms: bool,
    explores: bool,
}

impl Controller {
    /// Counts, rather than draws: the quota is the same in every run, and never exceeded over any stretch.
    ///
    /// Beside it run as many as lie between two of it, one by one on an idle engine: after a start the prefix cache is cold,
    /// so that nothing fits that would fit a warm one, and the quota alone would take long to warm it. So again whenever a
    /// controller that learns by itself has promised nothing for a while: either nothing can be, or what it has learnt is
    /// of another load, and nobody's promise is at risk.
    ///
    /// One at a time, and a turn that comes meanwhile is lost: of many refusals a second, as a storm of retries makes, one in
    /// so many is a flood of its own. And none where nothing is known at this level: what is to be learnt then is let in as
    /// [`Lessons`](super::lessons) say.
    pub(super) fn explores(&mut self, assessed: &Decision, snapshot: &Snapshot) -> bool {
        let Some(turn) = self.turn(assessed, snapshot) else {
            return false;
        };
        self.misfits += 1;
        self.barren += 1;
        if turn.replenishes {
            self.warmed = 0;
        }
        self.warmed += u32::from(turn.warms);
        turn.explores
    }

    /// Whether [`Self::explores`] would say so; changes nothing.
    pub(super) fn would_explore(&self, assessed: &Decision, snapshot: &Snapshot) -> bool {
        self.turn(assessed, snapshot).is_some_and(|t| t.explores)
    }

    /// `None` where there is no quota.
    fn turn(&self, assessed: &Decision, snapshot: &Snapshot) -> Option<Turn> {
        let every = u64::from(self.settings.explore_every);
        let nothing_known = matches!(
            assessed.bound_ms,
            Err(NoBound::Unfitted | NoBound::TooFew(_))
        );
        if every == 0 || nothing_known {
            return None;
        }
        let is_next = (self.misfits + u64::from(self.settings.explore_seed)).is_multiple_of(every);
        let replenishes = self.is_learner() && (self.barren + 1).is_multiple_of(BARREN * every);
        let is_cold = replenishes || self.warmed < self.settings.explore_every;
        let warms = is_cold && self.is_idle(snapshot);
        Some(Turn {
            replenishes,
            warms,
            explores: warms || (is_next && self.exploring == 0),
        })
    }

    /// An engine with nothing to do, in a state that was never calibrated: who runs on it holds nobody up, and what
    /// becomes of it is how the state becomes known. Refusing there would leave it unknown for ever.
    pub(super) fn is_free_to_learn(&self, assessed: &Decision, snapshot: &Snapshot) -> bool {
        self.is_unknown_to_learner(assessed.bound_ms) && self.is_idle(snapshot)
    }

    /// Whether there is no bound because the engine was never seen like this, and what completes would change that.
    pub(super) fn is_unknown_to_learner(&self, bound_ms: Result<f64, NoBound>) -> bool {
        matches!(bound_ms, Err(NoBound::OutOfSupport(feature)) if !is_of_request(feature))
            && self.adapts()
    }
}
