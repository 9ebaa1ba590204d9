//! What a caller is told of a decision: at once, with a refusal, and when its reply has ended.
//!
//! A decision looks ahead from the moment it is made; a caller's watch starts at the arrival. What is told
//! here is from arrival, in whole milliseconds, rounded up; and what is told is what is judged.

use serde::Serialize;

use super::offer::CounterOffer;
use super::policy::{Decision, Verdict};

/// A decision, and how long after the request's arrival it was made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer {
    pub decision: Decision,
    pub waited_ms: f64,
}

/// A refusal, and what would be admitted instead.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Refusal {
    pub answer: Answer,
    pub offer: CounterOffer,
    /// `None` where waiting changes nothing.
    pub retry_after_s: Option<u32>,
}

/// What was promised of a reply, and what came of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Receipt {
    pub verdict: &'static str,
    /// The bound; the promise, if `verdict` says that there was one.
    pub bound_ms: Option<u64>,
    pub promised_ms: Option<u64>,
    /// To the server's last token.
    pub actual_ms: u64,
    /// Whether the promise was kept; `None` where none was made.
    pub kept: Option<bool>,
    pub confidence: f64,
    pub slo_ms: Option<u64>,
    pub slo_met: Option<bool>,
    /// Whether its promise looked lost when it was taken from the queue, so that it ran in the best-effort lane.
    pub demoted: bool,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Promised,
        Self::Observed,
        Self::Explored,
        Self::BestEffort,
        Self::Infeasible,
        Self::Overloaded,
        Self::Unsupported,
    ];

    /// The word for it in headers, bodies and metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Promised => "promised",
            Self::Observed => "observed",
            Self::Explored => "explored",
            Self::BestEffort => "best_effort",
            Self::Infeasible => "infeasible",
            Self::Overloaded => "overloaded",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Decision {
    /// 1 − α, to the six digits that are worth printing.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        ((1.0 - self.alpha.get()) * 1e6).round() / 1e6
    }
}

/// Whether a latency broke a bound, both from the decision: by the whole milliseconds that are told.
#[must_use]
pub fn is_late(latency_ms: f64, bound_ms: f64) -> bool {
    latency_ms.ceil() > bound_ms.ceil()
}

impl Answer {
    /// The bound, if there is one that means something: not in the best-effort lane.
    #[must_use]
    pub fn bound_ms(&self) -> Option<u64> {
        let bound = self.decision.bound_ms.ok();
        let bound = bound.filter(|_| self.decision.verdict != Verdict::BestEffort)?;
        Some(bound.ceil() as u64 + self.waited_ms.ceil() as u64)
    }

    /// The receipt of a reply whose last token came `actual_ms` after the request.
    #[must_use]
    pub fn receipt(&self, actual_ms: f64, slo_ms: Option<u64>) -> Receipt {
        let bound_ms = self.bound_ms();
        let promised_ms = bound_ms.filter(|_| self.decision.verdict == Verdict::Promised);
        let latency_ms = (actual_ms - self.waited_ms).max(0.0);
        let actual_ms = latency_ms.ceil() as u64 + self.waited_ms.ceil() as u64;
        Receipt {
            verdict: self.decision.verdict.label(),
            bound_ms,
            promised_ms,
            actual_ms,
            kept: promised_ms.map(|promised| actual_ms <= promised),
            confidence: self.decision.confidence(),
            slo_ms,
            slo_met: slo_ms.map(|slo| actual_ms <= slo),
            demoted: false,
        }
    }
}

impl Refusal {
    /// The nearest deadline that would be met, as the request would have to name it.
    #[must_use]
    pub fn offered_slo_ms(&self) -> Option<u64> {
        let budget = self.offer.budget_ms?;
        Some(budget + self.answer.waited_ms.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{controller, engine, request, without_exploring};
    use super::*;

    #[test]
    fn a_receipt_counts_from_arrival_and_judges_promises_only() {
        let mut c = controller(without_exploring());
        let decision = c.decide(&request(64, 4000.0), &engine(0));
        let answer = Answer {
            decision,
            waited_ms: 100.0,
        };
        let promised = answer.bound_ms().unwrap();
        assert_eq!(promised, (decision.bound_ms.unwrap() + 100.0).ceil() as u64);
        let kept = answer.receipt(promised as f64, Some(4100));
        assert_eq!((kept.kept, kept.slo_met), (Some(true), Some(true)));
        let missed = answer.receipt(promised as f64 + 0.5, Some(50));
        assert_eq!((missed.kept, missed.slo_met), (Some(false), Some(false)));
        assert_eq!(missed.confidence, 0.95);
        let decision = Decision {
            verdict: Verdict::Observed,
            ..decision
        };
        let observed = Answer { decision, ..answer }.receipt(1e9, None);
        assert_eq!((observed.kept, observed.promised_ms), (None, None));
        assert_eq!(observed.bound_ms, Some(promised));
    }
}
