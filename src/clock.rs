//! The daemon's clock: tokio's, so that it can be paused, read as the logic's [`Timestamp`].

use crate::logic::time::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// When a clock starts: 0 is free to mean "never".
const START: Timestamp = Timestamp(1_000_000);

/// Copies of a clock agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// Of tokio's time for one of the daemon's.
    stretch: u32,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
            stretch: 1,
        }
    }

    /// A clock for a runtime whose time is paused: tokio's timers fire at whole milliseconds, each of which is a
    /// microsecond here, so that a sleep ends when it should and not at the next tick.
    #[must_use]
    pub fn start_virtual() -> Self {
        Self {
            stretch: 1000,
            ..Self::start()
        }
    }

    /// The moment.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        START + self.origin.elapsed() / self.stretch
    }

    /// What to ask of tokio's timers for so long.
    #[must_use]
    pub fn for_timer(&self, span: Duration) -> Duration {
        span * self.stretch
    }

    /// Sleeps so long.
    pub async fn sleep(&self, span: Duration) {
        tokio::time::sleep(self.for_timer(span)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_virtual_clock_sleeps_to_the_microsecond() {
        let (clock, ticking) = (Clock::start_virtual(), Clock::start());
        for us in [1, 10_534, 7, 3_600_000_001] {
            let (before, tick) = (clock.now(), ticking.now());
            clock.sleep(Duration::from_micros(us)).await;
            assert_eq!(clock.now().since(before), Duration::from_micros(us));
            assert_eq!(ticking.now().since(tick), Duration::from_millis(us));
        }
        let before = ticking.now();
        ticking.sleep(Duration::from_micros(10_534)).await;
        assert_eq!(ticking.now().since(before), Duration::from_millis(11));
    }
}
