//! `cadenced model pull`: a model into the models folder, in the format in which it serves best.

use std::path::{Path, PathBuf};

use crate::hub::{Error, Hub};
use crate::model::quantize;

/// Fetches and verifies `name`; if this release serves it in another format, makes that once. Gives the path
/// of the file to serve.
///
/// # Errors
/// Names the file, the package or the URL, and the reason.
pub fn pull(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let hub = Hub::new(dir);
    let pulled = hub.pull(name)?;
    match hub.derive(name, quantize::to_q4_0) {
        Ok(derived) => Ok(derived.path),
        Err(Error::NothingToDerive { .. }) => Ok(pulled.path),
        Err(e) => Err(e.into()),
    }
}
