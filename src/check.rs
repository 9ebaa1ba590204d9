//! What `check-config` can tell beyond the configuration itself: whether the files that it names are there and are
//! what they should be.

use crate::config::{AdmissionMode, Backend, Config};
use crate::logic::conformal::artifact::Artifact;
use crate::model::llama::LoadedModel;

/// What would keep `serve` from starting, a line each, as far as it can be told without loading the model. Each is
/// what `serve` would say.
#[must_use]
pub fn obstacles(config: &Config) -> Vec<String> {
    let model = match config.model.backend {
        Backend::Llama => LoadedModel::check_files(&config.model).map(|_| ()),
        Backend::Fake => Ok(()),
    };
    let model = model.map_err(|e| e.to_string());
    [model, artifact(config)]
        .into_iter()
        .filter_map(Result::err)
        .collect()
}

fn artifact(config: &Config) -> Result<(), String> {
    let path = &config.admission.artifact;
    if config.admission.mode == AdmissionMode::Off || path.as_os_str().is_empty() {
        return Ok(());
    }
    let read = std::fs::read(path).map_err(|e| e.to_string());
    read.and_then(|bytes| Artifact::decode(&bytes).map_err(|e| e.to_string()))
        .map(|_| ())
        .map_err(|why| format!("admission.artifact: {}: {why}", path.display()))
}
