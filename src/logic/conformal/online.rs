//! Calibration that keeps up: rolling windows of scores, and adaptive conformal inference over them.
//!
//! A static bound is valid as long as the world is that of the calibration set, which a controller that
//! refuses changes by itself. Two mechanisms answer, both counted in completions:
//! - the window forgets: the scores of the last `window` completions are the calibration set, once those of a larger
//!   calibration file have gone, one more with each completion;
//! - the working level follows the promises' own record (Gibbs and Candès): each broken promise makes the
//!   bound more careful, each kept one a little less, by steps of 1 / `horizon`, so that `horizon` kept in a
//!   row double the working α, and a run of broken ones takes it to the window's largest score at once.
//!
//! Damping: the working level is clamped, so that neither a calm nor a storm winds it up, and the bound stays
//! finite whatever happened: a bound at infinity would refuse everything, and nothing would ever correct it. One more
//! broken promise is remembered than makes the bound as careful as it can be, or those that come in pairs would be
//! forgiven.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::calibration::{Alpha, Score, Scored, Scores, TooFew};
use super::classes::{Classes, Edges};
use super::features::{Feature, Features};
use super::predictor::{Estimate, Latency, Model, Row};
use crate::logic::rng::SplitMix64;

/// The working α is at most so many times the nominal one.
const FACTOR_MAX: f64 = 3.0;

/// A model that no promise has tested yet starts at this share of α at most.
const UNTESTED: f64 = 0.5;

/// The promises' record is steered to this share of α: what is promised is that at most α is broken, and a controller
/// that aims at α itself is above it half of the time.
const AIM: f64 = 0.9;

/// How the bound follows what happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adaptation {
    /// Not at all.
    Static,
    /// By the scores of the last `window` completions of a group; the calibration file's go with as many again.
    Rolling { window: usize },
    /// By these, and by the promises' record, in steps of 1 / `horizon`.
    Adaptive { window: usize, horizon: u32 },
}

/// How to calibrate.
#[derive(Clone, PartialEq, Debug)]
pub struct CalibratorConfig {
    pub score: Score,
    /// The bound is multiplied by it; 1.0 unless a measurement says otherwise.
    pub safety: f64,
    pub edges: Edges,
    /// The fewest scores of a group: smaller classes are pooled, and a group that is still smaller promises
    /// nothing.
    pub minimum: usize,
    pub adaptation: Adaptation,
}

impl Default for CalibratorConfig {
    fn default() -> Self {
        Self {
            score: Score::LogRatio,
            safety: 1.0,
            edges: Edges::default(),
            minimum: 100,
            adaptation: Adaptation::Adaptive {
                window: 256,
                horizon: 100,
            },
        }
    }
}

/// A calibration request: what its class, its score under any [`Score`] and its censoring follow from.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    pub max_tokens: u32,
    pub load: u32,
    pub estimate: Estimate,
    pub latency: Latency,
}

impl Point {
    #[must_use]
    pub fn new(x: &Features, estimate: Estimate, latency: Latency) -> Self {
        Self {
            max_tokens: x.get(Feature::MaxTokens) as u32,
            load: x.load(),
            estimate,
            latency,
        }
    }

    /// Of a row that the model was not fitted on.
    #[must_use]
    pub fn of(model: &Model, row: &Row) -> Self {
        Self::new(&row.features, model.estimate(&row.features), row.latency)
    }
}

/// A group's scores, oldest first, and its working level.
#[derive(Clone, Debug)]
struct Group {
    recent: VecDeque<Scored>,
    scores: Scores,
    /// Working α over nominal α, at most [`FACTOR_MAX`]; at 0 and below the bound is the largest score's. One of the
    /// deployed level and stricter ones, and one of looser ones: what those keep too easily would loosen the others.
    factors: [f64; 2],
    /// A promise was judged since the last completion without one.
    judged: bool,
    /// The score at the deployed level, as of the last change.
    deployed: Result<f64, TooFew>,
}

/// Turns estimates into bounds. A bound is O(1) at the deployed level and O(log window) at others, an observation
/// O(window).
#[derive(Clone, Debug)]
pub struct Calibrator {
    config: CalibratorConfig,
    /// The level at which most bounds are asked for.
    deployed: Option<Alpha>,
    classes: Classes,
    groups: Vec<Group>,
}

impl Calibrator {
    /// Calibrates on `points`, or on nothing yet.
    #[must_use]
    pub fn new(config: CalibratorConfig, points: &[Point]) -> Self {
        let members = points.iter().map(|p| (p.max_tokens, p.load));
        let classes = Classes::pooled(config.edges.clone(), members, config.minimum);
        let mut recent = vec![Vec::new(); classes.groups()];
        for p in points {
            recent[classes.group(p.max_tokens, p.load)].push(scored(config.score, p));
        }
        let groups = recent
            .into_iter()
            .map(|mut recent| {
                if config.adaptation.window().is_some() {
                    // In random order, or what a window drops first would be the scores of one regime.
                    SplitMix64::new(0).shuffle(&mut recent);
                }
                Group {
                    scores: recent.iter().copied().collect(),
                    recent: recent.into(),
                    factors: [1.0; 2],
                    judged: false,
                    deployed: Err(TooFew { needed: 0 }),
                }
            })
            .collect();
        Self {
            config,
            deployed: None,
            classes,
            groups,
        }
    }

    /// With its scores at this level kept at hand, rather than looked up for each bound.
    #[must_use]
    pub fn deployed_at(mut self, alpha: Alpha) -> Self {
        self.deployed = Some(alpha);
        (0..self.groups.len()).for_each(|group| self.changed(group));
        self
    }

    /// The upper bound in ms on the latency of a request with these features and this estimate.
    ///
    /// # Errors
    /// When the request's group has too few scores for the level.
    pub fn bound(&self, x: &Features, estimate: &Estimate, alpha: Alpha) -> Result<f64, TooFew> {
        let group = &self.groups[self.group(x)];
        let q = match self.deployed {
            Some(deployed) if deployed == alpha => group.deployed?,
            _ => self.working(group, alpha)?,
        };
        Ok(self.config.safety * self.config.score.bound(q, estimate))
    }

    /// The score at the nominal level of each group, in the order of [`Self::classes`].
    #[must_use]
    pub fn quantiles(&self, alpha: Alpha) -> Vec<Result<f64, TooFew>> {
        let groups = self.groups.iter();
        groups.map(|g| self.quantile(g, alpha)).collect()
    }

    /// How requests are grouped.
    #[must_use]
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Whether any group supports the level.
    #[must_use]
    pub fn is_armed(&self, alpha: Alpha) -> bool {
        self.groups.iter().any(|g| self.quantile(g, alpha).is_ok())
    }

    /// Whether it follows what happens.
    #[must_use]
    pub fn adapts(&self) -> bool {
        self.config.adaptation.window().is_some()
    }

    /// Takes the outcome of a request that ran in the promised lane into its group's window.
    pub fn observe(&mut self, x: &Features, estimate: Estimate, latency: Latency) {
        let Some(window) = self.config.adaptation.window() else {
            return;
        };
        let new = scored(self.config.score, &Point::new(x, estimate, latency));
        let at = self.group(x);
        let group = &mut self.groups[at];
        let full = group.recent.len() >= window.max(1);
        let old = if full { group.recent.pop_front() } else { None };
        group.scores.replace(old.as_ref(), new);
        // A calibration set larger than the window gives way by one more each time, and not at once: its high
        // quantiles are known better than those of a sample of it.
        if group.recent.len() >= window.max(1)
            && let Some(old) = group.recent.pop_front()
        {
            group.scores.remove(&old);
        }
        group.recent.push_back(new);
        self.changed(at);
    }

    /// Begins again with the scores of `points`, oldest first, of another model; what promises taught stays only where
    /// it made them more careful.
    pub fn recalibrate(&mut self, points: impl Iterator<Item = Point>) {
        let window = self.config.adaptation.window().unwrap_or(usize::MAX);
        for group in &mut self.groups {
            group.recent.clear();
            group.factors = group.factors.map(|f| f.min(UNTESTED));
        }
        for p in points {
            let at = self.classes.group(p.max_tokens, p.load);
            let recent = &mut self.groups[at].recent;
            if recent.len() >= window.max(1) {
                recent.pop_front();
            }
            recent.push_back(scored(self.config.score, &p));
        }
        for group in &mut self.groups {
            group.scores = group.recent.iter().copied().collect();
        }
        (0..self.groups.len()).for_each(|group| self.changed(group));
    }

    /// Takes note that a promise at this level was kept or broken.
    pub fn judge(&mut self, x: &Features, alpha: Alpha, kept: bool) {
        if let Adaptation::Adaptive { horizon, .. } = self.config.adaptation {
            let step = 1.0 / f64::from(horizon.max(1));
            let broken = step / (AIM * alpha.get());
            let at = self.group(x);
            let looser = self.is_looser(alpha);
            let group = &mut self.groups[at];
            let factor = &mut group.factors[usize::from(looser)];
            *factor += step - if kept { 0.0 } else { broken };
            *factor = factor.clamp(-broken, FACTOR_MAX);
            group.judged = true;
            self.changed(at);
        }
    }

    /// Takes note of a completion that carried no promise. Where it follows no promise, a level that storms made careful
    /// returns to the nominal one: a bound under which nothing is admitted can't redeem itself.
    pub fn relax(&mut self, x: &Features) {
        if let Adaptation::Adaptive { horizon, .. } = self.config.adaptation {
            let at = self.group(x);
            let group = &mut self.groups[at];
            if !std::mem::take(&mut group.judged) {
                let step = 1.0 / f64::from(horizon.max(1));
                group.factors = group.factors.map(|f| f.max((f + step).min(1.0)));
                self.changed(at);
            }
        }
    }

    fn is_looser(&self, alpha: Alpha) -> bool {
        self.deployed.is_some_and(|deployed| alpha > deployed)
    }

    fn changed(&mut self, group: usize) {
        if let Some(alpha) = self.deployed {
            self.groups[group].deployed = self.working(&self.groups[group], alpha);
        }
    }

    /// The group's score at the level that the promises' record has made of the nominal one.
    fn working(&self, group: &Group, alpha: Alpha) -> Result<f64, TooFew> {
        let nominal = self.quantile(group, alpha)?;
        let factor = group.factors[usize::from(self.is_looser(alpha))];
        Ok(match self.config.adaptation {
            Adaptation::Static | Adaptation::Rolling { .. } => nominal,
            Adaptation::Adaptive { .. } => Alpha::new((alpha.get() * factor).min(0.5))
                .and_then(|working| group.scores.quantile(working).ok())
                .or(group.scores.max())
                .unwrap_or(nominal),
        })
    }

    /// The group's score at the nominal level, if it has enough of them to promise anything.
    fn quantile(&self, group: &Group, alpha: Alpha) -> Result<f64, TooFew> {
        let needed = self.config.minimum.max(alpha.needed());
        if group.scores.len() < needed {
            return Err(TooFew { needed });
        }
        group.scores.quantile(alpha)
    }

    fn group(&self, x: &Features) -> usize {
        self.classes
            .group(x.get(Feature::MaxTokens) as u32, x.load())
    }
}

impl Adaptation {
    fn window(self) -> Option<usize> {
        match self {
            Self::Static => None,
            Self::Rolling { window } | Self::Adaptive { window, .. } => Some(window),
        }
    }
}

fn scored(score: Score, p: &Point) -> Scored {
    Scored {
        score: score.of(p.latency.ms(), &p.estimate),
        censored: p.latency.is_censored(),
    }
}

#[cfg(test)]
#[path = "online_tests.rs"]
mod tests;
