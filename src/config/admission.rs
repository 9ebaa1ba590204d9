//! Section `[admission]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::logic::conformal::policy::Fallback;

/// Who is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionMode {
    Off,
    Observe,
    Static,
    Conformal,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmissionConfig {
    pub mode: AdmissionMode,
    pub confidence: f64,
    /// Empty = none.
    pub artifact: PathBuf,
    pub trust_artifact: bool,
    pub explore_every: u32,
    pub learn_completions: usize,
    pub unfit: Fallback,
    pub recheck: bool,
    pub review_every: u64,
    /// Empty = none.
    pub traces: PathBuf,
    pub trace_bytes_max: u64,
}
