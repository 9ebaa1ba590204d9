//! The state of admission control: model, calibration, support, ledger and record, and how completions change
//! them. What is decided with it is in `policy.rs`; what a refusal offers instead, in `offer.rs`.

use super::artifact::Artifact;
use super::calibration::{Alpha, TooFew};
use super::features::{Features, extract};
use super::history::History;
use super::lane_delay::LaneDelay;
use super::ledger::Ledger;
use super::lessons::Lessons;
use super::online::{Calibrator, CalibratorConfig, Point};
use super::policy::{Decision, Mode, Request, Settings, Verdict};
use super::predictor::{Estimate, Latency, Model, Row};
use super::receipt::is_late;
use super::snapshot::{AdmitContext, Pace, Snapshot};
use super::support::Support;
use super::tally::Tally;

/// Why there is no bound to promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoBound {
    #[error("no model is fitted yet")]
    Unfitted,
    #[error(transparent)]
    TooFew(#[from] TooFew),
    #[error("{0} is outside of what was calibrated")]
    OutOfSupport(&'static str),
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(super) settings: Settings,
    model: Option<Model>,
    calibrator: Calibrator,
    support: Support,
    /// The pace of an engine that has been idle for a while.
    pub(super) idle: Pace,
    pub(super) ledger: Ledger,
    /// Whether the last verdict on a bound was a refusal: then the next one must fit with room to spare.
    pub(super) shedding: bool,
    /// Requests that were about to be refused so far.
    pub(super) misfits: u64,
    /// Requests that are being explored now.
    pub(super) exploring: u32,
    /// Requests that were about to be refused since the last promise.
    pub(super) barren: u64,
    /// Requests that ran on an idle engine to warm its cache, or to see what it takes.
    pub(super) warmed: u32,
    tally: Tally,
    /// What models are fitted on, unless a calibration was given.
    history: History,
    pub(super) lessons: Lessons,
}

/// How a request got to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Course {
    AsDecided,
    /// In the best-effort lane, although it was promised something, and up to its deadline only if `stopped`: it is
    /// judged, and nothing is learnt from it.
    Demoted {
        stopped: bool,
    },
    /// Up to its deadline, as its client asked for. A promise is missed by that.
    Stopped,
    /// Not at all, since its promise looked lost when it was taken from the queue. It is.
    Revoked,
}

/// What is known of a request's latency.
pub(super) struct Prediction {
    pub features: Features,
    pub estimate: Option<Estimate>,
    pub bound_ms: Result<f64, NoBound>,
}

impl Controller {
    /// Without a calibration: everything is admitted and learnt from, until [`Self::training_rows`] gives
    /// enough to fit a model on and [`Self::adopt`] takes it, and after that until the level is supported. Better
    /// models follow as more completes.
    #[must_use]
    pub fn learning(settings: Settings, calibration: CalibratorConfig, idle: Pace) -> Self {
        Self {
            settings,
            model: None,
            calibrator: Calibrator::new(calibration, &[]).deployed_at(settings.alpha),
            support: Support::default(),
            idle,
            ledger: Ledger::default(),
            shedding: false,
            misfits: 0,
            exploring: 0,
            barren: 0,
            warmed: 0,
            tally: Tally::default(),
            history: History::new(settings.training_rows),
            lessons: Lessons::new(settings.learning_load),
        }
    }

    /// With a calibration that was made for this machine ([`Artifact::check`] says whether it was).
    #[must_use]
    pub fn calibrated(
        settings: Settings,
        calibration: CalibratorConfig,
        artifact: &Artifact,
    ) -> Self {
        Self {
            model: Some(artifact.model.clone()),
            calibrator: Calibrator::new(calibration, &artifact.points).deployed_at(settings.alpha),
            support: artifact.support.clone(),
            history: History::default(),
            ..Self::learning(settings, CalibratorConfig::default(), artifact.idle)
        }
    }

    /// The rows to fit a model on, whenever one is due; then it is the caller's turn, who fits where it disturbs
    /// nobody and brings it to [`Self::adopt`].
    pub fn training_rows(&mut self) -> Option<Vec<Row>> {
        self.history.due(self.model.is_none())
    }

    /// Takes a model. The first is calibrated on what completes from now on, a later one on what completed last: never
    /// on what it was fitted on. One that came too late to be told apart from another is not taken.
    pub fn adopt(&mut self, model: Model) {
        if self.model.is_some() {
            let Some(rows) = self.history.fresh() else {
                return;
            };
            let lane = LaneDelay::of(&self.settings, self.idle);
            self.calibrator.recalibrate(rows.map(|row| {
                let estimate = lane.added(model.estimate(&row.features), &row.features);
                Point::new(&row.features, estimate, row.latency)
            }));
        }
        self.model = Some(model);
    }

    /// From now on nothing is refused or promised.
    pub fn observe_only(&mut self) {
        self.settings.mode = Mode::Observe;
    }

    /// The pace of the idle engine, for one that was not calibrated and has just measured it.
    pub fn set_idle(&mut self, idle: Pace) {
        self.idle = idle;
    }

    /// The pace of the idle engine.
    #[must_use]
    pub fn idle(&self) -> Pace {
        self.idle
    }

    /// How it decides.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Enters an admitted request into the ledger, right after it was handed to the queue.
    pub fn admitted(&mut self, request: &Request, decision: &Decision) {
        let best_effort = decision.verdict == Verdict::BestEffort;
        self.ledger.admit(request.context, best_effort);
        self.exploring += u32::from(decision.verdict == Verdict::Explored);
    }

    /// Takes in how an admitted request ended.
    pub fn ended(&mut self, decision: &Decision, latency: Latency, course: Course) {
        let Decision {
            verdict, features, ..
        } = decision;
        match (verdict, course) {
            (Verdict::Promised, Course::Demoted { stopped }) => {
                self.tally.demoted += 1;
                return match stopped {
                    true => self.missed(decision),
                    false => self.judge(decision, latency),
                };
            }
            (Verdict::Promised, Course::Stopped | Course::Revoked) => {
                self.tally.revoked += u64::from(course == Course::Revoked);
                self.learn(decision, latency);
                return self.missed(decision);
            }
            _ => {}
        }
        match verdict {
            Verdict::BestEffort => self.tally.best_effort += 1,
            Verdict::Infeasible | Verdict::Overloaded | Verdict::Unsupported => {}
            Verdict::Promised | Verdict::Observed => {
                self.learn(decision, latency);
                self.judge(decision, latency);
            }
            Verdict::Explored => {
                self.tally.explored += 1;
                self.exploring = self.exploring.saturating_sub(1);
                self.learn(decision, latency);
                self.calibrator.relax(features);
            }
        }
    }

    /// The record so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether promises are made at the deployed level in at least one class.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.model.is_some() && self.calibrator.is_armed(self.settings.alpha)
    }

    /// Whether it makes its own models.
    pub(super) fn is_learner(&self) -> bool {
        self.history.learns()
    }

    /// Whether a request that finds so many others is let in for what there is to learn of it.
    pub(super) fn teaches(&self, load: u32) -> bool {
        !self.is_learner() || self.lessons.lets_in(load, self.history.len())
    }

    /// Whether it follows what happens.
    pub(super) fn adapts(&self) -> bool {
        self.calibrator.adapts()
    }

    /// The bound on a request's latency with the engine as given (what is in the ledger included).
    pub(super) fn predict(
        &self,
        request: &AdmitContext,
        engine: &Snapshot,
        alpha: Alpha,
    ) -> Prediction {
        let features = extract(request, engine);
        let estimate = self.estimate(&features);
        let bound_ms = match &estimate {
            None => Err(NoBound::Unfitted),
            Some(estimate) => self.bound(&features, estimate, alpha),
        };
        Prediction {
            features,
            estimate,
            bound_ms,
        }
    }

    fn estimate(&self, features: &Features) -> Option<Estimate> {
        let estimate = self.model.as_ref()?.estimate(features);
        Some(LaneDelay::of(&self.settings, self.idle).added(estimate, features))
    }

    /// What the bound would be on an engine with nothing to do, whether or not one was ever seen: traffic that never
    /// lets up leaves no idle state behind to be supported by, and a refusal is no promise.
    pub(super) fn idle_bound(&self, request: &AdmitContext, alpha: Alpha) -> Result<f64, NoBound> {
        let features = extract(request, &Snapshot::idle(self.idle));
        let model = self.model.as_ref().ok_or(NoBound::Unfitted)?;
        let estimate = model.estimate(&features);
        Ok(self.calibrator.bound(&features, &estimate, alpha)?)
    }

    /// As [`Self::predict`], for what was estimated before.
    pub(super) fn bound(
        &self,
        features: &Features,
        estimate: &Estimate,
        alpha: Alpha,
    ) -> Result<f64, NoBound> {
        // The level first: until it is supported, the support is only being found out.
        let bound = self.calibrator.bound(features, estimate, alpha)?;
        match self.support.outside(features, self.settings.support_margin) {
            None => Ok(bound),
            Some(feature) => Err(NoBound::OutOfSupport(feature)),
        }
    }

    fn learn(&mut self, decision: &Decision, latency: Latency) {
        let features = decision.features;
        self.history.push(Row { features, latency });
        // By the model in force: the decision's may have been another.
        let Some(estimate) = self.estimate(&features) else {
            return;
        };
        // What was decided on before there was a model may have been what it was fitted on.
        if decision.estimate.is_none() {
            return;
        }
        self.calibrator.observe(&features, estimate, latency);
        if self.calibrator.adapts() && !latency.is_censored() {
            self.support.observe(&features);
        }
    }

    /// A promise whose reply was ended: unlike where a client leaves, it is not open whether it was kept.
    fn missed(&mut self, decision: &Decision) {
        self.tally.promised.missed += 1;
        self.calibrator
            .judge(&decision.features, decision.alpha, false);
    }

    fn judge(&mut self, decision: &Decision, latency: Latency) {
        let Ok(bound_ms) = decision.bound_ms else {
            self.tally.unbounded += 1;
            return;
        };
        let late = is_late(latency.ms(), bound_ms);
        let promises = match decision.verdict {
            Verdict::Observed => &mut self.tally.observed,
            _ => &mut self.tally.promised,
        };
        let count = match (latency.is_censored(), late) {
            (false, false) => &mut promises.kept,
            (false, true) => &mut promises.missed,
            (true, false) => &mut promises.censored,
            (true, true) => &mut promises.censored_late,
        };
        *count += 1;
        // Who left in time leaves it open whether the promise would have been kept.
        if late || !latency.is_censored() {
            self.calibrator
                .judge(&decision.features, decision.alpha, !late);
        }
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
