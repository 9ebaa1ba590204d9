//! One model file's place in the models folder.
//!
//! A file is written under a temporary name in the same folder, verified, synced and then
//! renamed, so that its final name always means a whole, verified file. Writers hold an
//! advisory lock; the kernel drops it when its holder dies, so whoever holds it may take
//! every temporary file of the slot for a dead attempt's.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::digest;
use super::error::{Error, Result};
use super::sidecar;

/// Temporary files of other models are left alone for this long: their pull may be resumed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// The file `file` of the folder `dir`, which need not exist yet.
#[derive(Debug, Clone)]
pub struct Slot<'a> {
    dir: &'a Path,
    file: String,
}

/// Exclusive right to write a slot, until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl<'a> Slot<'a> {
    pub fn new(dir: &'a Path, file: impl Into<String>) -> Self {
        Self {
            dir,
            file: file.into(),
        }
    }

    /// The final name.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.file)
    }

    /// A temporary file or folder; `tag` tells apart attempts that may not be mixed.
    pub fn part(&self, tag: &str) -> PathBuf {
        self.dir.join(format!(".{}.{tag}.part", self.file))
    }

    /// The SHA-256 that the file was last verified to have, if it is still the same file.
    pub fn recall(&self) -> Option<String> {
        sidecar::recall(&self.path())
    }

    /// Whether the file is remembered to have the checksum `expected`.
    pub fn recalled(&self, expected: &str) -> bool {
        self.recall().is_some_and(|sum| sum == expected)
    }

    /// Whether the file is there with the checksum `expected`, remembered or else computed.
    pub fn verified(&self, expected: &str) -> Result<bool> {
        if let Some(sum) = self.recall() {
            return Ok(sum == expected);
        }
        let path = self.path();
        if !path.try_exists().map_err(Error::io("look at", &path))? {
            return Ok(false);
        }
        if digest::sum_file(&path)?.sha256 != expected {
            tracing::warn!(file = %path.display(), "the file does not have the expected checksum");
            return Ok(false);
        }
        // The folder may be read-only for this user; then the next start hashes again.
        if let Err(error) = self.remember(expected) {
            tracing::debug!(%error, "checksum not remembered");
        }
        Ok(true)
    }

    /// Makes the folder and waits for the exclusive right to write this slot.
    pub fn lock(&self) -> Result<Lock> {
        fs::create_dir_all(self.dir).map_err(Error::io("create", self.dir))?;
        let path = lock_path(self.dir, &self.file);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                tracing::info!(model = %self.file, "waiting for another process that pulls it");
                file.lock().map_err(Error::io("lock", &path))?;
            }
            Err(TryLockError::Error(reason)) => return Err(Error::io("lock", &path)(reason)),
        }
        Ok(Lock { _file: file })
    }

    /// Removes what dead attempts left: this slot's but `keep`, and others' once abandoned.
    pub fn sweep(&self, _held: &Lock, keep: Option<&Path>) -> Result<()> {
        let entries = fs::read_dir(self.dir).map_err(Error::io("list", self.dir))?;
        for entry in entries {
            let path = entry.map_err(Error::io("list", self.dir))?.path();
            let name = path.file_name().and_then(|n| n.to_str());
            let Some(file) = name.and_then(model_of_part) else {
                continue;
            };
            if file == self.file {
                if Some(path.as_path()) != keep {
                    remove(&path)?;
                }
            } else if let Some(_lock) = self.lock_if_abandoned(file, &path) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Gives the verified file `part` its final name, durably.
    pub fn publish(&self, _held: &Lock, part: &Path, sha256: &str) -> Result<PathBuf> {
        let path = self.path();
        // Otherwise a crash could leave the name on disk without the bytes.
        File::open(part)
            .and_then(|file| file.sync_all())
            .map_err(Error::io("sync", part))?;
        fs::rename(part, &path).map_err(Error::io("rename to", &path))?;
        sync_dir(self.dir)?;
        self.remember(sha256)?;
        Ok(path)
    }

    fn remember(&self, sha256: &str) -> Result<()> {
        sidecar::remember(&self.path(), sha256, &self.part("sha256"))
    }

    fn lock_if_abandoned(&self, file: &str, part: &Path) -> Option<File> {
        let age = fs::metadata(part).ok()?.modified().ok()?.elapsed().ok()?;
        if age < ABANDONED {
            return None;
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(lock_path(self.dir, file))
            .ok()?;
        lock.try_lock().ok()?;
        Some(lock)
    }
}

/// Lock files stay: removing one while another process opens it would make two locks.
fn lock_path(dir: &Path, file: &str) -> PathBuf {
    dir.join(format!(".{file}.lock"))
}

/// The model file that a temporary file name (`.MODEL.TAG.part`) belongs to.
fn model_of_part(name: &str) -> Option<&str> {
    let tagged = name.strip_prefix('.')?.strip_suffix(".part")?;
    let (file, _tag) = tagged.rsplit_once('.')?;
    Some(file)
}

/// Removes a file or a folder, which may be gone already.
pub fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// A rename is durable once its folder is synced. Only Unix can open a folder as a file.
fn sync_dir(dir: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(Error::io("sync", dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn publishes_and_remembers() {
        let dir = tempfile::tempdir().unwrap();
        let slot = Slot::new(dir.path(), "m.gguf");
        assert!(!slot.verified("remembered").unwrap());
        let lock = slot.lock().unwrap();
        let part = slot.part("x");
        fs::write(&part, "GGUF").unwrap();
        slot.publish(&lock, &part, "remembered").unwrap();
        assert!(slot.verified("remembered").unwrap());
        assert!(!slot.verified("another").unwrap());
        assert!(!part.exists());
    }

    #[test]
    fn sweeps_only_dead_attempts() {
        let dir = tempfile::tempdir().unwrap();
        let slot = |name| Slot::new(dir.path(), name);
        let (mine, other, busy) = (slot("a.gguf"), slot("b.gguf"), slot("c.gguf"));
        let old = SystemTime::now() - 2 * ABANDONED;
        let write = |path: &Path, modified| {
            fs::write(path, "x").unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(modified).unwrap();
        };
        let now = SystemTime::now();
        write(&mine.part("keep"), now);
        write(&mine.part("dead"), now);
        fs::create_dir(mine.part("wheels")).unwrap();
        write(&other.part("old"), old);
        write(&other.part("recent"), now);
        write(&busy.part("old"), old);
        write(&mine.path(), old);
        let _busy = busy.lock().unwrap();

        let lock = mine.lock().unwrap();
        mine.sweep(&lock, Some(&mine.part("keep"))).unwrap();
        for gone in [mine.part("dead"), mine.part("wheels"), other.part("old")] {
            assert!(!gone.exists(), "{}", gone.display());
        }
        for kept in [
            mine.part("keep"),
            other.part("recent"),
            busy.part("old"),
            mine.path(),
        ] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }
}
