//! What is known when a request arrives: the request itself, and the engine as it last published itself.
//!
//! Neither type holds, or can reach, anything that is known only afterwards (the reply's real length, why it
//! ended, when). Neither holds the arrival rate: it predicts latency well and is useless for control, because
//! refusing empties the queue and leaves the offered load where it was, so that a controller that looks at
//! it refuses on an idle engine. Every field of the engine is a consequence of congestion, not its cause.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is known of a request at admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmitContext {
    pub prompt_tokens: u32,
    /// Leading prompt tokens whose KV is cached, from a probe that pins nothing.
    pub cached_prefix_tokens: u32,
    /// The client's cap on the reply.
    pub max_tokens: u32,
    /// Messages of the conversation.
    pub messages: u32,
}

impl AdmitContext {
    /// Prompt tokens that must be computed; the last one always is.
    #[must_use]
    pub fn new_prefill_tokens(&self) -> u32 {
        self.prompt_tokens
            .saturating_sub(self.cached_prefix_tokens)
            .max(1)
    }
}

/// The work of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneLoad {
    pub waiting: u32,
    pub running: u32,
    /// Tokens that waiting and running requests may still generate: the sum of what is left of their caps.
    pub output_tokens: u64,
    /// Prompt tokens of theirs that are still to be computed.
    pub prefill_tokens: u64,
}

impl LaneLoad {
    /// The lane with one more waiting request.
    #[must_use]
    pub fn with_waiting(mut self, request: &AdmitContext) -> Self {
        self.waiting += 1;
        self.output_tokens += u64::from(request.max_tokens);
        self.prefill_tokens += u64::from(request.new_prefill_tokens());
        self
    }

    fn scaled(self, part: f64) -> Self {
        let scale = |x: u64| (x as f64 * part).ceil() as u64;
        Self {
            waiting: scale(u64::from(self.waiting)) as u32,
            running: scale(u64::from(self.running)) as u32,
            output_tokens: scale(self.output_tokens),
            prefill_tokens: scale(self.prefill_tokens),
        }
    }
}

/// How fast the engine goes: moving averages over its steps.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pace {
    /// Milliseconds a step.
    pub step_ms: f64,
    /// Tokens generated a second, all sequences together.
    pub tokens_per_s: f64,
}

impl Pace {
    /// The pace after `idle_for` without a step: half way to `idle` each `half_life`. What the last burst
    /// left behind says nothing of the request that arrives a minute later.
    #[must_use]
    pub fn relaxed(self, idle: Self, idle_for: Duration, half_life: Duration) -> Self {
        let kept = 0.5_f64.powf(idle_for.as_secs_f64() / half_life.as_secs_f64().max(1e-9));
        Self {
            step_ms: idle.step_ms + kept * (self.step_ms - idle.step_ms),
            tokens_per_s: idle.tokens_per_s + kept * (self.tokens_per_s - idle.tokens_per_s),
        }
    }
}

/// The engine as published after a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Snapshot {
    /// How many admissions the engine had taken in when it published this: the epoch of the ledger.
    pub admissions_seen: u64,
    /// Requests with a promise.
    pub promised: LaneLoad,
    /// Requests without: they yield to the others, so they are counted apart.
    pub best_effort: LaneLoad,
    /// Share of the KV pool in 0..=1 that is free or could be evicted.
    pub kv_free: f64,
    pub pace: Pace,
}

impl Snapshot {
    /// An engine with nothing to do.
    #[must_use]
    pub fn idle(pace: Pace) -> Self {
        Self {
            admissions_seen: 0,
            promised: LaneLoad::default(),
            best_effort: LaneLoad::default(),
            kv_free: 1.0,
            pace,
        }
    }

    /// The engine `seconds` later if nobody else is admitted: its work shrinks by the token rate, the promised
    /// lane's first, and everything that is held because of that work shrinks in proportion.
    #[must_use]
    pub fn drained(&self, seconds: f64, idle: Pace) -> Self {
        let work = |lane: LaneLoad| lane.output_tokens as f64;
        let done = self.pace.tokens_per_s.max(0.0) * seconds;
        let over = (done - work(self.promised)).max(0.0);
        if over >= work(self.best_effort) && done >= work(self.promised) {
            return Self::idle(idle);
        }
        let part = |lane: LaneLoad, done: f64| (1.0 - done / work(lane).max(1.0)).max(0.0);
        let left = part(self.promised, done);
        Self {
            admissions_seen: self.admissions_seen,
            promised: self.promised.scaled(left),
            best_effort: self.best_effort.scaled(part(self.best_effort, over)),
            kv_free: 1.0 - left * (1.0 - self.kv_free),
            pace: self.pace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Pace = Pace {
        step_ms: 4.0,
        tokens_per_s: 100.0,
    };

    #[test]
    fn pace_halves_its_distance_to_idle() {
        let busy = Pace {
            step_ms: 12.0,
            tokens_per_s: 300.0,
        };
        let second = Duration::from_secs(1);
        assert_eq!(busy.relaxed(IDLE, Duration::ZERO, second), busy);
        assert_eq!(busy.relaxed(IDLE, second, second).step_ms, 8.0);
        assert_eq!(busy.relaxed(IDLE, second * 2, second).tokens_per_s, 150.0);
    }

    #[test]
    fn work_drains_at_the_token_rate_down_to_idle() {
        let busy = Snapshot {
            promised: LaneLoad {
                waiting: 4,
                running: 2,
                output_tokens: 1000,
                prefill_tokens: 80,
            },
            kv_free: 0.5,
            ..Snapshot::idle(IDLE)
        };
        assert_eq!(busy.drained(0.0, IDLE), busy);
        let half = busy.drained(5.0, IDLE);
        assert_eq!(
            (half.promised.waiting, half.promised.output_tokens),
            (2, 500)
        );
        assert_eq!(half.kv_free, 0.75);
        assert_eq!(busy.drained(10.0, IDLE), Snapshot::idle(IDLE));
        let lane = LaneLoad {
            running: 4,
            output_tokens: 400,
            ..LaneLoad::default()
        };
        let with_lane = Snapshot {
            best_effort: lane,
            ..busy
        };
        let half = with_lane.drained(5.0, IDLE);
        assert_eq!((half.promised.output_tokens, half.best_effort), (500, lane));
        let later = with_lane.drained(12.0, IDLE);
        assert_eq!(later.promised, LaneLoad::default());
        assert_eq!(later.best_effort.output_tokens, 200);
        assert_eq!(with_lane.drained(14.0, IDLE), Snapshot::idle(IDLE));
    }
}
