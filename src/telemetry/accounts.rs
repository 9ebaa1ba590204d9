//! The account of outcomes: every request that reaches the server ends in exactly one, counted once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use super::metrics::Metrics;
use crate::logic::capacity::Reservation;
use crate::logic::request::{Outcome, RequestSpec};
use crate::logic::time::Timestamp;
use crate::reply::Usage;

/// Counts by outcome, with what is observed at the end of a request.
pub struct Accounts {
    ended: [AtomicU64; Outcome::ALL.len()],
    /// What a request that just disappears ended as: its client left, unless all of them are being cut.
    lost_as: AtomicU8,
    pub metrics: Metrics,
}

impl Accounts {
    /// Nothing has ended yet.
    #[must_use]
    pub fn new(metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            ended: std::array::from_fn(|_| AtomicU64::new(0)),
            lost_as: AtomicU8::new(Outcome::Cancelled.index() as u8),
            metrics,
        })
    }

    /// From now on, a request whose client is cut off by the server counts as `outcome`, not as cancelled.
    pub fn cut(&self, outcome: Outcome) {
        self.lost_as.store(outcome.index() as u8, Relaxed);
    }

    /// How many requests have ended as `outcome`.
    #[must_use]
    pub fn ended(&self, outcome: Outcome) -> u64 {
        self.ended[outcome.index()].load(Relaxed)
    }

    /// What `outcome` counts as.
    fn judge(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Cancelled => Outcome::ALL[usize::from(self.lost_as.load(Relaxed))],
            other => other,
        }
    }

    fn count(&self, outcome: Outcome) {
        let outcome = self.judge(outcome);
        self.ended[outcome.index()].fetch_add(1, Relaxed);
        self.metrics
            .requests
            .with_label_values(&[outcome.label()])
            .inc();
    }
}

/// A request's place in the account, made when it arrives. Dropped without an end it counts as cancelled:
/// that is what a dropped handler is.
pub struct Ticket {
    /// `None` for what is no client's request.
    accounts: Option<Arc<Accounts>>,
    /// The seat that the request holds; it comes back with the ticket.
    pub reservation: Option<Reservation>,
    ended: bool,
}

impl Ticket {
    /// For a request that has just arrived.
    #[must_use]
    pub fn new(accounts: Arc<Accounts>) -> Self {
        Self {
            accounts: Some(accounts),
            reservation: None,
            ended: false,
        }
    }

    /// For generations of the daemon's and its operator's own, which appear in no account of outcomes.
    #[must_use]
    pub fn uncounted() -> Self {
        Self {
            accounts: None,
            reservation: None,
            ended: false,
        }
    }

    /// The request was refused before it ran.
    pub fn refuse(mut self, outcome: Outcome) {
        self.count(outcome);
    }

    /// The request ended in the engine.
    pub fn end(
        mut self,
        outcome: Outcome,
        spec: &RequestSpec,
        usage: Usage,
        first_token_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        let Some(accounts) = &self.accounts else {
            return;
        };
        let outcome = accounts.judge(outcome);
        let metrics = &accounts.metrics;
        if let Some(first) = first_token_at {
            metrics
                .ttft
                .observe(first.since(spec.arrival).as_secs_f64());
        }
        if matches!(outcome, Outcome::Finished(_)) {
            metrics.e2e.observe(now.since(spec.arrival).as_secs_f64());
        }
        tracing::info!(
            request = %spec.id,
            outcome = outcome.label(),
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_ms = first_token_at.map(|t| t.since(spec.arrival).as_millis() as u64),
            e2e_ms = now.since(spec.arrival).as_millis() as u64,
            "request ended"
        );
        self.count(outcome);
    }

    fn count(&mut self, outcome: Outcome) {
        self.ended = true;
        if let Some(accounts) = &self.accounts {
            accounts.count(outcome);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            self.count(Outcome::Cancelled);
        }
    }
}
