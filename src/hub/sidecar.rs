//! `NAME.gguf.sha256`: the remembered verification of a model file.
//!
//! Hashing a model takes as long as reading it, so it is done once. The sidecar also notes
//! the file's size and modification time, and holds only while both are unchanged. It is
//! what `sha256sum` writes (which skips the comment line), so `sha256sum -c` checks it.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::error::{Error, Result};

/// Where the sidecar of `model` lies.
pub fn path_of(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".sha256");
    PathBuf::from(name)
}

/// The remembered SHA-256 of `model`; `None` when there is none or the file has changed.
pub fn recall(model: &Path) -> Option<String> {
    let text = fs::read_to_string(path_of(model)).ok()?;
    let (stamped, line) = text.split_once('\n')?;
    let (sha256, _) = line.split_once("  ")?;
    (stamped == stamp(&fs::metadata(model).ok()?)?).then(|| sha256.to_owned())
}

/// Remembers that `model` was verified, by way of the file `temporary`.
pub fn remember(model: &Path, sha256: &str, temporary: &Path) -> Result<()> {
    let metadata = fs::metadata(model).map_err(Error::io("look at", model))?;
    let (Some(stamp), Some(name)) = (stamp(&metadata), model.file_name()) else {
        return Ok(()); // Without a modification time there is nothing to compare later.
    };
    let text = format!("{stamp}\n{sha256}  {}\n", name.display());
    fs::write(temporary, text).map_err(Error::io("write", temporary))?;
    let path = path_of(model);
    fs::rename(temporary, &path).map_err(Error::io("rename to", &path))
}

fn stamp(metadata: &Metadata) -> Option<String> {
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!(
        "# size={} mtime_ns={}",
        metadata.len(),
        modified.as_nanos()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    #[test]
    fn holds_until_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (model, temporary) = (dir.path().join("m.gguf"), dir.path().join("t"));
        fs::write(&model, "GGUF1").unwrap();
        assert_eq!(recall(&model), None);
        remember(&model, "abc", &temporary).unwrap();
        assert_eq!(recall(&model).as_deref(), Some("abc"));
        assert!(!temporary.exists());

        let later = SystemTime::now() + Duration::from_secs(5);
        File::open(&model).unwrap().set_modified(later).unwrap();
        assert_eq!(recall(&model), None);

        remember(&model, "abc", &temporary).unwrap();
        fs::write(&model, "GGUF22").unwrap();
        File::open(&model).unwrap().set_modified(later).unwrap();
        assert_eq!(recall(&model), None);

        fs::write(path_of(&model), "garbage").unwrap();
        assert_eq!(recall(&model), None);
    }
}
