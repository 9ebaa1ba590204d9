//! The daemon's clock: tokio's, so that a test can pause it, read as the logic's [`Timestamp`].

use crate::logic::time::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// Copies of a clock agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        // An origin a second back keeps 0 free to mean "never".
        let now = Instant::now();
        Self {
            origin: now.checked_sub(Duration::from_secs(1)).unwrap_or(now),
        }
    }

    /// The moment.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(0) + self.origin.elapsed()
    }
}
