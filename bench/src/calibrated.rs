//! A daemon on the fake backend that makes promises: calibrated as anybody's is, by `cadenced calibrate`, for the settings
//! that it then serves with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cadenced::calibrate::Manifest;
use cadenced::config::{Backend, Config, Flags};
use tempfile::TempDir;

use crate::daemon::{self, Daemon};

/// The rung that is calibrated and serves.
pub const RUNG: &str = "config/rung5-conformal.toml";
/// Two to fit on, one to calibrate, one to test.
const ROUNDS: &str = "4";

/// See the module's text. Its calibration file is gone when it is.
pub struct Calibrated {
    binary: PathBuf,
    _folder: TempDir,
    pub file: PathBuf,
    /// With the file's name among them.
    settings: Vec<(String, String)>,
    pub saturation_per_s: f64,
}

impl Calibrated {
    /// Calibrates `binary` with these settings (section.key, value) for so many minutes.
    ///
    /// # Errors
    /// When it can't be calibrated.
    pub fn make(binary: &Path, settings: &[(&str, &str)], minutes: f64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("calibration.bin");
        let settings = settings.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        let mut settings: Vec<(String, String)> = settings.collect();
        let mut command = Command::new(binary);
        command
            .args(["calibrate", "--config", RUNG, "--backend", "fake"])
            .args(["--rounds", ROUNDS, "--minutes", &minutes.to_string()])
            .arg("--out")
            .arg(&file)
            .arg(daemon::WHILE_WE_LIVE)
            .envs(settings.iter().map(|(k, v)| (daemon::variable(k), v)))
            .stdin(Stdio::piped());
        let mut child = command.spawn()?;
        // `wait` would close it first, and the calibration would end.
        let alive = child.stdin.take();
        let status = child.wait()?;
        drop(alive);
        ensure!(status.success(), "the calibration failed: {status}");
        let manifest = folder.path().join("calibration.bin.work/manifest.json");
        let text = std::fs::read_to_string(&manifest).context("the calibration's manifest")?;
        let manifest: Manifest = serde_json::from_str(&text)?;
        settings.push((
            "admission.artifact".into(),
            file.to_string_lossy().into_owned(),
        ));
        Ok(Self {
            binary: binary.to_owned(),
            _folder: folder,
            file,
            settings,
            saturation_per_s: manifest.saturation_per_s,
        })
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it does not start, or promises nothing.
    pub fn start(&self) -> Result<Daemon> {
        let args = ["--config", RUNG, "--backend", "fake"];
        armed(Daemon::start(&self.binary, &args, &self.settings)?)
    }

    /// What it is started with.
    ///
    /// # Errors
    /// Names the key at fault.
    pub fn config(&self) -> Result<Config> {
        let settings = self.settings.iter();
        let variables = settings.map(|(k, v)| (daemon::variable(k), v.clone()));
        let flags = Flags {
            backend: Some(Backend::Fake),
            ..Flags::default()
        };
        Ok(Config::load(Some(RUNG.as_ref()), variables, &flags)?)
    }
}

/// The daemon, if it makes promises.
///
/// # Errors
/// When its calibration is of another engine, or too small.
pub fn armed(daemon: Daemon) -> Result<Daemon> {
    let admission = daemon.stats()?["admission"].take();
    ensure!(
        admission["armed"] == true && admission["artifact_mismatch"] == false,
        "the daemon promises nothing: {admission}"
    );
    Ok(daemon)
}
