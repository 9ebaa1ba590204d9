//! What the engine must know of a request to schedule it. The text, the sampler and the client's channel
//! travel beside it as a payload that the logic carries and never looks into.

use super::time::Timestamp;
use crate::ids::RequestId;

/// A request as the scheduler sees it. All counts are tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestSpec {
    pub id: RequestId,
    /// When it reached the server.
    pub arrival: Timestamp,
    /// When it should have ended: arrival + its SLO, or [`Timestamp::NEVER`].
    pub deadline: Timestamp,
    /// At least 1.
    pub prompt_tokens: u32,
    /// Upper bound of the reply, at least 1; what it really takes is not known to anybody yet.
    pub max_tokens: u32,
    /// It ran already and yielded its memory: it goes before those of its class that have not run.
    pub preempted: bool,
}

impl RequestSpec {
    /// The most KV cells it can come to occupy.
    #[must_use]
    pub fn cells_max(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.max_tokens)
    }
}

/// Why a reply ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// `max_tokens` or the context did.
    Length,
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
    /// The engine failed it (500).
    Failed,
    /// Cut by the drain limit at shutdown.
    Drained,
}

impl Outcome {
    /// Every outcome, in the order of `index`.
    pub const ALL: [Self; 8] = [
        Self::Finished(FinishReason::Stop),
        Self::Finished(FinishReason::Length),
        Self::Cancelled,
        Self::SlowReader,
        Self::Invalid,
        Self::Refused,
        Self::Failed,
        Self::Drained,
    ];

    /// The label under which `/stats` and `/metrics` count it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Finished(FinishReason::Stop) => "stop",
            Self::Finished(FinishReason::Length) => "length",
            Self::Cancelled => "cancelled",
            Self::SlowReader => "slow_reader",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
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
            Self::Cancelled => 2,
            Self::SlowReader => 3,
            Self::Invalid => 4,
            Self::Refused => 5,
            Self::Failed => 6,
            Self::Drained => 7,
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
