//! Logs, to standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
use crate::logic::kv::sizing::Plan;
use crate::model::EffectiveSettings;

/// Starts logging.
///
/// # Errors
/// Names `log.filter` when it is no filter.
pub fn start(config: &LogConfig) -> Result<(), crate::config::ConfigError> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|e| crate::config::ConfigError(format!("log.filter: {e}")))?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        // They would go to standard error as well, and panic where it is what failed.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // A second start in one process (tests) keeps the first.
    let _ = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(())
}

/// Tells what `kv.cells = "auto"` came to.
pub(crate) fn planned(plan: &Plan) {
    tracing::info!(
        cells = plan.cells,
        kv_bytes = plan.kv_bytes,
        bytes_per_token = plan.bytes_per_token,
        available_bytes = plan.available_bytes,
        bound = format!("{:?}", plan.bound).to_lowercase(),
        "kv.cells = \"auto\""
    );
}

/// Tells that the engine runs, and what was made of its settings.
pub(crate) fn engine_started(context: u32, effective: &EffectiveSettings) {
    let e = effective;
    tracing::info!(
        context,
        threads = e.threads,
        threads_batch = e.threads_batch,
        wait_policy = e.wait_policy,
        n_batch = e.n_batch,
        n_ubatch = e.n_ubatch,
        kv_cells = e.kv_cells,
        kv_layout = e.kv_layout,
        kv_type_k = e.kv_type_k,
        kv_type_v = e.kv_type_v,
        flash_attention = e.flash_attention,
        partial_removal = e.partial_removal,
        prefix_reuse = e.prefix_reuse,
        model_bytes = e.model_bytes,
        kv_bytes = e.kv_bytes,
        compute_bytes = e.compute_bytes,
        "engine started"
    );
}
