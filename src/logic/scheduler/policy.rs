//! The rungs' policies: when may a request join, and what goes first within a step.

use std::time::Duration;

use super::super::wait_queue::FillRule;

/// What a step computes first when prompts and replies compete for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOrder {
    /// Every step advances all replies; prompts get what the prefill budget allows beside them.
    DecodeFirst,
    /// While a prompt is incomplete, a step computes prompts only.
    PrefillFirst,
}

/// A rung of the ladder, as far as the scheduler is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// One request at a time.
    Fifo,
    /// Batches of fixed size that run to the end of their longest reply; nobody joins late.
    StaticBatch {
        batch: usize,
        fill_timeout: Duration,
    },
    /// Iteration-level scheduling: requests join and leave at every step.
    Continuous {
        max_running: usize,
        order: StepOrder,
    },
}

impl Policy {
    /// How many may join when `running` sequences run.
    #[must_use]
    pub fn seats(self, running: usize) -> usize {
        match self {
            Self::Fifo | Self::StaticBatch { .. } if running > 0 => 0,
            _ => self.max_running().saturating_sub(running),
        }
    }

    /// Whether a batch must fill before it starts.
    #[must_use]
    pub fn fill(self) -> Option<FillRule> {
        match self {
            Self::StaticBatch {
                batch,
                fill_timeout,
            } => Some(FillRule {
                batch,
                timeout: fill_timeout,
            }),
            Self::Fifo | Self::Continuous { .. } => None,
        }
    }

    /// What goes first within a step. A static batch computes all its prompts and then decodes in lockstep.
    #[must_use]
    pub fn order(self) -> StepOrder {
        match self {
            Self::Fifo | Self::StaticBatch { .. } => StepOrder::PrefillFirst,
            Self::Continuous { order, .. } => order,
        }
    }

    /// The most sequences that ever run at once.
    #[must_use]
    pub fn max_running(self) -> usize {
        match self {
            Self::Fifo => 1,
            Self::StaticBatch { batch, .. } => batch,
            Self::Continuous { max_running, .. } => max_running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_continuous_policy_lets_a_request_join_a_running_batch() {
        let fill_timeout = Duration::from_millis(5);
        assert_eq!([0, 1].map(|running| Policy::Fifo.seats(running)), [1, 0]);
        let batch = Policy::StaticBatch {
            batch: 4,
            fill_timeout,
        };
        assert_eq!([0, 1].map(|running| batch.seats(running)), [4, 0]);
        let continuous = Policy::Continuous {
            max_running: 4,
            order: StepOrder::DecodeFirst,
        };
        let seats = [0, 3, 4, 5].map(|running| continuous.seats(running));
        assert_eq!(seats, [4, 1, 0, 0]);
    }
}
