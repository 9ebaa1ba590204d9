//! The rungs' policies: when may a request join, and what goes first within a step.

use std::time::Duration;

use super::super::wait_queue::{FillRule, TakeRule};

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
    /// What to ask the wait queue for when `running` sequences run; `None` while no seat is to be had.
    #[must_use]
    pub fn take_rule(self, running: usize) -> Option<TakeRule> {
        match self {
            Self::Fifo => (running == 0).then_some(TakeRule {
                seats: 1,
                fill: None,
            }),
            Self::StaticBatch {
                batch,
                fill_timeout,
            } => (running == 0).then_some(TakeRule {
                seats: batch,
                fill: Some(FillRule {
                    batch,
                    timeout: fill_timeout,
                }),
            }),
            Self::Continuous { max_running, .. } => {
                let seats = max_running.saturating_sub(running);
                (seats > 0).then_some(TakeRule { seats, fill: None })
            }
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
        let rule = |p: Policy, running| p.take_rule(running).map(|r| r.seats);
        assert_eq!(rule(Policy::Fifo, 0), Some(1));
        assert_eq!(rule(Policy::Fifo, 1), None);
        assert_eq!(
            rule(
                Policy::StaticBatch {
                    batch: 4,
                    fill_timeout
                },
                0
            ),
            Some(4)
        );
        assert_eq!(
            rule(
                Policy::StaticBatch {
                    batch: 4,
                    fill_timeout
                },
                1
            ),
            None
        );
        let c = Policy::Continuous {
            max_running: 4,
            order: StepOrder::DecodeFirst,
        };
        assert_eq!(rule(c, 0), Some(4));
        assert_eq!(rule(c, 3), Some(1));
        assert_eq!(rule(c, 4), None);
    }
}
