//! A real daemon in its own process, on a port of its own, and clients that speak bytes to it.

#![allow(dead_code, reason = "each test crate uses a part of it")]

pub mod calibrated;
mod client;
mod dice;
mod response;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

pub use client::Connection;
pub use dice::Dice;
pub use response::Response;

/// Longer than anything a test waits for; reaching it is a failure, never a timing assertion.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running `cadenced`; killed when dropped.
pub struct Daemon {
    child: Child,
    pub addr: SocketAddr,
    log: Arc<Mutex<String>>,
    /// Ends with what it reads.
    log_reader: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    /// Starts the fake backend with `settings` (as `section.key`, value), waits until it is ready.
    pub fn fake(settings: &[(&str, &str)]) -> Self {
        Self::start(&["serve", "--backend", "fake"], settings).ready()
    }

    /// Starts `cadenced ARGS` on a free port and waits until it listens. Invariants are checked throughout.
    pub fn start(args: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = command(args, settings);
        command.args(["--listen", "127.0.0.1:0"]);
        Self::spawn(command)
    }

    /// Runs a command that becomes a daemon and waits until it listens.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let addr = loop {
            let mut line = String::new();
            assert!(
                stderr.read_line(&mut line).unwrap() > 0,
                "ended: {}",
                log.lock().unwrap()
            );
            log.lock().unwrap().push_str(&line);
            if let Some((_, rest)) = line.split_once("listening on http://") {
                break rest.trim().parse().unwrap();
            }
        };
        let keep = Arc::clone(&log);
        let log_reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = keep.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self {
            child,
            addr,
            log,
            log_reader: Some(log_reader),
        }
    }

    /// Waits until `/ready` answers 200.
    pub fn ready(self) -> Self {
        self.wait_for("ready", || self.get("/ready").status == 200);
        self
    }

    /// What the daemon has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal by `kill`'s name of it.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the process to end by itself, and for the last of its log.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let _ = self.log_reader.take().map(std::thread::JoinHandle::join);
                return status;
            }
            assert!(Instant::now() < end, "still running:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the process is gone.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Polls `condition` until it holds.
    pub fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < end, "never: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Polls `/stats` until `condition` holds for them; gives them.
    pub fn wait_for_stats(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let mut stats = Value::Null;
        self.wait_for(what, || {
            stats = self.stats();
            condition(&stats)
        });
        stats
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.addr)
    }

    pub fn get(&self, path: &str) -> Response {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        ))
        .response()
    }

    /// `/stats`.
    pub fn stats(&self) -> Value {
        self.get("/stats").json()
    }

    /// How many requests have ended as `outcome`.
    pub fn count(&self, outcome: &str) -> u64 {
        self.stats()["requests"][outcome].as_u64().unwrap()
    }

    /// The value of a metric, named with its labels as the exposition has it.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let value = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .parse()
            .unwrap()
    }

    /// Waits until nothing waits, runs or is held, and all memory is free or cached; gives the stats then.
    pub fn idle(&self) -> Value {
        let number = |v: &Value| v.as_u64().unwrap();
        self.wait_for_stats("idle with everything free", |stats| {
            let (kv, sequences) = (&stats["kv"], &stats["sequences"]);
            stats["waiting"] == 0
                && stats["running"] == 0
                && stats["in_flight"] == 0
                && stats["held"] == serde_json::json!({ "requests": 0, "bytes": 0, "tokens": 0 })
                && stats["best_effort"]
                    == serde_json::json!({ "waiting": 0, "running": 0, "held": stats["held"] })
                && number(&kv["blocks_free"]) + number(&kv["blocks_cached"]) == kv["blocks_total"]
                && number(&sequences["free"]) + number(&sequences["cached"]) == sequences["total"]
        })
    }

    /// Sends a chat request without waiting for anything.
    pub fn chat(&self, body: &Value) -> Connection {
        self.post("/v1/chat/completions", &body.to_string())
    }

    pub fn post(&self, path: &str, body: &str) -> Connection {
        self.send(&request(path, body, "connection: close\r\n"))
    }

    /// Sends bytes on a new connection.
    pub fn send(&self, bytes: &str) -> Connection {
        let mut connection = self.connect();
        connection.send(bytes);
        connection
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `cadenced ARGS` with settings by environment and nothing else of the caller's environment that it reads.
pub fn command(args: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cadenced"));
    command.args(args);
    set_environment(&mut command, settings);
    command
}

/// The environment part of [`command`].
pub fn set_environment(command: &mut Command, settings: &[(&str, &str)]) {
    command
        .env("CADENCED__ENGINE__CHECK_INVARIANTS", "true")
        .env("NO_COLOR", "1");
    command
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("LISTEN_FDS");
    for (key, value) in settings {
        let name = format!("CADENCED__{}", key.replace('.', "__").to_uppercase());
        command.env(name, value);
    }
}

/// The bytes of a POST of JSON; `more` are further header lines.
pub fn request(path: &str, body: &str, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{more}\r\n{body}",
        body.len()
    )
}

/// A chat request of one user message.
pub fn ask(content: &str, max_tokens: u32, stream: bool) -> Value {
    serde_json::json!({
        "messages": [{ "role": "user", "content": content }],
        "max_tokens": max_tokens,
        "stream": stream,
        "temperature": 0,
    })
}
