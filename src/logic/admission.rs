//! The admission decision: may this request in, and if not, when should the client come back?
//!
//! On rungs 1 to 4 the answer is the capacity cap's alone, which is what is here. On rung 5 it comes first, and
//! `conformal` decides on what passes it.

use std::time::Duration;

use super::capacity::{CapacityExceeded, Reservation};
use super::request::RequestSpec;
use super::rng::mix;

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
    /// Decides on one request. `reservation` is its seat, in whichever lane; an admitted request sits in its own and has
    /// its tokens added to it.
    pub fn decide(
        &self,
        spec: &RequestSpec,
        reservation: &mut Reservation,
        engine: &EngineSnapshot,
    ) -> Verdict {
        let seated = reservation.move_to(spec.terms.lane);
        match seated.and_then(|()| reservation.add_tokens(u64::from(spec.cells_max()))) {
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
    /// Remaining decode work over the measured rate, [spread](spread_s) by `salt`; 1 while no rate is known.
    #[must_use]
    pub fn seconds(&self, engine: &EngineSnapshot, salt: u64) -> u32 {
        let Some(rate) = engine.tokens_per_s.filter(|r| *r > 0.0) else {
            return 1;
        };
        let cap_s = u32::try_from(self.cap.as_secs()).unwrap_or(u32::MAX);
        spread_s(engine.tokens_remaining as f64 / rate, salt, cap_s)
    }
}

/// A wait in whole seconds, with up to a quarter added that depends on `salt`, so that the refused don't all
/// return in the same second. At least 1; at most the cap, or 1 if that is less.
#[must_use]
pub fn spread_s(wait_s: f64, salt: u64, cap_s: u32) -> u32 {
    let spread = mix(salt) as f64 / u64::MAX as f64;
    let spread_s = wait_s.ceil() * (1.0 + 0.25 * spread);
    (spread_s.round() as u32).clamp(1, cap_s.max(1))
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
