//! One request as its client saw it: a row of the raw records, from which every figure is made.
//!
//! Times are microseconds since the run began, so that all rows of a run share one clock. Latencies count from
//! `intended_us`, never from `sent_us`. A field that the server did not tell is empty, never zero.

use serde::{Deserialize, Serialize};

use super::mix::Class;

/// See the module's text. The order is that of the columns in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub index: u32,
    pub class: Class,
    /// Which system prompt, conversation or task, within its class.
    pub group: u32,
    /// Turns of its conversation before it.
    pub turn: u32,
    /// Cap on the answer; how long the answer gets is the model's affair.
    pub max_tokens: u32,
    /// The SLO that was sent along.
    pub slo_ms: Option<u64>,
    /// It arrived neither in the warm-up nor in the cool-down.
    pub measured: bool,

    /// When it was due. In a closed loop, which has no schedule, when it was dispatched.
    pub intended_us: u64,
    /// When the generator took it up: the difference to `intended_us` is the generator's own fault.
    pub dispatched_us: Option<u64>,
    /// When its last byte was handed to the kernel: later than `dispatched_us` if the server was slow to accept.
    pub sent_us: Option<u64>,
    pub first_byte_us: Option<u64>,
    /// The first frame, which is the first event with text.
    pub first_frame_us: Option<u64>,
    /// From each frame to the next.
    pub frame_gaps_us: Vec<u32>,
    pub last_frame_us: Option<u64>,
    /// When it ended, however it did.
    pub finish_us: u64,

    pub status: Option<u16>,
    /// What went wrong on this side or in the stream; empty for a refusal, which is an answer.
    pub error: Option<String>,
    /// The stable word of the server's error envelope: why it refused.
    pub code: Option<String>,
    pub retry_after_s: Option<u32>,
    /// The client lost patience: `finish_us` is a lower bound of what it would have been.
    pub censored: bool,
    pub finish_reason: Option<String>,

    pub prompt_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    pub completion_tokens: Option<u32>,

    /// The server's promise: its bound, its word, at which confidence, and whether it says that it was kept.
    pub bound_ms: Option<f64>,
    pub verdict: Option<String>,
    pub level: Option<f64>,
    pub kept: Option<bool>,

    /// The server's own split of the time to the first token.
    pub queue_ms: Option<f64>,
    pub prefill_ms: Option<f64>,
    pub first_decode_ms: Option<f64>,

    /// Over a connection that an earlier request had opened.
    pub reused: bool,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A whole answer with text.
    Completed,
    /// Refused before it began: 503, 429, or 422 for an SLO that can't be met.
    Shed,
    /// The client lost patience.
    Censored,
    /// Anything else, a 200 without text among it.
    Failed,
}

impl Record {
    pub fn outcome(&self) -> Outcome {
        match self.status {
            _ if self.censored => Outcome::Censored,
            Some(429 | 503 | 422) if self.error.is_none() => Outcome::Shed,
            Some(200) if self.error.is_none() && self.first_frame_us.is_some() => {
                Outcome::Completed
            }
            _ => Outcome::Failed,
        }
    }

    pub fn is_completed(&self) -> bool {
        self.outcome() == Outcome::Completed
    }

    /// Seconds from the intended arrival to the first frame.
    pub fn ttft_s(&self) -> Option<f64> {
        self.first_frame_us.map(|t| since(self.intended_us, t))
    }

    /// Seconds from the intended arrival to the end.
    pub fn e2e_s(&self) -> f64 {
        since(self.intended_us, self.finish_us)
    }

    /// Seconds by which the generator was late.
    pub fn lag_s(&self) -> Option<f64> {
        self.dispatched_us.map(|t| since(self.intended_us, t))
    }

    /// Seconds from dispatch until the kernel had the whole request.
    pub fn hand_over_s(&self) -> Option<f64> {
        Some(since(self.dispatched_us?, self.sent_us?))
    }

    /// Events that brought text.
    pub fn frames(&self) -> usize {
        match self.first_frame_us {
            Some(_) => self.frame_gaps_us.len() + 1,
            None => 0,
        }
    }

    /// When each frame came.
    pub fn frame_times_us(&self) -> impl Iterator<Item = u64> + '_ {
        let first = self.first_frame_us;
        let gaps = std::iter::once(0).chain(self.frame_gaps_us.iter().copied());
        first.into_iter().flat_map(move |first| {
            gaps.clone().scan(first, |at, gap| {
                *at += u64::from(gap);
                Some(*at)
            })
        })
    }

    /// Tokens that a frame brought in the mean; more than 1 where tokens are held back or sent together.
    pub fn tokens_per_frame(&self) -> Option<f64> {
        match (self.completion_tokens, self.frames()) {
            (Some(tokens), frames) if frames > 0 => Some(f64::from(tokens) / frames as f64),
            _ => None,
        }
    }

    /// Seconds between tokens: the span of the frames over the tokens of the bill.
    pub fn token_gap_s(&self) -> Option<f64> {
        let span = since(self.first_frame_us?, self.last_frame_us?);
        match self.completion_tokens? {
            0 | 1 => None,
            tokens => Some(span / f64::from(tokens - 1)),
        }
    }

    /// Whether the whole answer came within `slo_s` of its intended arrival. One that its deadline ended is not whole.
    pub fn is_within(&self, slo_s: f64) -> bool {
        let is_cut = self.finish_reason.as_deref() == Some("slo");
        self.is_completed() && !is_cut && self.e2e_s() <= slo_s
    }
}

fn since(from_us: u64, to_us: u64) -> f64 {
    (to_us as f64 - from_us as f64) * 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Due at 1 s, dispatched 2 ms late, text from 1.5 s on every 10 ms.
    fn answered() -> Record {
        Record {
            intended_us: 1_000_000,
            dispatched_us: Some(1_002_000),
            sent_us: Some(1_002_500),
            first_frame_us: Some(1_500_000),
            frame_gaps_us: vec![10_000, 10_000],
            last_frame_us: Some(1_520_000),
            finish_us: 1_530_000,
            status: Some(200),
            completion_tokens: Some(5),
            ..Record::default()
        }
    }

    #[test]
    fn latencies_count_from_the_intended_arrival() {
        let r = answered();
        assert_eq!(r.ttft_s(), Some(0.5));
        assert!((r.e2e_s() - 0.53).abs() < 1e-9);
        assert!((r.lag_s().unwrap() - 0.002).abs() < 1e-9);
        assert!(r.is_within(0.54) && !r.is_within(0.52));
        let cut = Record {
            finish_reason: Some("slo".into()),
            ..r
        };
        assert!(cut.is_completed() && !cut.is_within(0.54));
    }

    #[test]
    fn frames_and_tokens_are_kept_apart() {
        let r = answered();
        assert_eq!(r.frames(), 3);
        assert_eq!(
            r.frame_times_us().collect::<Vec<_>>(),
            [1_500_000, 1_510_000, 1_520_000]
        );
        assert!((r.tokens_per_frame().unwrap() - 5.0 / 3.0).abs() < 1e-9);
        assert!((r.token_gap_s().unwrap() - 0.005).abs() < 1e-9);
        assert_eq!(Record::default().frame_times_us().count(), 0);
    }

    #[test]
    fn a_200_without_text_is_a_failure_and_a_timeout_is_censored() {
        assert_eq!(answered().outcome(), Outcome::Completed);
        let empty = Record {
            first_frame_us: None,
            ..answered()
        };
        assert_eq!(empty.outcome(), Outcome::Failed);
        let broken = Record {
            error: Some("cut off".into()),
            ..answered()
        };
        assert_eq!(broken.outcome(), Outcome::Failed);
        let late = Record {
            censored: true,
            error: Some("timeout".into()),
            ..answered()
        };
        assert_eq!(late.outcome(), Outcome::Censored);
        let shed = Record {
            status: Some(503),
            ..Record::default()
        };
        assert_eq!(shed.outcome(), Outcome::Shed);
        assert_eq!(Record::default().outcome(), Outcome::Failed);
    }
}
