//! The daemon that is calibrated: this program itself, serving on a port of its own, in a process that ends with
//! this one. Requests reach it as they reach any daemon, over HTTP.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::Failure;
use crate::config::{AdmissionConfig, AdmissionMode, Config, LogConfig, LogFormat};

const POLL: Duration = Duration::from_millis(20);

/// This very program, also when its file has been replaced meanwhile.
const SELF: &str = "/proc/self/exe";

/// See the module's text. Killed when dropped.
pub struct Daemon {
    child: Child,
    http: reqwest::Client,
    url: String,
    log: PathBuf,
}

/// `config` as it is while a calibration is collected: nothing is refused for its bound or learnt meanwhile, and
/// every request is traced.
pub fn collecting(config: &Config, traces: &Path) -> Config {
    let mut config = config.clone();
    config.server.listen = ([127, 0, 0, 1], 0).into();
    config.log = LogConfig {
        filter: "info".into(),
        format: LogFormat::Text,
    };
    config.admission = AdmissionConfig {
        mode: AdmissionMode::Off,
        artifact: PathBuf::new(),
        traces: traces.to_owned(),
        // Never put aside.
        trace_bytes_max: 1 << 40,
        ..config.admission
    };
    config
}

impl Daemon {
    /// Starts it with `config`, which goes to a file of `folder` as its log does, and waits until it is ready.
    ///
    /// # Errors
    /// With the end of its log, when it ends instead.
    pub async fn start(config: &Config, folder: &Path) -> Result<Self, Failure> {
        let internal = |e: &dyn std::fmt::Display| Failure::Internal(format!("the daemon: {e}"));
        let file = folder.join("daemon.toml");
        let text = config.to_toml().map_err(|e| internal(&e))?;
        std::fs::write(&file, text).map_err(|e| internal(&e))?;
        let path = folder.join("daemon.log");
        let log = File::create(&path).map_err(|e| internal(&e))?;
        let program = match Path::new(SELF) {
            own if own.exists() => own.to_owned(),
            _ => std::env::current_exe().map_err(|e| internal(&e))?,
        };
        let mut command = Command::new(program);
        command
            .args(["serve", "--while-stdin-is-open", "--config"])
            .arg(&file)
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        // The file says everything, and no supervisor waits for this one.
        let ours = |k: &std::ffi::OsString| k.to_string_lossy().starts_with("CADENCED__");
        for variable in std::env::vars_os().map(|(k, _)| k).filter(ours) {
            command.env_remove(variable);
        }
        for variable in [
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
            "LISTEN_FDS",
        ] {
            command.env_remove(variable);
        }
        let child = command.spawn().map_err(|e| internal(&e))?;
        // Not by way of a proxy that the environment names.
        let http = reqwest::Client::builder().no_proxy().build();
        let mut this = Self {
            child,
            http: http.map_err(|e| internal(&e))?,
            url: String::new(),
            log: path,
        };
        while this.url.is_empty() {
            this.pause().await?;
            let log = this.log_text();
            let address = log
                .lines()
                .find_map(|l| Some(l.split_once("listening on ")?.1.trim()));
            this.url = address.unwrap_or_default().to_owned();
        }
        while this.status("/ready").await != Some(200) {
            this.pause().await?;
        }
        Ok(this)
    }

    /// `/stats`.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn stats(&mut self) -> Result<Value, Failure> {
        let text = async {
            let response = self.http.get(format!("{}/stats", self.url)).send().await?;
            response.text().await
        };
        let lost = |e: &dyn std::fmt::Display| Failure::Internal(format!("the daemon: {e}"));
        match text.await {
            Ok(text) => serde_json::from_str(&text).map_err(|e| lost(&e)),
            Err(e) => Err(self.explain(lost(&e)).await),
        }
    }

    /// A client's way to it.
    pub fn client(&self) -> (reqwest::Client, String) {
        (self.http.clone(), self.url.clone())
    }

    /// Why something failed: because the daemon has ended, or as it seemed.
    pub async fn explain(&mut self, failure: Failure) -> Failure {
        if let Failure::Internal(_) = failure {
            // A connection is lost a moment before its process is seen to be gone.
            for _ in 0..50 {
                if let Err(ended) = self.pause().await {
                    return ended;
                }
            }
        }
        failure
    }

    /// Waits a moment; an error if it has ended.
    ///
    /// # Errors
    /// With the end of its log.
    pub async fn pause(&mut self) -> Result<(), Failure> {
        self.check()?;
        tokio::time::sleep(POLL).await;
        Ok(())
    }

    fn check(&mut self) -> Result<(), Failure> {
        let ended = match self.child.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => status,
            Err(e) => return Err(Failure::Internal(format!("the daemon: {e}"))),
        };
        let log = self.log_text();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        let why = format!("the daemon has ended ({ended}):\n{last}");
        Err(match ended.code() {
            Some(64) => Failure::Usage(why),
            Some(69) => Failure::Unavailable(why),
            _ => Failure::Internal(why),
        })
    }

    async fn status(&self, path: &str) -> Option<u16> {
        let response = self.http.get(format!("{}{path}", self.url)).send().await;
        response.ok().map(|r| r.status().as_u16())
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
