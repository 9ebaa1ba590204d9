//! The rungs of the ladder: the daemon's own configuration, as far as its logic sees it.

use std::path::Path;

use anyhow::{Result, ensure};
use cadenced::config::{AdmissionMode, Config, Flags};
use cadenced::logic::capacity::CapacityLimits;
use cadenced::logic::scheduler::StepLimits;
use cadenced::logic::scheduler::policy::Policy;
use cadenced::logic::wait_queue::QueueOrder;

/// The rungs that it knows, below the repository's root.
pub const RUNGS: [&str; 7] = [
    "config/rung1-fifo.toml",
    "config/rung2-static.toml",
    "config/rung3-continuous.toml",
    "config/rung4-cache.toml",
    "config/rung5-static.toml",
    "config/rung5-conformal.toml",
    "config/rung6-best-effort.toml",
];

/// Those of them that admit up to the capacity cap, and need no calibration.
pub const CAPPED: [&str; 4] = [RUNGS[0], RUNGS[1], RUNGS[2], RUNGS[3]];

/// See the module's text. What stands beside `config` comes from there, and may be varied.
#[derive(Clone, PartialEq, Debug)]
pub struct Rung {
    pub name: &'static str,
    pub policy: Policy,
    pub order: QueueOrder,
    pub limits: StepLimits,
    pub capacity: CapacityLimits,
    /// Of the pool and the prefix cache.
    pub config: Config,
}

/// The configuration that `file` makes of the defaults; the defaults without one. The environment, which may
/// differ from one shell to the next, has no say.
///
/// # Errors
/// Names the key or the file at fault.
pub fn config(file: Option<&Path>) -> Result<Config> {
    Ok(Config::load(file, [], &Flags::default())?)
}

impl Rung {
    /// The rung that a configuration file describes, for a model that can share prefixes.
    ///
    /// # Errors
    /// See [`config`] and [`Self::of`].
    pub fn load(file: &Path) -> Result<Self> {
        Self::of(config(Some(file))?)
    }

    /// The same of a configuration.
    ///
    /// # Errors
    /// When it leaves the size of the pool to a machine.
    pub fn of(config: Config) -> Result<Self> {
        ensure!(
            config.cells() > 0,
            "kv.cells: \"auto\" means nothing without a machine"
        );
        Ok(Self {
            name: config.rung(),
            policy: config.policy(),
            order: config.queue_order(),
            limits: config.step_limits(),
            capacity: config.capacity(),
            config,
        })
    }

    /// The most tokens that one request may have.
    pub fn kv_cells(&self) -> u32 {
        self.config.kv_pool().sequence_tokens_max()
    }

    /// Whether there is a prefix cache.
    pub fn caches(&self) -> bool {
        self.config.may_reuse()
    }

    /// Whether a bound decides on what the cap lets pass.
    pub fn promises(&self) -> bool {
        matches!(
            self.config.admission.mode,
            AdmissionMode::Static | AdmissionMode::Conformal
        )
    }

    /// What may be held of each lane, in their order.
    pub fn capacities(&self) -> [CapacityLimits; 2] {
        let [_, best_effort] = self.config.capacities();
        [self.capacity, best_effort]
    }

    /// The same without a cap on what may wait.
    pub fn uncapped(self) -> Self {
        let capacity = CapacityLimits {
            requests: usize::MAX,
            bytes: usize::MAX,
            tokens: u64::MAX,
        };
        Self { capacity, ..self }
    }
}

#[cfg(test)]
impl Rung {
    pub fn files() -> [std::path::PathBuf; 7] {
        RUNGS.map(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file))
    }

    pub fn ladder() -> Vec<Self> {
        let rung = |file: std::path::PathBuf| Self::load(&file).unwrap();
        Self::files().into_iter().map(rung).collect()
    }

    pub fn fifo() -> Self {
        Self::ladder().swap_remove(0)
    }

    pub fn conformal() -> Self {
        Self::ladder().swap_remove(5)
    }

    pub fn best_effort() -> Self {
        Self::ladder().swap_remove(6)
    }

    pub fn continuous() -> Self {
        Self::ladder().swap_remove(2)
    }

    pub fn cache() -> Self {
        Self::ladder().swap_remove(3)
    }

    /// The same with a pool of so many cells.
    pub fn with_cells(mut self, cells: u32) -> Self {
        self.config.kv.cells = cadenced::config::AutoOr::Count(cells);
        self
    }
}
