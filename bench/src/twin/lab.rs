//! What the cells of a grid have in common: the rungs, the prices, what they can sustain and what nobody
//! could.

use std::sync::Arc;

use cadenced::logic::conformal::artifact::Artifact;
use cadenced::logic::conformal::calibration::Alpha;
use cadenced::logic::conformal::controller::Controller;
use cadenced::logic::conformal::snapshot::Pace;
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use cadenced::promises;
use serde::{Deserialize, Serialize};

use super::arrivals::Offer;
use super::cell::{Cell, Offered};
use super::cost::{Composition, PS_PER_US, StepCost};
use super::engine::{Request, Trial};
use super::oracle::{self, Bounds};
use super::rung::Rung;
use crate::load::arrivals::Extent;

/// What a clairvoyant could do with one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ceiling {
    pub load: f64,
    pub rate_per_s: f64,
    pub seed: u64,
    /// No engine has a higher goodput.
    pub at_most_per_s: f64,
    /// An engine that knows all answers' lengths has had this one.
    pub at_least_per_s: f64,
}

/// See the module's text.
pub struct Lab {
    pub cost: StepCost,
    /// At least one.
    pub rungs: Vec<Rung>,
    /// What is offered, but for rate and seed.
    pub offer: Offer,
    /// What promises rest on; without one they are learnt from what is admitted.
    pub artifact: Option<Arc<Artifact>>,
}

/// What the daemon generates before it is ready: a few tokens, after a greeting.
const WARM_UP: (u32, u32) = (30, 8);

/// Requests that are enough to know a mix.
pub const SAMPLE: usize = 2000;
/// Seats that a clairvoyant tries.
const SEATS: [usize; 5] = [2, 3, 4, 6, 8];

/// Requests per second that come out of `trial` while all of `requests`, which come at once, wait: over the
/// middle 60% of them.
pub fn sustained_per_s(trial: &Trial, requests: &[Request]) -> f64 {
    let fates = trial.run(requests);
    let mut ends: Vec<u64> = fates.iter().map(|f| f.end_us).collect();
    ends.sort_unstable();
    let (from, to) = (ends.len() / 5, ends.len() * 4 / 5);
    (to - from) as f64 / ((ends[to] - ends[from]) as f64 * 1e-6)
}

/// The SLO that a request of so many seconds meets: in tenths of a second, since nobody promises more exactly,
/// and in hundredths below one second.
pub fn slo_ms(seconds: f64) -> u64 {
    let grain = if seconds <= 1.0 { 10 } else { 100 };
    ((seconds * 1e6).round() as u64).div_ceil(grain * 1000) * grain
}

impl Lab {
    fn sample(&self, at_us: impl Fn(u64) -> u64) -> Vec<Request> {
        let offer = Offer {
            extent: Extent::Requests(SAMPLE),
            ..self.offer.clone()
        };
        let requests = (0..).zip(offer.requests());
        let moved = requests.map(|(i, r)| Request {
            at_us: at_us(i),
            ..r
        });
        moved.collect()
    }

    /// The rung that the others are measured by, without a cap, for clients that have time.
    pub fn last_rung(&self) -> Trial {
        let rung = &self.rungs[self.rungs.len() - 1];
        Trial::new(rung.clone().uncapped(), self.cost)
    }

    /// What the last rung sustains.
    pub fn saturation_per_s(&self) -> f64 {
        sustained_per_s(&self.last_rung(), &self.sample(|_| 0))
    }

    /// Requests with the microseconds that they take on an idle server.
    pub fn alone(&self) -> Vec<(Request, u64)> {
        // An hour apart.
        let requests = self.sample(|i| i * 3_600_000_000);
        let fates = self.last_rung().run(&requests);
        let spans: Vec<u64> = fates
            .iter()
            .zip(&requests)
            .map(|(f, r)| f.end_us - r.at_us)
            .collect();
        requests.into_iter().zip(spans).collect()
    }

    /// Seconds within which `share` of the requests are answered on an idle server.
    pub fn alone_s(&self, share: f64) -> f64 {
        let mut spans: Vec<u64> = self.alone().into_iter().map(|(_, us)| us).collect();
        spans.sort_unstable();
        let rank = (share * SAMPLE as f64).ceil() as usize;
        spans[rank.clamp(1, SAMPLE) - 1] as f64 * 1e-6
    }

    /// The pace of the engine alone with one reply, as its warm-up measures it.
    pub fn idle_pace(&self) -> Pace {
        let (prompt, tokens) = WARM_UP;
        let first = Composition::of_tokens(prompt, 1);
        let ps = self.cost.of_decodes(first, tokens) as f64 / f64::from(tokens);
        let step_ms = ps / PS_PER_US as f64 * 1e-3;
        Pace {
            step_ms,
            tokens_per_s: 1e3 / step_ms,
        }
    }

    /// Who decides on `rung` with this calibration or none, at the level of its configuration or another one.
    pub fn controller(
        &self,
        rung: &Rung,
        artifact: Option<&Artifact>,
        alpha: Option<Alpha>,
    ) -> Controller {
        let mut config = rung.config.clone();
        if let Some(alpha) = alpha {
            config.admission.confidence = 1.0 - alpha.get();
        }
        let mut controller = promises::deployed(&config, artifact);
        if artifact.is_none() {
            controller.set_idle(self.idle_pace());
        }
        controller
    }

    /// One for each rung.
    pub fn trials(&self, slo_us: Option<u64>, patience_us: Option<u64>) -> Vec<Trial> {
        let trial = |rung: &Rung| Trial {
            controller: rung
                .promises()
                .then(|| self.controller(rung, self.artifact.as_deref(), None)),
            artifact: self.artifact.clone(),
            slo_us,
            patience_us,
            ..Trial::new(rung.clone(), self.cost)
        };
        self.rungs.iter().map(trial).collect()
    }

    /// Other settings of the last rung, which a clairvoyant might prefer: fewer seats, prompts first.
    fn variants(&self, slo_us: u64) -> impl Iterator<Item = Trial> {
        let orders = [StepOrder::DecodeFirst, StepOrder::PrefillFirst];
        let policies = SEATS.into_iter().flat_map(move |max_running| {
            orders.map(|order| Policy::Continuous { max_running, order })
        });
        policies.map(move |policy| {
            let last = self.last_rung();
            Trial {
                rung: Rung {
                    policy,
                    ..last.rung
                },
                slo_us: Some(slo_us),
                ..last
            }
        })
    }

    /// What a clairvoyant could do. `cells` are the rungs' own, for what a rung has done can be done.
    pub fn ceiling(&self, offered: &Offered, slo_us: u64, cells: &[Cell]) -> Ceiling {
        let seats = self.rungs.iter().map(|r| r.policy.max_running());
        let bounds = Bounds {
            cost: self.cost,
            rows_max: seats.chain(SEATS).max().unwrap_or(1) as u32,
            kv_cells: self.rungs.iter().map(Rung::kv_cells).max().unwrap_or(0),
            prefix_cache: self.rungs.iter().any(Rung::caches),
        };
        let requests = &offered.requests;
        let mut trials = self.trials(Some(slo_us), None);
        trials.extend(self.variants(slo_us));
        let achieved = oracle::achievable(&bounds, &trials, requests, slo_us);
        let by_a_rung = cells.iter().map(|c| c.within_slo).max().unwrap_or(0);
        let per_s = |n: usize| n as f64 / offered.seconds();
        Ceiling {
            load: offered.load,
            rate_per_s: offered.offer.rate,
            seed: offered.offer.seed,
            at_most_per_s: per_s(bounds.most_on_time(requests, slo_us)),
            at_least_per_s: per_s(achieved.max(by_a_rung)),
        }
    }
}

#[cfg(test)]
impl Lab {
    /// A rung under the fake's default costs and the standard mix; calibrated, if it promises.
    pub fn of(rung: Rung) -> Self {
        use super::arrivals::Answers;
        let mut lab = Self {
            cost: super::cost::CostModel::default().into(),
            rungs: vec![rung],
            offer: Offer {
                mix: crate::load::mix::Mix::Standard,
                answers: Answers::hidden(),
                rate: 1.0,
                extent: Extent::Seconds(120.0),
                seed: 0,
                observed: Default::default(),
            },
            artifact: None,
        };
        if lab.rungs[0].promises() {
            lab.artifact = Some(Arc::new(super::fitted::artifact(&lab, 1000).unwrap()));
        }
        lab
    }
}
