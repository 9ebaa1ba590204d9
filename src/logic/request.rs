//! What the engine must know of a request to schedule it. The text, the sampler and the client's channel
//! travel beside it as a payload that the logic carries and never looks into.

use super::time::Timestamp;
use crate::ids::RequestId;

/// Who goes first: every request of a lane before any of the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// All that is not in the other one, whether anything was promised of it or not.
    Promised,
    /// Runs on what the others leave, and yields whatever they need.
    BestEffort,
}

impl Lane {
    /// Both, in the order of [`Self::index`].
    pub const ALL: [Self; 2] = [Self::Promised, Self::BestEffort];

    /// Its place in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// On which terms a request runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    pub lane: Lane,
    /// Tokens that it may have computed for it when it was admitted, what was cached left out: the best-effort lane
    /// runs the small ones first.
    pub work: u32,
    /// By when its last token is promised or, where nothing is, wanted; else [`Timestamp::NEVER`].
    pub due: Timestamp,
    /// When it is given up if it has not ended, else [`Timestamp::NEVER`].
    pub drop_at: Timestamp,
    /// It waits for no batch to fill: nobody else may come while it is there.
    pub alone: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lane: Lane::Promised,
            work: 0,
            due: Timestamp::NEVER,
            drop_at: Timestamp::NEVER,
            alone: false,
        }
    }
}

/// A request as the scheduler sees it. All counts are tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestSpec {
    pub id: RequestId,
    /// When it reached the server.
    pub arrival: Timestamp,
    /// What the wait queue orders by: arrival + its SLO, or [`Timestamp::NEVER`].
    pub deadline: Timestamp,
    /// At least 1.
    pub prompt_tokens: u32,
    /// Upper bound of the reply, at least 1; what it really takes is not known to anybody yet.
    pub max_tokens: u32,
    /// It ran already and yielded its memory: it goes before those of its class that have not run.
    pub preempted: bool,
    pub terms: Terms,
}

impl RequestSpec {
    /// The most KV cells it can come to occupy.
    #[must_use]
    pub fn cells_max(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.max_tokens)
    }

    /// Whether it is in the best-effort lane.
    #[must_use]
    pub fn yields(&self) -> bool {
        self.terms.lane == Lane::BestEffort
    }

    /// How it ends if it is to be given up by now, with so many tokens of a reply.
    #[must_use]
    pub fn given_up(&self, now: Timestamp, generated: u32) -> Option<Outcome> {
        (now >= self.terms.drop_at).then_some(match generated {
            0 => Outcome::Expired,
            _ => Outcome::Finished(FinishReason::Slo),
        })
    }
}

/// Why a reply ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// `max_tokens` or the context did.
    Length,
    /// Its deadline did: what there is of the reply is all that comes.
    Slo,
}

/// How a request ended: exactly one of these for each, counted once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The reply is complete.
    Finished(FinishReason),
    /// The client went away.
    Cancelled,
    /// The client read too slowly and its buffer was full.
    SlowReader,
    /// Refused as invalid (4xx).
    Invalid,
    /// Refused for want of capacity, or while starting or draining (503).
    Refused,
    /// Its deadline passed before its reply began (503).
    Expired,
    /// The engine failed it (500).
    Failed,
    /// Cut by the drain limit at shutdown.
    Drained,
}

impl Outcome {
    /// Every outcome, in the order of `index`.
    pub const ALL: [Self; 10] = [
        Self::Finished(FinishReason::Stop),
        Self::Finished(FinishReason::Length),
        Self::Finished(FinishReason::Slo),
        Self::Cancelled,
        Self::SlowReader,
        Self::Invalid,
        Self::Refused,
        Self::Expired,
        Self::Failed,
        Self::Drained,
    ];

    /// The label under which `/stats` and `/metrics` count it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Finished(FinishReason::Stop) => "stop",
            Self::Finished(FinishReason::Length) => "length",
            Self::Finished(FinishReason::Slo) => "slo",
            Self::Cancelled => "cancelled",
            Self::SlowReader => "slow_reader",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Drained => "drained",
        }
    }

    /// Its place in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Finished(FinishReason::Stop) => 0,
            Self::Finished(FinishReason::Length) => 1,
            Self::Finished(FinishReason::Slo) => 2,
            Self::Cancelled => 3,
            Self::SlowReader => 4,
            Self::Invalid => 5,
            Self::Refused => 6,
            Self::Expired => 7,
            Self::Failed => 8,
            Self::Drained => 9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_index_and_label() {
        for (i, o) in Outcome::ALL.iter().enumerate() {
            assert_eq!(o.index(), i);
            assert_eq!(
                Outcome::ALL
                    .iter()
                    .filter(|p| p.label() == o.label())
                    .count(),
                1
            );
        }
    }
}
