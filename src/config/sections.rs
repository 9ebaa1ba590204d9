//! The sections of the configuration. `config/default.toml` says what each key means.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::logic::prefix::EvictionOrder;
use crate::logic::scheduler::policy::StepOrder;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// The operator's own; empty = none.
    #[serde(with = "address_or_empty")]
    pub admin_listen: Option<SocketAddr>,
    /// HTTP threads; 0 = one for each four cores, at least one.
    pub workers: usize,
    pub keep_alive_s: u64,
    pub request_timeout_s: u64,
    pub body_bytes_max: usize,
    pub sse_keep_alive_s: u64,
}

/// An IP address and a port.
///
/// # Errors
/// Says so, where `text` is something else, such as a name.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?}: an IP address and a port are needed, such as 127.0.0.1:8000")
    })
}

fn address<'a, D: serde::Deserializer<'a>>(from: D) -> Result<SocketAddr, D::Error> {
    socket_address(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// An address, or the empty text for none.
mod address_or_empty {
    use super::{Deserialize, SocketAddr, socket_address};
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(a: &Option<SocketAddr>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&a.map_or_else(String::new, |a| a.to_string()))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(from)?;
        if text.is_empty() {
            return Ok(None);
        }
        socket_address(&text).map(Some).map_err(D::Error::custom)
    }
}

/// Which model computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    Llama,
    Fake,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    pub backend: Backend,
    pub path: PathBuf,
    /// The name that clients see; empty = the file's name without its ending.
    pub name: String,
    /// A Jinja file that replaces the model's own chat template; empty = the model's own.
    pub chat_template: PathBuf,
    pub gpu_layers: u32,
}

/// `auto`, or a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "\"auto\" or a number from 0 on is needed")]
pub enum AutoOr {
    Auto(Auto),
    Count(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Auto {
    Auto,
}

impl AutoOr {
    /// The number, or what `auto` stands for.
    #[must_use]
    pub fn or(self, auto: u32) -> u32 {
        match self {
            Self::Auto(_) => auto,
            Self::Count(n) => n,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlashAttention {
    Auto,
    On,
    Off,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerConfig {
    pub threads: AutoOr,
    pub threads_batch: AutoOr,
    pub n_batch: u32,
    pub n_ubatch: u32,
    pub flash_attention: FlashAttention,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// The one that measured best here, where the model and the device can; else f16.
    Auto,
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvConfig {
    pub cells: AutoOr,
    pub budget_mib: u64,
    pub utilisation: f64,
    pub headroom_mib: u64,
    pub layout: KvLayout,
    pub type_k: KvType,
    pub type_v: KvType,
    pub reservation: ReservationName,
    pub reserve_growth: bool,
    pub watermark: f64,
}

/// How llama.cpp lays the KV of sequences out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvLayout {
    Auto,
    /// One pool of cells, which sequences share.
    Unified,
    /// Cells of its own for each sequence.
    Streams,
}

impl KvLayout {
    /// What `auto` stands for where [`Config::sized`](super::Config::sized) has not chosen: the layout that bounds no
    /// request by a slab and in which sharing a prefix costs nothing.
    #[must_use]
    pub fn resolved(self) -> Self {
        match self {
            Self::Auto => Self::Unified,
            explicit => explicit,
        }
    }
}

/// How much memory a request takes when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationName {
    Contiguous,
    Request,
    Paged,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixConfig {
    pub reuse: Reuse,
    pub eviction: EvictionOrder,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// Where the model can.
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    Fifo,
    Static,
    Continuous,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerConfig {
    pub policy: PolicyName,
    pub max_running: u32,
    pub fill_timeout_ms: u64,
    pub prefill_budget: u32,
    pub lane_slowdown: f64,
    pub order: StepOrder,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    pub requests: usize,
    pub request_bytes: usize,
    pub tokens: u64,
    pub best_effort_share: f64,
    pub max_output_tokens: u32,
    pub default_max_tokens: u32,
    pub unread_bytes: usize,
    pub retry_after_s_max: u64,
}

/// Of what a request leaves out.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingConfig {
    /// 0 = greedy.
    pub temperature: f64,
    /// 1 = off.
    pub top_p: f64,
    /// 0 = off.
    pub top_k: u32,
    /// 0 = off.
    pub min_p: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SloConfig {
    /// 0 = none.
    pub e2e_ms: u64,
    /// 0 = none.
    pub ttft_ms: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LifecycleConfig {
    pub drain_grace_ms: u64,
    pub drain_limit_s: u64,
    pub step_age_limit_s: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    pub check_invariants: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    pub filter: String,
    pub format: LogFormat,
}
