//! Where the daemon is in its life, and the one signal that ends every open reply at once.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::watch;

use crate::error::ServeError;

/// The phases, in order. Nothing goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// The model is loading or warming up.
    Starting,
    Ready,
    /// Not ready any more, but still accepting: a balancer shall notice first.
    Leaving,
    /// New work is refused; what is in flight goes on.
    Draining,
}

/// Shared by all HTTP threads and the main task.
#[derive(Debug)]
pub struct Lifecycle {
    phase: watch::Sender<Phase>,
    /// Set once, when every open reply shall end with this error.
    cut: watch::Sender<Option<ServeError>>,
    in_flight: AtomicUsize,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Starting),
            cut: watch::Sender::new(None),
            in_flight: AtomicUsize::new(0),
        }
    }
}

impl Lifecycle {
    #[must_use]
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Moves on to `phase`; never back.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }

    /// Ends every open reply with `error`, and every later one.
    pub fn cut(&self, error: ServeError) {
        self.cut.send_replace(Some(error));
    }

    /// Resolves when replies are cut.
    pub fn when_cut(&self) -> impl Future<Output = ServeError> + Send + 'static {
        let mut cut = self.cut.subscribe();
        async move {
            let error = cut
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|error| error.clone());
            match error {
                Some(error) => error,
                // The daemon itself is gone.
                None => std::future::pending().await,
            }
        }
    }

    /// Requests whose reply is not sent to its end.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    pub(crate) fn request_began(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    pub(crate) fn request_ended(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }
}
