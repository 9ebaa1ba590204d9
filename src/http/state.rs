//! What every HTTP thread shares.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::door::Door;
use super::openai::RequestLimits;
use crate::config::Config;
use crate::ids::RequestId;
use crate::lifecycle::Lifecycle;
use crate::logic::admission::RetryAfter;
use crate::logic::capacity::{Capacity, CapacityLimits};
use crate::logic::kv::sizing::Plan;
use crate::logic::request::Lane;
use crate::model::ModelFront;
use crate::system::{Engine, Shared};

/// A model that is loaded, behind an engine that runs.
pub struct Served {
    pub engine: Engine,
    pub front: ModelFront,
    /// As clients name it.
    pub name: String,
    /// Unix time at which it was loaded.
    pub created: u64,
    /// What `kv.cells = "auto"` came to; `None` if they were given.
    pub kv_plan: Option<Plan>,
}

/// See the module's text.
pub struct AppState {
    pub config: Config,
    pub shared: Shared,
    pub lifecycle: Lifecycle,
    pub capacity: Arc<Capacity>,
    /// The admin listener's: one at a time.
    admin_capacity: Arc<Capacity>,
    pub request_limits: RequestLimits,
    pub retry: RetryAfter,
    /// Set once the model is loaded; the server answers `/health` before.
    pub served: OnceLock<Arc<Served>>,
    next_id: AtomicU64,
}

impl AppState {
    /// The state of a server without a model yet.
    #[must_use]
    pub fn new(config: Config, shared: Shared) -> Self {
        Self {
            lifecycle: Lifecycle::default(),
            capacity: Capacity::of_lanes(config.capacities()),
            // One at a time, and no lane beside it.
            admin_capacity: Capacity::of_lanes([1, 0].map(|requests| CapacityLimits {
                requests,
                bytes: usize::MAX,
                tokens: u64::MAX,
            })),
            retry: RetryAfter {
                cap: std::time::Duration::from_secs(config.limits.retry_after_s_max),
            },
            served: OnceLock::new(),
            next_id: AtomicU64::new(1),
            shared,
            request_limits: RequestLimits::of(&config),
            config,
        }
    }

    /// Where a request takes its seat.
    #[must_use]
    pub fn seats(&self, door: Door) -> &Arc<Capacity> {
        match door {
            Door::Public => &self.capacity,
            Door::Admin => &self.admin_capacity,
        }
    }

    /// A fresh request's id.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Relaxed))
    }

    /// In how many seconds a client that is refused now should come back.
    #[must_use]
    pub fn retry_after(&self) -> u64 {
        let salt = self.next_id.fetch_add(1, Relaxed);
        let engine = self.shared.published.snapshot(Lane::Promised);
        self.retry.seconds(&engine, salt).into()
    }
}
