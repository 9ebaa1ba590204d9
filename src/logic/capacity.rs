//! The capacity cap: how much unfinished work the server holds at most, in requests, body bytes and tokens.
//!
//! A request reserves its seat and its bytes before anything is done for it, and its tokens once they are
//! known. Each step is one atomic decision: two requests can't both take the last seat. What was reserved
//! comes back when the [`Reservation`] is dropped, wherever that happens.
//!
//! The best-effort lane has limits of its own beside the others', so that however full it is nobody else is
//! refused for it, and however full they are it has room of its own. Which lane a request is of is known only once it
//! is read: until then it sits where there is a seat, outside of the lane if it can.

use super::request::Lane;
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
    /// Any limit of the best-effort lane.
    BestEffort,
}

impl CapacityExceeded {
    /// The stable code that clients see.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Requests => "queue_full",
            Self::Bytes => "queue_bytes_full",
            Self::Tokens => "queue_tokens_full",
            Self::BestEffort => "best_effort_full",
        }
    }
}

/// The cap itself; shared by all that take from it.
#[derive(Debug)]
pub struct Capacity {
    /// Of each lane.
    limits: [CapacityLimits; 2],
    held: Mutex<[Held; 2]>,
}

impl Capacity {
    /// An empty house, in which the best-effort lane may hold as much as the others do.
    #[must_use]
    pub fn new(limits: CapacityLimits) -> Arc<Self> {
        Self::of_lanes([limits; 2])
    }

    /// An empty house with limits for each lane, in the order of [`Lane::ALL`].
    #[must_use]
    pub fn of_lanes(limits: [CapacityLimits; 2]) -> Arc<Self> {
        Arc::new(Self {
            limits,
            held: Mutex::default(),
        })
    }

    /// Every critical section leaves `Held` whole, so a panic elsewhere can't have broken it.
    fn lock(&self) -> MutexGuard<'_, [Held; 2]> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat and the bytes of a body, both or neither, for a request of either lane.
    /// [`Reservation::move_to`] comes next.
    ///
    /// # Errors
    /// Says which limit is reached outside of the best-effort lane, when that is full as well.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, CapacityExceeded> {
        let mut reservation = Reservation {
            capacity: Arc::clone(self),
            lane: Lane::Promised,
            held: Held::default(),
        };
        let wanted = Held {
            requests: 1,
            bytes,
            tokens: 0,
        };
        if let Err(full) = reservation.add(wanted) {
            reservation.lane = Lane::BestEffort;
            reservation.add(wanted).map_err(|_| full)?;
        }
        Ok(reservation)
    }

    fn fits(&self, lane: Lane, held: &[Held; 2], wanted: Held) -> Result<(), CapacityExceeded> {
        let i = lane.index();
        match (self.limits[i].exceeded(held[i], wanted), lane) {
            (None, _) => Ok(()),
            (Some(exceeded), Lane::Promised) => Err(exceeded),
            (Some(_), Lane::BestEffort) => Err(CapacityExceeded::BestEffort),
        }
    }

    /// What is held now outside of the best-effort lane.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held_by(Lane::Promised)
    }

    /// What a lane holds now.
    #[must_use]
    pub fn held_by(&self, lane: Lane) -> Held {
        self.lock()[lane.index()]
    }
}

impl CapacityLimits {
    /// Which limit would be exceeded by `wanted` beside `held`. Bytes and tokens of any single request fit into an
    /// empty house: a body is never larger than the body limit, and who may never come in would ask for ever.
    fn exceeded(&self, held: Held, wanted: Held) -> Option<CapacityExceeded> {
        if wanted.requests > 0 && held.requests >= self.requests {
            return Some(CapacityExceeded::Requests);
        }
        if wanted.bytes > 0 && held.requests > 0 && held.bytes + wanted.bytes > self.bytes {
            return Some(CapacityExceeded::Bytes);
        }
        if wanted.tokens > 0 && held.tokens > 0 && held.tokens + wanted.tokens > self.tokens {
            return Some(CapacityExceeded::Tokens);
        }
        None
    }
}

impl Held {
    fn add(&mut self, more: Self) {
        self.requests += more.requests;
        self.bytes += more.bytes;
        self.tokens += more.tokens;
    }

    fn take(&mut self, less: Self) {
        self.requests -= less.requests;
        self.bytes -= less.bytes;
        self.tokens -= less.tokens;
    }
}

/// A seat with its bytes and tokens; gives them back when dropped.
#[derive(Debug)]
pub struct Reservation {
    capacity: Arc<Capacity>,
    lane: Lane,
    held: Held,
}

impl Reservation {
    /// Takes more in its lane, all of it or nothing.
    fn add(&mut self, wanted: Held) -> Result<(), CapacityExceeded> {
        let mut held = self.capacity.lock();
        let lane = self.lane.index();
        self.capacity.fits(self.lane, &held, wanted)?;
        held[lane].add(wanted);
        self.held.add(wanted);
        Ok(())
    }

    /// Gives back what a body of unknown length turned out not to need.
    pub fn shrink_bytes(&mut self, bytes: usize) {
        let surplus = Held {
            bytes: self.held.bytes.saturating_sub(bytes),
            ..Held::default()
        };
        self.capacity.lock()[self.lane.index()].take(surplus);
        self.held.take(surplus);
    }

    /// Adds the tokens, once they are counted.
    ///
    /// # Errors
    /// When the server holds too many already; the seat is kept until the reservation is dropped.
    pub fn add_tokens(&mut self, tokens: u64) -> Result<(), CapacityExceeded> {
        self.add(Held {
            tokens,
            ..Held::default()
        })
    }

    /// Moves to a lane, with all that it holds.
    ///
    /// # Errors
    /// When that is full; nothing is changed then.
    pub fn move_to(&mut self, lane: Lane) -> Result<(), CapacityExceeded> {
        if self.lane == lane {
            return Ok(());
        }
        let mut held = self.capacity.lock();
        self.capacity.fits(lane, &held, self.held)?;
        held[self.lane.index()].take(self.held);
        held[lane.index()].add(self.held);
        self.lane = lane;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.capacity.lock()[self.lane.index()].take(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_at_each_limit_and_gives_back_on_drop() {
        let c = Capacity::of_lanes([2, 0].map(|requests| CapacityLimits {
            requests,
            bytes: 10,
            tokens: 100,
        }));
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
    fn the_best_effort_lane_holds_its_own_and_keeps_nobody_else_out() {
        let limits = |requests| CapacityLimits {
            requests,
            bytes: 10,
            tokens: 100,
        };
        let c = Capacity::of_lanes([limits(1), limits(2)]);
        let mut lane: Vec<_> = (0..2)
            .map(|_| {
                let mut r = c.reserve(4).unwrap();
                r.move_to(Lane::BestEffort).unwrap();
                r.add_tokens(30).unwrap();
                r
            })
            .collect();
        assert_eq!(c.held(), Held::default());
        let mut third = c.reserve(1).unwrap();
        let full = Err(CapacityExceeded::BestEffort);
        assert_eq!(third.move_to(Lane::BestEffort), full);
        assert_eq!(c.held().requests, 1, "it stays where it was");
        assert_eq!(lane[0].add_tokens(41), full);
        lane.clear();
        assert_eq!(c.held_by(Lane::BestEffort), Held::default());
        third.move_to(Lane::BestEffort).unwrap();
        drop(third);
        assert_eq!(c.held_by(Lane::BestEffort), Held::default());
    }

    #[test]
    fn sixteen_threads_never_hold_more_than_the_limit() {
        let c = Capacity::of_lanes([3, 2].map(|requests| CapacityLimits {
            requests,
            bytes: 1000,
            tokens: 10,
        }));
        std::thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| {
                    for _ in 0..500 {
                        if let Ok(r) = c.reserve(1) {
                            assert!(c.held().requests <= 3);
                            assert!(c.held_by(Lane::BestEffort).requests <= 2);
                            drop(r);
                        }
                    }
                });
            }
        });
        assert_eq!(Lane::ALL.map(|lane| c.held_by(lane)), [Held::default(); 2]);
    }

    #[test]
    fn who_comes_to_a_full_house_sits_in_the_lane_until_it_is_read() {
        let c = Capacity::of_lanes([1, 1].map(|requests| CapacityLimits {
            requests,
            bytes: 10,
            tokens: 100,
        }));
        let first = c.reserve(4).unwrap();
        let mut second = c.reserve(4).unwrap();
        assert_eq!(c.held_by(Lane::BestEffort).requests, 1);
        assert_eq!(c.reserve(1).unwrap_err(), CapacityExceeded::Requests);
        // One that yields to others stays; another one is refused for what is full, unless there is room by then.
        second.move_to(Lane::BestEffort).unwrap();
        let full = Err(CapacityExceeded::Requests);
        assert_eq!(second.move_to(Lane::Promised), full);
        drop(first);
        second.move_to(Lane::Promised).unwrap();
        let held = Held {
            requests: 1,
            bytes: 4,
            tokens: 0,
        };
        assert_eq!(
            Lane::ALL.map(|lane| c.held_by(lane)),
            [held, Held::default()]
        );
    }

    proptest! {
        #[test]
        fn held_is_the_sum_of_what_lives(ops in prop::collection::vec((0u8..5, 0usize..5, 0u64..5), 0..60)) {
            let c = Capacity::new(CapacityLimits { requests: 4, bytes: 12, tokens: 12 });
            let mut live: Vec<Reservation> = Vec::new();
            for (op, b, t) in ops {
                match op {
                    0 => if let Ok(r) = c.reserve(b) { live.push(r) },
                    1 => if let Some(r) = live.last_mut() { let _ = r.add_tokens(t); },
                    2 => if let Some(r) = live.last_mut() { let _ = r.move_to(Lane::BestEffort); },
                    3 => if let Some(r) = live.first_mut() { let _ = r.move_to(Lane::Promised); },
                    _ => { live.pop(); }
                }
                for lane in Lane::ALL {
                    let mut sum = Held::default();
                    live.iter().filter(|r| r.lane == lane).for_each(|r| sum.add(r.held));
                    prop_assert_eq!(c.held_by(lane), sum);
                    prop_assert!(sum.requests <= 4);
                }
            }
        }
    }
}
