//! Logs, to standard error.

use crate::config::{LogConfig, LogFormat};
use tracing_subscriber::EnvFilter;

/// Starts logging.
///
/// # Errors
/// Names `log.filter` when it is no filter.
pub fn start(config: &LogConfig) -> Result<(), crate::config::ConfigError> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|e| crate::config::ConfigError(format!("log.filter: {e}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second start in one process (tests) keeps the first.
    let _ = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(())
}
