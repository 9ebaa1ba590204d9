//! What a refusal offers instead: a request that would be admitted now, and when this one would be.
//!
//! Each answer is checked against the bound itself before it is given: trees are not monotone, so bisection
//! finds a request that fits, not always the largest one that does. It costs some twenty predictions, which
//! is why it is not part of the decision.

use super::calibration::Alpha;
use super::controller::{Controller, NoBound};
use super::policy::{Decision, Request, Verdict};
use super::snapshot::{AdmitContext, Snapshot};
use crate::logic::admission::spread_s;

/// The loosest confidence worth offering: a promise that holds every other time.
const PERMILLE_BROKEN_MAX: u32 = 500;

/// Changes to the request, each of which alone would have had it admitted.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CounterOffer {
    /// The largest smaller reply cap.
    pub max_tokens: Option<u32>,
    /// The highest lower confidence, in thousandths.
    pub confidence: Option<f64>,
    /// The nearest later deadline, in ms from now.
    pub budget_ms: Option<u64>,
}

impl CounterOffer {
    /// Whether nothing is offered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Controller {
    /// What would be admitted in place of a request that was just refused with `asked`.
    #[must_use]
    pub fn counter_offer(
        &self,
        request: &Request,
        snapshot: &Snapshot,
        asked: &Decision,
    ) -> CounterOffer {
        let alpha = asked.alpha;
        let engine = self.ledger.with_unseen(snapshot);
        // Who would be refused by an idle engine as well is told what fits that as well: the pace of one that was busy
        // until now is often the better one, and the offer would not hold for a second.
        let infeasible = asked.verdict == Verdict::Infeasible;
        let fits = |context: &AdmitContext, bound_ms: Result<f64, NoBound>, alpha: Alpha| {
            let idle = || self.idle_bound(context, alpha);
            self.fits(bound_ms, request.budget_ms)
                && (!infeasible || idle().is_ok_and(|u| u <= request.budget_ms))
        };

        let shorter = |max_tokens| {
            let mut context = request.context;
            context.max_tokens = max_tokens;
            fits(
                &context,
                self.predict(&context, &engine, alpha).bound_ms,
                alpha,
            )
        };
        let max_tokens = last(0, request.context.max_tokens, shorter);

        let broken_min = (1000.0 * alpha.get()).floor() as u32;
        let confidence = asked.estimate.as_ref().and_then(|estimate| {
            // Bisected from the loose end: the last step towards the asked one that still fits.
            let looser = |steps: u32| {
                Alpha::new(f64::from(PERMILLE_BROKEN_MAX - steps) / 1000.0).is_some_and(|looser| {
                    let bound_ms = self.bound(&asked.features, estimate, looser);
                    fits(&request.context, bound_ms, looser)
                })
            };
            let steps = PERMILLE_BROKEN_MAX.checked_sub(broken_min)?;
            let loosest = looser(0).then_some(0);
            last(0, steps, looser)
                .or(loosest)
                .map(|s| f64::from(1000 - PERMILLE_BROKEN_MAX + s) / 1000.0)
        });

        let budget_ms = asked.bound_ms.ok().map(|u| {
            let idle = self.idle_bound(&request.context, alpha).ok();
            let idle = idle.filter(|_| infeasible).unwrap_or(0.0);
            (u / self.threshold()).max(idle).ceil() as u64
        });
        CounterOffer {
            max_tokens,
            confidence,
            budget_ms,
        }
    }

    /// `Retry-After` in seconds: when the bound is first predicted to fit if nobody else comes (while nothing is known,
    /// when all that is there is done; where it is the idle engine of which nothing is known, when it is idle), spread by
    /// the request's id. At least 1; at most the cap, which is also the answer where it won't fit before.
    #[must_use]
    pub fn retry_after_s(&self, request: &Request, snapshot: &Snapshot) -> u32 {
        let alpha = request.alpha.unwrap_or(self.settings.alpha);
        let engine = self.ledger.with_unseen(snapshot);
        let cap = self.settings.retry_cap_s.max(1);
        let misfits = |seconds: u32| {
            let later = engine.drained(f64::from(seconds), self.idle);
            if !self.is_armed() {
                return later != Snapshot::idle(self.idle);
            }
            let bound_ms = self.predict(&request.context, &later, alpha).bound_ms;
            let is_explored =
                self.is_unknown_to_learner(bound_ms) && later == Snapshot::idle(self.idle);
            !is_explored && !self.fits(bound_ms, request.budget_ms)
        };
        let wait = last(0, cap, misfits).unwrap_or(0) + 1;
        spread_s(f64::from(wait), request.id.0, cap)
    }
}

/// By bisection in `above`..`below`, both excluded: the last number that holds and whose successor doesn't,
/// as if what holds came before what doesn't. What it returns was tested.
fn last(mut above: u32, mut below: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    let mut found = None;
    while below.saturating_sub(above) > 1 {
        let middle = above + (below - above) / 2;
        if holds(middle) {
            (above, found) = (middle, Some(middle));
        } else {
            below = middle;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::policy::Verdict;
    use super::super::testing::{IDLE, context, controller, engine, request, without_exploring};
    use super::*;
    use crate::ids::RequestId;
    use crate::logic::rng::SplitMix64;

    #[test]
    fn bisection_finds_the_edge() {
        for edge in 0..20 {
            let found = last(0, 20, |n| n <= edge);
            assert_eq!(found, (edge > 0).then_some(edge.min(19)));
        }
        assert_eq!(last(0, 0, |_| true), None);
        assert_eq!(last(0, 1, |_| true), None);
    }

    /// The pace of an engine that was busy until now is not that of an idle one, which it soon is.
    #[test]
    fn what_an_idle_engine_offers_it_still_offers_a_moment_later() {
        let mut c = controller(without_exploring());
        let later = Snapshot::idle(engine(6).pace);
        c.set_idle(later.pace);
        let now = Snapshot::idle(IDLE);
        let mut rng = SplitMix64::new(9);
        let (mut offers, mut longer) = (0, 0);
        for _ in 0..300 {
            let r = Request {
                context: context(&mut rng),
                ..request(0, 100.0 + 1000.0 * rng.unit())
            };
            let refused = c.decide(&r, &now);
            if refused.verdict != Verdict::Infeasible {
                continue;
            }
            let offer = c.counter_offer(&r, &now, &refused);
            let mut changed = Vec::new();
            changed.extend(offer.budget_ms.map(|ms| Request {
                budget_ms: ms as f64,
                ..r
            }));
            changed.extend(offer.max_tokens.map(|max_tokens| Request {
                context: AdmitContext {
                    max_tokens,
                    ..r.context
                },
                ..r
            }));
            changed.extend(offer.confidence.map(|confidence| Request {
                alpha: Alpha::new(1.0 - confidence),
                ..r
            }));
            for r in changed {
                for at in [&now, &later] {
                    assert_eq!(c.quote(&r, at).verdict, Verdict::Promised, "{r:?}, {at:?}");
                }
                offers += 1;
            }
            let idle = c.idle_bound(&r.context, refused.alpha).unwrap();
            longer += u32::from(idle > 1.01 * refused.bound_ms.unwrap());
        }
        assert!(offers > 100 && longer > 20, "{offers} {longer}");
    }

    #[test]
    fn every_counter_offer_and_retry_would_be_admitted() {
        let mut c = controller(without_exploring());
        let (mut shorter, mut looser, mut later) = (0, 0, 0);
        let mut rng = SplitMix64::new(8);
        for _ in 0..300 {
            let now = engine(rng.below(41) as u32);
            let r = Request {
                context: context(&mut rng),
                ..request(0, 500.0 + 5000.0 * rng.unit())
            };
            let refused = c.decide(&r, &now);
            if refused.verdict.admits() {
                continue;
            }
            let offer = c.counter_offer(&r, &now, &refused);
            let promised = |r: &Request, at: &Snapshot| c.quote(r, at).verdict == Verdict::Promised;
            if let Some(max_tokens) = offer.max_tokens {
                let mut offered = r;
                offered.context.max_tokens = max_tokens;
                assert!(max_tokens < r.context.max_tokens && promised(&offered, &now));
                shorter += 1;
            }
            if let Some(confidence) = offer.confidence {
                assert!((0.5..0.95).contains(&confidence));
                assert!(promised(
                    &Request {
                        alpha: Alpha::new(1.0 - confidence),
                        ..r
                    },
                    &now
                ));
                looser += 1;
            }
            let budget_ms = offer.budget_ms.unwrap() as f64;
            assert!(budget_ms > r.budget_ms && promised(&Request { budget_ms, ..r }, &now));
            let wait = c.retry_after_s(&r, &now);
            assert!((1..=60).contains(&wait));
            if wait < 60 {
                assert!(
                    promised(&r, &now.drained(f64::from(wait), IDLE)),
                    "{r:?} {now:?} {wait}"
                );
                later += 1;
            }
        }
        assert!(
            shorter > 25 && looser > 20 && later > 50,
            "{shorter} {looser} {later}"
        );
        let same: Vec<u32> = (0..50)
            .map(|id| {
                c.retry_after_s(
                    &Request {
                        id: RequestId(id),
                        ..request(100, 3000.0)
                    },
                    &engine(40),
                )
            })
            .collect();
        assert!(same.iter().any(|s| *s != same[0]), "no spread: {same:?}");
    }
}
