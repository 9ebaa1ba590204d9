//! A real daemon in its own process, on a port of its own, and clients that speak bytes to it.

#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything a test waits for; reaching it is a failure, never a timing assertion.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running `cadenced`; killed when dropped.
pub struct Daemon {
    child: Child,
    pub addr: SocketAddr,
    log: Arc<Mutex<String>>,
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
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let addr = loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "ended: {}", log.lock().unwrap());
            log.lock().unwrap().push_str(&line);
            if let Some((_, rest)) = line.split_once("listening on http://") {
                break rest.trim().parse().unwrap();
            }
        };
        let keep = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = keep.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, addr, log }
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
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
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

    pub fn get(&self, path: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
            .response()
    }

    /// `/stats`.
    pub fn stats(&self) -> Value {
        self.get("/stats").json()
    }

    /// Waits until nothing waits, runs or is held, and all memory is back; gives the stats then.
    pub fn idle(&self) -> Value {
        let mut stats = Value::Null;
        self.wait_for("idle with everything free", || {
            stats = self.stats();
            stats["waiting"] == 0
                && stats["running"] == 0
                && stats["in_flight"] == 0
                && stats["held"]["requests"] == 0
                && stats["kv"]["blocks_free"] == stats["kv"]["blocks_total"]
                && stats["sequences"]["free"] == stats["sequences"]["total"]
        });
        stats
    }

    /// Sends a chat request without waiting for anything.
    pub fn chat(&self, body: &Value) -> Connection {
        self.post("/v1/chat/completions", &body.to_string())
    }

    pub fn post(&self, path: &str, body: &str) -> Connection {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Sends bytes on a new connection.
    pub fn send(&self, bytes: &str) -> Connection {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        // A server that refuses early may close before all is written.
        let _ = stream.write_all(bytes.as_bytes());
        Connection { stream: BufReader::new(stream) }
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
    command.args(args).env("CADENCED__ENGINE__CHECK_INVARIANTS", "true").env("NO_COLOR", "1");
    for (key, value) in settings {
        let name = format!("CADENCED__{}", key.replace('.', "__").to_uppercase());
        command.env(name, value);
    }
    command
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

/// An open connection with a request on it. Dropping it is what a client that goes away does.
pub struct Connection {
    pub stream: BufReader<TcpStream>,
}

impl Connection {
    /// Reads to the end of the connection.
    pub fn response(mut self) -> Response {
        let head = self.head();
        let mut raw = Vec::new();
        self.stream.read_to_end(&mut raw).unwrap();
        head.with_body(raw)
    }

    /// Reads the status line and the headers.
    pub fn head(&mut self) -> Response {
        let mut status = String::new();
        self.stream.read_line(&mut status).unwrap();
        let status = status.split_whitespace().nth(1).map_or(0, |s| s.parse().unwrap_or(0));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Response { status, headers, body: String::new(), complete: true }
    }

    /// The next SSE `data:` line of a chunked stream; `None` at its end. Comments are passed over.
    pub fn event(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// Reads the head and `n` events with text.
    pub fn read_text(&mut self, n: usize) {
        assert_eq!(self.head().status, 200);
        let mut seen = 0;
        while seen < n {
            let event = self.event().expect("the stream ended early");
            let json: Value = serde_json::from_str(&event).expect("a chunk");
            seen += usize::from(json["choices"][0]["delta"]["content"].as_str().is_some_and(|t| !t.is_empty()));
        }
    }
}

/// A response as it came.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Without the chunks' framing.
    pub body: String,
    /// The body ended as its framing says it should.
    pub complete: bool,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    /// The stream's events, `[DONE]` included.
    pub fn events(&self) -> Vec<String> {
        self.body.lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// The text of a reply, streamed or not.
    pub fn text(&self) -> String {
        if self.header("content-type").is_some_and(|t| t.starts_with("text/event-stream")) {
            self.events()
                .iter()
                .filter_map(|e| serde_json::from_str::<Value>(e).ok())
                .filter_map(|v| v["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
                .collect()
        } else {
            self.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        }
    }

    fn with_body(mut self, raw: Vec<u8>) -> Self {
        let (body, complete) = if self.header("transfer-encoding") == Some("chunked") {
            unchunk(&raw)
        } else {
            let expected = self.header("content-length").and_then(|n| n.parse::<usize>().ok());
            let complete = expected.is_none_or(|n| n == raw.len());
            (raw, complete)
        };
        self.body = String::from_utf8(body).expect("a body in UTF-8");
        self.complete = complete;
        self
    }
}

/// Takes the framing off a chunked body; whether its terminator was there.
fn unchunk(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(at) = raw.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&raw[..at]).ok().and_then(|s| usize::from_str_radix(s, 16).ok());
        let Some(size) = size else { return (body, false) };
        raw = &raw[at + 2..];
        if size == 0 {
            return (body, raw == b"\r\n");
        }
        if raw.len() < size + 2 {
            return (body, false);
        }
        body.extend_from_slice(&raw[..size]);
        raw = &raw[size + 2..];
    }
    (body, false)
}
