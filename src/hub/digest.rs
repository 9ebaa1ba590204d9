//! Sizes, SHA-256 sums and the GGUF magic: what a file must pass before it gets its name.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};

const MAGIC: &[u8; 4] = b"GGUF";

/// Reads and writes of this size keep the hash, not the system call, the cost.
const CHUNK: usize = 256 * 1024;

/// Writes through to `inner` and sums up what it wrote, so a download is read only once.
#[derive(Debug)]
pub struct Summing<W> {
    inner: W,
    hasher: Sha256,
    bytes: u64,
}

/// The size and sum of some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    pub bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

impl<W> Summing<W> {
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            hasher: Sha256::new(),
            bytes: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn sum(&self) -> Sum {
        Sum {
            bytes: self.bytes,
            sha256: hex(&self.hasher.clone().finalize()),
        }
    }
}

impl Summing<File> {
    /// Opens `path` to append, with what it already holds summed up.
    pub fn append(path: &Path) -> Result<Self> {
        let mut file = File::options()
            .create(true)
            .read(true)
            .append(true)
            .open(path)
            .map_err(Error::io("open", path))?;
        let mut sink = Summing::new(io::sink());
        copy(&mut file, &mut sink).map_err(Error::io("read", path))?;
        Ok(Self {
            inner: file,
            hasher: sink.hasher,
            bytes: sink.bytes,
        })
    }

    /// Throws away what was written so far.
    pub fn restart(&mut self, path: &Path) -> Result<()> {
        self.inner.set_len(0).map_err(Error::io("truncate", path))?;
        self.hasher = Sha256::new();
        self.bytes = 0;
        Ok(())
    }
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buf)?;
        self.hasher.update(&buf[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Sums up the file at `path`.
pub fn sum_file(path: &Path) -> Result<Sum> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut sink = Summing::new(io::sink());
    copy(&mut file, &mut sink).map_err(Error::io("read", path))?;
    Ok(sink.sum())
}

/// `io::copy` with a buffer that suits files of many megabytes.
pub fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => {
                to.write_all(&buffer[..n])?;
                total += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Refuses a sum other than the expected one; `what` names the bytes to the user.
pub fn require(what: &str, sum: &Sum, size: Option<u64>, sha256: Option<&str>) -> Result<()> {
    // The checksum first: it names the content, and a wrong size is wrong content.
    if let Some(expected) = sha256
        && sum.sha256 != expected
    {
        return Err(Error::Checksum {
            what: format!("{what} ({} bytes)", sum.bytes),
            expected: expected.to_owned(),
            actual: sum.sha256.clone(),
        });
    }
    match size {
        Some(expected) if sum.bytes != expected => Err(Error::Size {
            what: what.to_owned(),
            expected,
            actual: sum.bytes,
        }),
        _ => Ok(()),
    }
}

/// Refuses a file that does not start as GGUF does; `what` names it to the user.
pub fn require_gguf(what: &str, path: &Path) -> Result<()> {
    let mut head = Vec::with_capacity(MAGIC.len());
    File::open(path)
        .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head))
        .map_err(Error::io("read", path))?;
    if head == MAGIC {
        return Ok(());
    }
    Err(Error::NotGguf {
        what: what.to_owned(),
        found: if head.is_empty() {
            "nothing (it is empty)".to_owned()
        } else {
            format!("`{}`", head.escape_ascii())
        },
    })
}

/// In lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn sums_while_writing_and_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        Summing::append(&path).unwrap().write_all(b"ab").unwrap();
        let mut again = Summing::append(&path).unwrap();
        assert_eq!(again.bytes(), 2);
        again.write_all(b"c").unwrap();
        let sum = again.sum();
        assert_eq!((sum.bytes, sum.sha256.as_str()), (3, ABC));
        assert_eq!(sum_file(&path).unwrap(), sum);

        again.restart(&path).unwrap();
        again.write_all(b"abc").unwrap();
        assert_eq!(again.sum().sha256, ABC);
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
    }

    #[test]
    fn names_both_sums_and_both_sizes() {
        let sum = Sum {
            bytes: 3,
            sha256: ABC.to_owned(),
        };
        require("x", &sum, Some(3), Some(ABC)).unwrap();
        let text = require("x", &sum, Some(3), Some("00"))
            .unwrap_err()
            .to_string();
        assert!(text.contains(ABC) && text.contains("expected 00"), "{text}");
        let text = require("x", &sum, Some(4), None).unwrap_err().to_string();
        assert_eq!(text, "x: 3 bytes, expected 4; refused");
    }

    #[test]
    fn knows_gguf() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"GGUF\x03").unwrap();
        require_gguf("x", &path).unwrap();
        std::fs::write(&path, b"<htm").unwrap();
        let text = require_gguf("x", &path).unwrap_err().to_string();
        assert!(text.ends_with("starts with `<htm`"), "{text}");
        std::fs::write(&path, b"").unwrap();
        require_gguf("x", &path).unwrap_err();
    }
}
