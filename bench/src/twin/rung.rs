//! The rungs of the ladder: the daemon's own configuration, as far as its logic sees it.

use std::path::Path;

use anyhow::Result;
use cadenced::config::{Config, Flags};
use cadenced::logic::capacity::CapacityLimits;
use cadenced::logic::scheduler::StepLimits;
use cadenced::logic::scheduler::policy::Policy;
use cadenced::logic::wait_queue::QueueOrder;

/// The configurations of the rungs that exist, below the repository's root.
pub const RUNGS: [&str; 3] = [
    "config/rung1-fifo.toml",
    "config/rung2-static.toml",
    "config/rung3-continuous.toml",
];

/// See the module's text.
#[derive(Clone, PartialEq, Debug)]
pub struct Rung {
    pub name: &'static str,
    pub policy: Policy,
    pub order: QueueOrder,
    pub limits: StepLimits,
    pub kv_cells: u32,
    /// Sequence ids.
    pub sequences: u32,
    pub capacity: CapacityLimits,
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
    /// The rung that a configuration file describes.
    ///
    /// # Errors
    /// See [`config`].
    pub fn load(file: &Path) -> Result<Self> {
        Ok(Self::of(&config(Some(file))?))
    }

    fn of(config: &Config) -> Self {
        Self {
            name: config.policy().rung(),
            policy: config.policy(),
            order: config.queue_order(),
            limits: config.step_limits(),
            kv_cells: config.kv.cells,
            sequences: config.sequences(),
            capacity: config.capacity(),
        }
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
    pub fn files() -> [std::path::PathBuf; 3] {
        RUNGS.map(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file))
    }

    pub fn ladder() -> Vec<Self> {
        let rung = |file: std::path::PathBuf| Self::load(&file).unwrap();
        Self::files().into_iter().map(rung).collect()
    }

    pub fn fifo() -> Self {
        Self::ladder().swap_remove(0)
    }

    pub fn continuous() -> Self {
        Self::ladder().swap_remove(2)
    }
}
