//! What `check-config` can tell beyond the configuration itself: whether the files that it names are there and are
//! what they should be.

use crate::config::{Backend, Config};
use crate::model::llama::LoadedModel;
use crate::promises;

/// What would keep `serve` from starting, a line each, as far as it can be told without loading the model. Each is
/// what `serve` would say.
#[must_use]
pub fn obstacles(config: &Config) -> Vec<String> {
    let model = match config.model.backend {
        Backend::Llama => LoadedModel::check_files(&config.model).map(|_| ()),
        Backend::Fake => Ok(()),
    };
    let model = model.map_err(|e| e.to_string());
    let calibration = promises::artifact(config).map(|_| ());
    [model, calibration]
        .into_iter()
        .filter_map(Result::err)
        .collect()
}
