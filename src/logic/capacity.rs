//! The capacity cap: how much unfinished work the server holds at most, in requests, body bytes and tokens.
//!
//! A request reserves its seat and its bytes before anything is done for it, and its tokens once they are
//! known. Each step is one atomic decision: two requests can't both take the last seat. What was reserved
//! comes back when the [`Reservation`] is dropped, wherever that happens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits of the work held at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapacityLimits {
    pub requests: usize,
    /// Bytes of request bodies.
    pub bytes: usize,
    /// Prompt tokens and `max_tokens` together.
    pub tokens: u64,
}

/// What is held at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub requests: usize,
    pub bytes: usize,
    pub tokens: u64,
}

/// Which limit was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapacityExceeded {
    Requests,
    Bytes,
    Tokens,
}

impl CapacityExceeded {
    /// The stable code that clients see.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Requests => "queue_full",
            Self::Bytes => "queue_bytes_full",
            Self::Tokens => "queue_tokens_full",
        }
    }
}

/// The cap itself; shared by all that take from it.
#[derive(Debug)]
pub struct Capacity {
    limits: CapacityLimits,
    held: Mutex<Held>,
}

impl Capacity {
    /// An empty house.
    #[must_use]
    pub fn new(limits: CapacityLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            held: Mutex::new(Held::default()),
        })
    }

    /// Every critical section leaves `Held` whole, so a panic elsewhere can't have broken it.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat and the bytes of a body, both or neither.
    ///
    /// # Errors
    /// Says which limit is reached.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, CapacityExceeded> {
        let mut held = self.lock();
        if held.requests >= self.limits.requests {
            return Err(CapacityExceeded::Requests);
        }
        // A body is never larger than the body limit, so an empty house takes any single one.
        if held.requests > 0 && held.bytes + bytes > self.limits.bytes {
            return Err(CapacityExceeded::Bytes);
        }
        held.requests += 1;
        held.bytes += bytes;
        Ok(Reservation {
            capacity: Arc::clone(self),
            bytes,
            tokens: 0,
        })
    }

    /// What is held now.
    #[must_use]
    pub fn held(&self) -> Held {
        *self.lock()
    }
}

/// A seat with its bytes and tokens; gives them back when dropped.
#[derive(Debug)]
pub struct Reservation {
    capacity: Arc<Capacity>,
    bytes: usize,
    tokens: u64,
}

impl Reservation {
    /// Gives back what a body of unknown length turned out not to need.
    pub fn shrink_bytes(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.capacity.lock().bytes -= surplus;
        self.bytes -= surplus;
    }

    /// Adds the tokens, once they are counted.
    ///
    /// # Errors
    /// When the server holds too many already; the seat is kept until the reservation is dropped.
    pub fn add_tokens(&mut self, tokens: u64) -> Result<(), CapacityExceeded> {
        let mut held = self.capacity.lock();
        if held.tokens > 0 && held.tokens + tokens > self.capacity.limits.tokens {
            return Err(CapacityExceeded::Tokens);
        }
        held.tokens += tokens;
        self.tokens += tokens;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut held = self.capacity.lock();
        held.requests -= 1;
        held.bytes -= self.bytes;
        held.tokens -= self.tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_at_each_limit_and_gives_back_on_drop() {
        let c = Capacity::new(CapacityLimits {
            requests: 2,
            bytes: 10,
            tokens: 100,
        });
        let mut a = c.reserve(6).unwrap();
        assert_eq!(c.reserve(5).unwrap_err(), CapacityExceeded::Bytes);
        let mut b = c.reserve(4).unwrap();
        assert_eq!(c.reserve(0).unwrap_err(), CapacityExceeded::Requests);
        a.add_tokens(90).unwrap();
        assert_eq!(b.add_tokens(11), Err(CapacityExceeded::Tokens));
        a.shrink_bytes(1);
        assert_eq!(c.held().bytes, 5);
        drop(a);
        assert_eq!(
            c.held(),
            Held {
                requests: 1,
                bytes: 4,
                tokens: 0
            }
        );
        b.add_tokens(1000).unwrap();
        drop(b);
        assert_eq!(c.held(), Held::default());
    }

    #[test]
    fn sixteen_threads_never_hold_more_than_the_limit() {
        let c = Capacity::new(CapacityLimits {
            requests: 3,
            bytes: 1000,
            tokens: 10,
        });
        std::thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| {
                    for _ in 0..500 {
                        if let Ok(r) = c.reserve(1) {
                            assert!(c.held().requests <= 3);
                            drop(r);
                        }
                    }
                });
            }
        });
        assert_eq!(c.held(), Held::default());
    }

    proptest! {
        #[test]
        fn held_is_the_sum_of_what_lives(ops in prop::collection::vec((0u8..3, 0usize..5, 0u64..5), 0..60)) {
            let c = Capacity::new(CapacityLimits { requests: 4, bytes: 12, tokens: 12 });
            let mut live: Vec<Reservation> = Vec::new();
            for (op, b, t) in ops {
                match op {
                    0 => if let Ok(r) = c.reserve(b) { live.push(r) },
                    1 => if let Some(r) = live.last_mut() { let _ = r.add_tokens(t); },
                    _ => { live.pop(); }
                }
                let held = c.held();
                prop_assert_eq!(held.requests, live.len());
                prop_assert_eq!(held.bytes, live.iter().map(|r| r.bytes).sum::<usize>());
                prop_assert_eq!(held.tokens, live.iter().map(|r| r.tokens).sum::<u64>());
                prop_assert!(held.requests <= 4);
            }
        }
    }
}
