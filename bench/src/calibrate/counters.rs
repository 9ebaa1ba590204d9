//! What the daemon counts and times by itself, at a moment.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::daemon;
use crate::prometheus::{Histogram, value};

/// What the daemon has counted at a moment.
pub struct Counters {
    /// The model's part of each step.
    pub model: Histogram,
    host: Histogram,
    /// Tokens sampled.
    pub generated: f64,
}

impl Counters {
    /// # Errors
    /// When the daemon does not tell.
    pub fn read(addr: SocketAddr) -> Result<Self> {
        let get = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (_, text) = daemon::request(addr, get)?;
        let counter = |name: &str| value(&text, name).with_context(|| format!("no {name}"));
        Ok(Self {
            model: Histogram::read(&text, "cadenced_step_model_seconds"),
            host: Histogram::read(&text, "cadenced_step_host_seconds"),
            generated: counter("cadenced_generated_tokens_total")?,
        })
    }

    /// What `steps` steps since `earlier` took: a step that only gives memory back takes no time, but
    /// is counted.
    pub fn seconds_since(&self, earlier: &Self, steps: f64) -> f64 {
        let host = self.host.since(&earlier.host);
        self.model.since(&earlier.model).sum + steps * host.mean()
    }
}
