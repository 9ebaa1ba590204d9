//! The admission decision: may this request in, and if not, when should the client come back?
//!
//! On rungs 1 to 4 the answer is the capacity cap's alone, which is what is here. On rung 5 it comes first, and
//! `conformal` decides on what passes it.

use std::time::Duration;

use super::capacity::{CapacityExceeded, Reservation};
use super::request::RequestSpec;

/// The engine as its actors last published it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EngineSnapshot {
    /// Output tokens that waiting and running requests may still ask for.
    pub tokens_remaining: u64,
    /// Measured output rate; `None` until something has been generated.
    pub tokens_per_s: Option<f64>,
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Admit,
    Refuse {
        reason: CapacityExceeded,
        retry_after_s: u32,
    },
}

/// The cap: on rungs 1 to 4 all there is, on the others what comes before the bound.
#[derive(Clone, Copy, Debug)]
pub struct CapacityCap {
    pub retry: RetryAfter,
}

impl CapacityCap {
    /// Decides on one request. `reservation` is its seat; an admitted request has its tokens added to it.
    pub fn decide(
        &self,
        spec: &RequestSpec,
        reservation: &mut Reservation,
        engine: &EngineSnapshot,
    ) -> Verdict {
        match reservation.add_tokens(u64::from(spec.cells_max())) {
            Ok(()) => Verdict::Admit,
            Err(reason) => Verdict::Refuse {
                reason,
                retry_after_s: self.retry.seconds(engine, spec.id.0),
            },
        }
    }
}

/// When a refused client should try again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryAfter {
    /// The longest wait that is ever named. Some SDKs ignore more than 60 s, others sleep it in full.
    pub cap: Duration,
}

impl RetryAfter {
    /// Remaining decode work over the measured rate, in whole seconds of at least 1 and at most the cap, with
    /// up to a quarter added that depends on `salt`, so that the refused don't all return in the same second.
    #[must_use]
    pub fn seconds(&self, engine: &EngineSnapshot, salt: u64) -> u32 {
        let cap = u32::try_from(self.cap.as_secs()).unwrap_or(u32::MAX).max(1);
        let Some(rate) = engine.tokens_per_s.filter(|r| *r > 0.0) else {
            return 1.min(cap);
        };
        let work_s = engine.tokens_remaining as f64 / rate;
        // Fibonacci hashing: consecutive ids land far apart.
        let spread = (salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / f64::from(1 << 24);
        let wait = (work_s * (1.0 + 0.25 * spread)).ceil();
        (wait as u32).clamp(1, cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(tokens_remaining: u64, rate: Option<f64>) -> EngineSnapshot {
        EngineSnapshot {
            tokens_remaining,
            tokens_per_s: rate,
        }
    }

    #[test]
    fn retry_after_is_work_over_rate_spread_and_capped() {
        let r = RetryAfter {
            cap: Duration::from_secs(60),
        };
        assert_eq!(r.seconds(&engine(1000, None), 1), 1);
        assert_eq!(r.seconds(&engine(0, Some(100.0)), 1), 1);
        assert_eq!(r.seconds(&engine(1_000_000, Some(100.0)), 1), 60);
        let all: Vec<u32> = (0..100)
            .map(|salt| r.seconds(&engine(2000, Some(100.0)), salt))
            .collect();
        assert!(all.iter().all(|s| (20..=25).contains(s)), "{all:?}");
        assert!(all.iter().any(|s| *s != all[0]), "no spread: {all:?}");
    }
}
