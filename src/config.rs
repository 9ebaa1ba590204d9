//! The configuration: one typed [`Config`], read from a TOML file, the environment and flags, in that order of
//! increasing precedence. Unknown keys are refused, and every message names the key.

mod admission;
mod blame;
mod sections;
mod validate;

pub use admission::{AdmissionConfig, AdmissionMode};
pub use sections::{
    Auto, AutoOr, Backend, EngineConfig, FlashAttention, KvConfig, KvLayout, KvType,
    LifecycleConfig, LimitsConfig, LogConfig, LogFormat, ModelConfig, PolicyName, PrefixConfig,
    ReservationName, Reuse, RunnerConfig, SamplingConfig, SchedulerConfig, ServerConfig, SloConfig,
    socket_address,
};
pub use validate::CONFIDENCE;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::logic::capacity::CapacityLimits;
use crate::logic::conformal::policy::Fallback;
use crate::logic::kv::sizing::{GRAIN, Plan, Sizing};
use crate::logic::kv::{BLOCK_TOKENS, KvPool, Reservation};
use crate::logic::scheduler::StepLimits;
use crate::logic::scheduler::policy::Policy;
use crate::logic::wait_queue::QueueOrder;
use crate::model::fake::FakeConfig;

/// Every key with its default, as it is documented in the file itself.
pub const DEFAULT_TOML: &str = include_str!("../config/default.toml");

/// A configuration that could not be read; the text names the key, the file or the variable.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Everything that can be set. `config/default.toml` says what each key means.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: ServerConfig,
    pub model: ModelConfig,
    pub runner: RunnerConfig,
    pub kv: KvConfig,
    pub prefix: PrefixConfig,
    pub scheduler: SchedulerConfig,
    pub limits: LimitsConfig,
    pub sampling: SamplingConfig,
    pub slo: SloConfig,
    pub admission: AdmissionConfig,
    pub lifecycle: LifecycleConfig,
    pub engine: EngineConfig,
    pub log: LogConfig,
    pub fake: FakeConfig,
}

/// What the command line overrides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    pub listen: Option<SocketAddr>,
    pub backend: Option<Backend>,
    pub model: Option<PathBuf>,
}

impl Config {
    /// Reads the defaults, then `file`, then `CADENCED__SECTION__KEY` variables out of `env` (empty ones are
    /// as good as unset; one underscore after CADENCED is refused), then `flags`; and checks the whole.
    ///
    /// # Errors
    /// Names the key, the variable or the file at fault.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: &Flags,
    ) -> Result<Self, ConfigError> {
        use config::{File, FileFormat};
        let env = env.into_iter().collect::<Vec<_>>();
        if let Some(why) = env.iter().find_map(|(k, v)| blame::near_miss(k, v)) {
            return Err(ConfigError(why));
        }
        let vars = blame::ours(env);
        let mut builder =
            config::Config::builder().add_source(File::from_str(DEFAULT_TOML, FileFormat::Toml));
        let mut text = String::new();
        if let Some(path) = file {
            // Read here, so that the message carries the operating system's reason.
            text = std::fs::read_to_string(path)
                .map_err(|e| ConfigError(format!("cannot read {}: {e}", path.display())))?;
            toml_is_sound(path, &text)?;
            builder = builder.add_source(File::from_str(&text, FileFormat::Toml));
        }
        let mut config = builder
            .add_source(blame::environment(&vars))
            .build()
            .and_then(config::Config::try_deserialize::<Self>)
            .map_err(|e| {
                let file = file.map(|path| (path, text.as_str()));
                ConfigError(blame::explain(&e.to_string(), file, &vars))
            })?;
        if let Some(listen) = flags.listen {
            config.server.listen = listen;
        }
        if let Some(backend) = flags.backend {
            config.model.backend = backend;
        }
        if let Some(path) = &flags.model {
            config.model.path.clone_from(path);
        }
        validate::validate(&config)?;
        Ok(config)
    }

    /// How requests are scheduled.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let s = &self.scheduler;
        let max_running = s.max_running as usize;
        match s.policy {
            PolicyName::Fifo => Policy::Fifo,
            PolicyName::Static => Policy::StaticBatch {
                batch: max_running,
                fill_timeout: Duration::from_millis(s.fill_timeout_ms),
            },
            PolicyName::Continuous => Policy::Continuous {
                max_running,
                order: s.order,
            },
        }
    }

    /// In which order they wait: by deadline where iterations make that worth something.
    #[must_use]
    pub fn queue_order(&self) -> QueueOrder {
        match self.scheduler.policy {
            PolicyName::Fifo | PolicyName::Static => QueueOrder::Arrival,
            PolicyName::Continuous => QueueOrder::Deadline,
        }
    }

    /// The bounds of a step.
    #[must_use]
    pub fn step_limits(&self) -> StepLimits {
        StepLimits {
            prefill_budget: self.scheduler.prefill_budget,
            n_batch: self.runner.n_batch,
            lane_slowdown: self.scheduler.lane_slowdown,
        }
    }

    /// Whether requests may share the KV of their prefixes, if the model can.
    #[must_use]
    pub fn may_reuse(&self) -> bool {
        match self.prefix.reuse {
            Reuse::Off => false,
            Reuse::Auto => self.memory_shares(),
            Reuse::On => true,
        }
    }

    /// Whether sequences can begin with another's memory.
    fn memory_shares(&self) -> bool {
        self.kv.layout.resolved() == KvLayout::Streams
            || self.kv.reservation != ReservationName::Contiguous
    }

    /// The rung's name, as the ladder and `/stats` have it.
    #[must_use]
    pub fn rung(&self) -> &'static str {
        match self.admission.mode {
            AdmissionMode::Static => return "rung5-static",
            AdmissionMode::Conformal => {
                return match self.admission.unfit {
                    Fallback::Refuse => "rung5-conformal",
                    Fallback::BestEffort => "rung6-best-effort",
                };
            }
            AdmissionMode::Off | AdmissionMode::Observe => {}
        }
        match self.scheduler.policy {
            PolicyName::Fifo => "rung1-fifo",
            PolicyName::Static => "rung2-static",
            PolicyName::Continuous if self.may_reuse() => "rung4-cache",
            PolicyName::Continuous => "rung3-continuous",
        }
    }

    /// Sequence ids: one for each seat, and one for each that retires while the next takes its seat. Cached
    /// prefixes have one each; in a pool that is shared they cost nothing by themselves.
    #[must_use]
    pub fn sequences(&self) -> u32 {
        let shared = self.may_reuse() && self.kv.layout.resolved() == KvLayout::Unified;
        let wanted = if shared {
            validate::SEQUENCES_MAX
        } else {
            2 * self.policy().max_running() as u32
        };
        // llama.cpp aborts where it has more sequences than a batch has tokens. The seats always fit.
        wanted.min(validate::SEQUENCES_MAX).min(self.runner.n_batch)
    }

    /// Cells of the pool. `auto` must have been resolved by [`Self::sized`] before this means anything.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.kv.cells.or(0)
    }

    /// Resolves `kv.cells = "auto"`, and with it `kv.layout = "auto"`, for a model whose tokens take so many bytes
    /// in the pool and whose requests can have so many tokens, on a machine that has so much left. The plan is for
    /// the log; an explicit count needs none, and is a unified pool unless the layout is explicit too.
    ///
    /// # Errors
    /// When there is no room for a pool.
    pub fn sized(
        mut self,
        bytes_per_token: u64,
        context: u32,
        available: u64,
    ) -> Result<(Self, Option<Plan>), ConfigError> {
        if let AutoOr::Count(_) = self.kv.cells {
            return Ok((self, None));
        }
        let sizing = |sequences: u32, tokens: u64| Sizing {
            available,
            budget: self.kv.budget_mib << 20,
            utilisation: self.kv.utilisation,
            headroom: self.kv.headroom_mib << 20,
            bytes_per_token,
            tokens_max: u64::from(sequences) * tokens,
        };
        let context = u64::from(context);
        let slabs = sizing(self.sequences(), context.next_multiple_of(GRAIN));
        let pool = sizing(self.policy().max_running() as u32, context);
        if self.kv.layout == KvLayout::Auto && slabs.suits_streams(self.prefix.reuse != Reuse::Off)
        {
            self.kv.layout = KvLayout::Streams;
        }
        let sizing = match self.kv.layout.resolved() {
            KvLayout::Streams => slabs,
            _ => pool,
        };
        let plan = sizing.plan().ok_or_else(|| {
            if available == 0 {
                let what = "kv.cells: \"auto\" rests on the memory that is left, which /proc/meminfo does not say; give a number";
                return ConfigError(what.into());
            }
            ConfigError(format!(
                "kv.cells: {} MiB are left, and kv.utilisation, kv.headroom_mib and kv.budget_mib leave none \
                 of them",
                available >> 20
            ))
        })?;
        self.kv.cells = AutoOr::Count(plan.cells);
        validate::validate(&self)?;
        Ok((self, Some(plan)))
    }

    /// The books of the pool.
    #[must_use]
    pub fn kv_pool(&self) -> KvPool {
        let (cells, sequences) = (self.cells(), self.sequences());
        let reservation = match self.kv.reservation {
            ReservationName::Contiguous => Reservation::Contiguous {
                output_tokens: self.limits.max_output_tokens,
            },
            ReservationName::Request => Reservation::Request,
            ReservationName::Paged => Reservation::Paged {
                reserve_growth: self.kv.reserve_growth,
                watermark_blocks: (f64::from(cells / BLOCK_TOKENS) * self.kv.watermark) as u32,
            },
        };
        match self.kv.layout.resolved() {
            KvLayout::Streams => KvPool::streams(cells, sequences),
            _ => KvPool::unified(cells, sequences, reservation),
        }
    }

    /// The name under which clients ask for the model.
    #[must_use]
    pub fn model_name(&self) -> String {
        let m = &self.model;
        match (m.name.as_str(), m.backend) {
            ("", Backend::Fake) => "fake".into(),
            ("", Backend::Llama) => m
                .path
                .file_stem()
                .map_or_else(String::new, |s| s.to_string_lossy().into_owned()),
            (name, _) => name.to_owned(),
        }
    }

    /// The whole configuration as TOML, for `check-config`.
    ///
    /// # Errors
    /// Never in practice: every value has a TOML form.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|e| ConfigError(e.to_string()))
    }

    /// The capacity caps of the two lanes.
    #[must_use]
    pub fn capacities(&self) -> [CapacityLimits; 2] {
        let all = self.capacity();
        let part = |n: u64| (n as f64 * self.limits.best_effort_share).ceil() as u64;
        let best_effort = CapacityLimits {
            requests: part(all.requests as u64) as usize,
            bytes: part(all.bytes as u64) as usize,
            tokens: part(all.tokens),
        };
        [all, best_effort]
    }

    /// The capacity cap outside of the best-effort lane.
    #[must_use]
    pub fn capacity(&self) -> CapacityLimits {
        CapacityLimits {
            requests: self.limits.requests,
            bytes: self.limits.request_bytes,
            tokens: self.limits.tokens,
        }
    }
}

/// TOML's own errors, which name no file.
fn toml_is_sound(path: &Path, text: &str) -> Result<(), ConfigError> {
    config::Config::builder()
        .add_source(config::File::from_str(text, config::FileFormat::Toml))
        .build()
        .map(|_| ())
        .map_err(|e| {
            let why = blame::one_line(&e.to_string());
            ConfigError(format!("{}: {why}", path.display()))
        })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
