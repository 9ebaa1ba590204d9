//! A `cadenced` process of the bench's own: started on a free port, asked for its state, killed when dropped. However
//! the bench ends, killed included, the daemon ends with it: it serves as long as the bench holds its standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cpu;
use crate::effective::Effective;

const PATIENCE: Duration = Duration::from_secs(120);

/// What makes a `cadenced` end when its standard input does, and with that when whoever started it is gone.
pub const WHILE_WE_LIVE: &str = "--while-stdin-is-open";

/// See the module's text.
pub struct Daemon {
    child: Child,
    pub addr: SocketAddr,
    /// Its second listener, if it was told to have one.
    pub admin: Option<SocketAddr>,
}

/// The daemon beside this program, unless another was named.
pub fn binary(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) => Ok(path.to_owned()),
        None => Ok(std::env::current_exe()?.with_file_name("cadenced")),
    }
}

/// The environment variable that sets `section.key`.
pub fn variable(key: &str) -> String {
    format!("CADENCED__{}", key.replace('.', "__").to_uppercase())
}

impl Daemon {
    /// Starts `binary serve ARGS` with `settings` (section.key, value), and waits until it is ready.
    pub fn start(binary: &Path, args: &[&str], settings: &[(String, String)]) -> Result<Self> {
        let mut command = Command::new(binary);
        command
            .args(["serve", WHILE_WE_LIVE])
            .args(args)
            .args(["--listen", "127.0.0.1:0"])
            .env("NO_COLOR", "1");
        for (key, value) in settings {
            command.env(variable(key), value);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let mut log = BufReader::new(child.stderr.take().context("no stderr")?);
        let (mut seen, mut admin) = (String::new(), None);
        let addr = loop {
            let mut line = String::new();
            ensure!(log.read_line(&mut line)? > 0, "the daemon ended:\n{seen}");
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().parse()?;
            }
            if let Some((_, address)) = line.split_once("the operator's door is at http://") {
                admin = Some(address.trim().parse()?);
            }
            seen.push_str(&line);
        };
        // What it logs from now on is passed on: in a measurement it has no reason to.
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if line.contains(" WARN ") || line.contains(" ERROR ") {
                    eprintln!("daemon: {line}");
                }
            }
        });
        let mut daemon = Self { child, addr, admin };
        let end = Instant::now() + PATIENCE;
        while daemon.get("/ready").map_or(0, |(status, _)| status) != 200 {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon ended: {status}\n{seen}");
            }
            ensure!(Instant::now() < end, "the daemon was never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A GET on a connection of its own: status and body.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        request(
            self.addr,
            &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        )
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The name of the rung that runs.
    pub fn rung(&self) -> Result<String> {
        let stats = self.stats()?;
        let rung = stats["rung"].as_str().context("/stats has no rung")?;
        Ok(rung.to_owned())
    }

    /// Waits until nothing runs and all memory is given back or cached.
    pub fn rest(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let stats = self.stats()?;
            let blocks = |key: &str| stats["kv"][key].as_u64().unwrap_or(0);
            let at_rest = blocks("blocks_free") + blocks("blocks_cached") == blocks("blocks_total");
            if stats["running"] == 0 && stats["waiting"] == 0 && at_rest {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the daemon never came to rest");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn stats(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.get("/stats")?.1)?)
    }

    pub fn metrics(&self) -> Result<String> {
        Ok(self.get("/metrics")?.1)
    }

    pub fn effective(&self) -> Result<Effective> {
        let mut stats = self.stats()?;
        serde_json::from_value(stats["effective"].take())
            .context("/stats has no effective settings")
    }

    pub fn cpu(&self) -> cpu::Sample {
        cpu::sample(self.pid())
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        let kib: u64 = line
            .split_whitespace()
            .next()
            .context("no VmRSS")?
            .parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request that closes its connection; the response's status and body as they came.
pub fn request(addr: SocketAddr, text: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(text.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").context("no response")?;
    let status = head
        .split_whitespace()
        .nth(1)
        .context("no status")?
        .parse()?;
    Ok((status, body.to_owned()))
}
