//! The decision: promise, admit without a promise, or refuse, and if so in which way.
//!
//! A request whose bound fits its budget is promised. For one that doesn't, in this order: explore (a small quota runs
//! whatever the bound says, or a controller that refuses everything would never see that it could stop; so does what
//! finds an idle engine of which nothing is known), 422 (the bound would not fit on an idle engine either: no retry
//! helps), 503 (it does not fit now).
//! Where configured, the best-effort lane takes the place of a refusal.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calibration::Alpha;
use super::controller::{Controller, NoBound, Prediction};
use super::features::{Features, is_of_request};
use super::predictor::Estimate;
use super::snapshot::{AdmitContext, LaneLoad, Snapshot};
use crate::ids::RequestId;
use crate::logic::request::{Outcome, RequestSpec};
use crate::logic::time::Timestamp;

/// Whether verdicts count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Bounds are computed and scored, and nothing is refused.
    Observe,
    Enforce,
}

/// What becomes of a request that gets no promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    Refuse,
    BestEffort,
}

/// How to decide.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// The level of promises, unless the request names its own.
    pub alpha: Alpha,
    pub mode: Mode,
    /// After a refusal a bound must fit into this share of the budget, until one does: refusing empties the
    /// engine and makes the next bound fit, so one threshold for both would flicker.
    pub resume: f64,
    /// One in so many requests that would be refused runs instead, and so many that find an engine idle; 0 for none.
    pub explore_every: u32,
    /// Which one of them.
    pub explore_seed: u32,
    /// For a bound that exceeds the budget, and for a state in which nothing was calibrated.
    pub unfit: Fallback,
    /// By which share of their length the best-effort lane may make steps longer.
    pub lane_slowdown: f64,
    /// How far beyond the calibrated range of a feature still counts as within, in widths of the range.
    pub support_margin: f32,
    /// The longest `Retry-After`, in seconds.
    pub retry_cap_s: u32,
    /// Completions to fit the first model on, where no calibration was given; 0 to learn nothing.
    pub training_rows: usize,
    /// Until something is known, more requests at once are a flood.
    pub learning_load: u32,
}

impl Settings {
    /// The deployed settings at this level.
    #[must_use]
    pub fn at(alpha: Alpha) -> Self {
        Self {
            alpha,
            mode: Mode::Enforce,
            resume: 0.9,
            explore_every: 25,
            explore_seed: 0,
            unfit: Fallback::Refuse,
            lane_slowdown: 0.05,
            support_margin: 0.1,
            retry_cap_s: 60,
            training_rows: 500,
            learning_load: 32,
        }
    }
}

/// A request at the gate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request {
    pub id: RequestId,
    pub context: AdmitContext,
    /// What is left of its time to the last token, in ms; infinite without an SLO.
    pub budget_ms: f64,
    /// The level it asks for, if not the deployed one.
    pub alpha: Option<Alpha>,
    /// It asks for no promise.
    pub best_effort: bool,
}

impl Request {
    /// The request `spec` at `now`, of whose prompt so many tokens are cached. `slo` counts from its arrival.
    #[must_use]
    pub fn at(
        now: Timestamp,
        spec: &RequestSpec,
        (messages, cached_prefix_tokens): (u32, u32),
        slo: Option<Duration>,
        alpha: Option<Alpha>,
    ) -> Self {
        let waited = now.since(spec.arrival);
        let left = |slo: Duration| slo.as_secs_f64() - waited.as_secs_f64();
        Self {
            id: spec.id,
            context: AdmitContext {
                prompt_tokens: spec.prompt_tokens,
                cached_prefix_tokens,
                max_tokens: spec.max_tokens,
                messages,
            },
            budget_ms: slo.map_or(f64::INFINITY, |slo| left(slo) * 1e3),
            alpha,
            best_effort: false,
        }
    }
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Admitted; it will end within its bound, with the confidence of its level.
    Promised,
    /// Admitted without looking at the bound: nothing is calibrated yet, or nothing is to be refused.
    Observed,
    /// Admitted although the bound does not fit.
    Explored,
    /// Admitted into the lane that yields.
    BestEffort,
    /// 422 `slo_infeasible`.
    Infeasible,
    /// 503: the bound does not fit now.
    Overloaded,
    /// Nothing is known of a state like this (503), or of a request like this (422), and there is nothing to learn from it
    /// now.
    Unsupported,
}

impl Verdict {
    /// Whether the request runs.
    #[must_use]
    pub fn admits(self) -> bool {
        self.refusal().is_none()
    }

    /// How a request that does not run ends.
    #[must_use]
    pub fn refusal(self) -> Option<Outcome> {
        match self {
            Self::Infeasible => Some(Outcome::Invalid),
            Self::Overloaded | Self::Unsupported => Some(Outcome::Refused),
            Self::Promised | Self::Observed | Self::Explored | Self::BestEffort => None,
        }
    }
}

/// A verdict and what it rests on. It travels with an admitted request, and comes back with its outcome.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decision {
    pub verdict: Verdict,
    /// The verdict before exploration and the best-effort lane: why a request that was not promised anything runs.
    pub assessed: Verdict,
    /// U(x): the bound on the end-to-end latency, from now.
    pub bound_ms: Result<f64, NoBound>,
    pub alpha: Alpha,
    pub features: Features,
    pub estimate: Option<Estimate>,
}

impl Decision {
    /// Whether the same request may fit later. It does not where what is in the way is the request itself.
    #[must_use]
    pub fn waiting_helps(&self) -> bool {
        match (self.verdict, self.bound_ms) {
            (Verdict::Infeasible, _) => false,
            (Verdict::Unsupported, Err(NoBound::OutOfSupport(feature))) => !is_of_request(feature),
            _ => true,
        }
    }
}

impl Controller {
    /// Decides on a request. If it is admitted and was handed to the queue, [`Self::admitted`] comes next.
    pub fn decide(&mut self, request: &Request, snapshot: &Snapshot) -> Decision {
        self.settle(snapshot);
        let assessed = self.assess(request, snapshot);
        self.lessons.note(assessed.features.load());
        match assessed.verdict {
            Verdict::Promised => (self.shedding, self.barren) = (false, 0),
            Verdict::Overloaded => self.shedding = true,
            _ => {}
        }
        let verdict = if assessed.verdict.admits() {
            assessed.verdict
        } else if self.explores(&assessed, snapshot) || self.is_free_to_learn(&assessed, snapshot) {
            Verdict::Explored
        } else {
            self.fallback(assessed.verdict)
        };
        Decision {
            verdict,
            ..assessed
        }
    }

    /// Takes note of how much of what was admitted the engine has seen.
    pub fn settle(&mut self, snapshot: &Snapshot) {
        self.ledger.settle(snapshot.admissions_seen);
        // Hysteresis is for a load that comes and goes. On an idle engine there is none to wait for, and what
        // fits only just would be refused for ever.
        if self.is_idle(snapshot) {
            self.shedding = false;
        }
    }

    /// What the decision would be; changes nothing. [`Self::settle`] comes first.
    #[must_use]
    pub fn quote(&self, request: &Request, snapshot: &Snapshot) -> Decision {
        let assessed = self.assess(request, snapshot);
        let verdict = match assessed.verdict {
            verdict if verdict.admits() => verdict,
            _ if self.would_explore(&assessed, snapshot)
                || self.is_free_to_learn(&assessed, snapshot) =>
            {
                Verdict::Explored
            }
            verdict => self.fallback(verdict),
        };
        Decision {
            verdict,
            ..assessed
        }
    }

    /// Whether a bound fits a budget now.
    pub(super) fn fits(&self, bound_ms: Result<f64, NoBound>, budget_ms: f64) -> bool {
        bound_ms.is_ok_and(|u| u <= self.threshold() * budget_ms)
    }

    /// The share of its budget that a bound must fit into now.
    pub(super) fn threshold(&self) -> f64 {
        if self.shedding {
            self.settings.resume
        } else {
            1.0
        }
    }

    /// The verdict before exploration and fallbacks.
    fn assess(&self, request: &Request, snapshot: &Snapshot) -> Decision {
        let alpha = request.alpha.unwrap_or(self.settings.alpha);
        let engine = self.ledger.with_unseen(snapshot);
        let Prediction {
            features,
            estimate,
            bound_ms,
        } = self.predict(&request.context, &engine, alpha);
        let verdict = if request.best_effort {
            Verdict::BestEffort
        } else if self.settings.mode == Mode::Observe || request.budget_ms == f64::INFINITY {
            Verdict::Observed
        } else if self.fits(bound_ms, request.budget_ms) {
            Verdict::Promised
        } else if bound_ms.is_ok() {
            let idle = self.idle_bound(&request.context, alpha);
            if idle.is_ok_and(|u| u > request.budget_ms) {
                Verdict::Infeasible
            } else {
                Verdict::Overloaded
            }
        } else if self.is_armed() || !self.teaches(features.load()) {
            Verdict::Unsupported
        } else {
            Verdict::Observed
        };
        Decision {
            verdict,
            assessed: verdict,
            bound_ms,
            alpha,
            features,
            estimate,
        }
    }

    /// Whether a promised request that is about to run beside `running` still fits `budget_ms`, which is what is
    /// left of its SLO. One without a bound now is not judged by it.
    #[must_use]
    pub fn still_fits(&self, request: &Request, snapshot: &Snapshot, running: LaneLoad) -> bool {
        let alpha = request.alpha.unwrap_or(self.settings.alpha);
        let engine = Snapshot {
            promised: running,
            ..*snapshot
        };
        let now = self.predict(&request.context, &engine, alpha);
        now.bound_ms.is_ok_and(|u| u <= request.budget_ms) || now.bound_ms.is_err()
    }

    /// Whether nothing that was promised waits or runs.
    pub(super) fn is_idle(&self, snapshot: &Snapshot) -> bool {
        self.ledger.with_unseen(snapshot).promised == LaneLoad::default()
    }

    fn fallback(&self, verdict: Verdict) -> Verdict {
        match self.settings.unfit {
            Fallback::BestEffort if !verdict.admits() => Verdict::BestEffort,
            _ => verdict,
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
