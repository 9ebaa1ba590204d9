//! Refusals while one decode blocks: all seats are taken, one reply comes to a token at which the fake stalls, and a client
//! goes on asking, a hundred times a second, for what would fit an idle daemon and does not fit now.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cost::Refused;
use crate::client::{self, Recording};
use crate::daemon::{self, Daemon};
use crate::load::http1::ResponseReader;

/// A prompt with this text stalls.
pub const MARKER: &str = "block here";
/// Silence of so much is the stall; every other step takes hundredths of it.
const STALL: Duration = Duration::from_millis(1900);
/// After the last token before the stall, the step that stalls may not have begun for so long.
const MARGIN: Duration = Duration::from_millis(50);
/// Streams that occupy the daemon: its seats, and some that wait.
const STREAMS: usize = 24;
const TOKENS: usize = 150;
const PERIOD: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(10);
/// Refused in a stall, at least: a third of what is asked in one.
const FEWEST: usize = 60;

/// A request of the client that asks.
struct Probe {
    sent: Instant,
    answered: Instant,
    status: u16,
    code: String,
}

/// # Errors
/// When no decode has blocked, or hardly anything was refused meanwhile.
pub fn measure(daemon: &Daemon) -> Result<Refused> {
    let asked = probe_body(daemon)?;
    let streams: Vec<String> = (0..STREAMS).map(stream_body).collect();
    let (recordings, probes) = std::thread::scope(|scope| {
        let streams = scope.spawn(|| client::stream_all(daemon.addr, &streams, |_| {}));
        let mut probes = Vec::new();
        while !streams.is_finished() {
            let began = Instant::now();
            probes.push(probe(daemon.addr, &asked));
            std::thread::sleep(PERIOD.saturating_sub(began.elapsed()));
        }
        (streams.join(), probes)
    });
    let recordings = recordings.map_err(|_| anyhow::anyhow!("the streams panicked"))??;
    let probes = probes.into_iter().collect::<Result<Vec<_>>>()?;
    let stall = stall(&recordings[0]).context("no decode has blocked")?;
    let mut refused = Refused::default();
    for p in probes
        .iter()
        .filter(|p| p.is_within(stall) && p.status == 503)
    {
        let took = p.answered - p.sent;
        refused.push(&p.code, took.as_secs_f64() * 1e3);
    }
    ensure!(
        refused.ms.len() >= FEWEST,
        "only {} requests were refused while a decode blocked",
        refused.ms.len()
    );
    Ok(refused)
}

impl Probe {
    fn is_within(&self, (from, to): (Instant, Instant)) -> bool {
        from <= self.sent && self.answered <= to
    }
}

/// From when on the decode of this stream blocks, surely, until it brings a token again.
fn stall(stream: &Recording) -> Option<(Instant, Instant)> {
    let reads = stream.reads.windows(2).map(|pair| (pair[0].0, pair[1].0));
    let (before, after) = reads.max_by_key(|(before, after)| *after - *before)?;
    (after - before >= STALL).then_some((before + MARGIN, after))
}

/// The first stream stalls.
fn stream_body(i: usize) -> String {
    let content = match i {
        0 => MARKER.to_owned(),
        i => format!("stream {i}"),
    };
    json!({
        "messages": [{ "role": "user", "content": content }],
        "max_tokens": TOKENS,
        "ignore_eos": true,
        "temperature": 0,
        "stream": true,
    })
    .to_string()
}

/// With an SLO that fits while the daemon is idle, as it is now, with little to spare.
fn probe_body(daemon: &Daemon) -> Result<String> {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Is there room?" }],
        "max_tokens": 64,
        "temperature": 0,
        "stream": true,
    });
    let text = post(
        "/v1/admission/quote",
        "connection: close\r\n",
        &body.to_string(),
    );
    let (status, quoted) = daemon::request(daemon.addr, &text)?;
    let quoted: Value = serde_json::from_str(&quoted)?;
    let bound_ms = quoted["bound_ms"].as_f64();
    let bound_ms = bound_ms.with_context(|| format!("no bound but {status} {quoted}"))?;
    body["slo"] = json!({ "e2e_ms": (bound_ms * 1.1).ceil() as u64 });
    Ok(post("/v1/chat/completions", "", &body.to_string()))
}

fn post(path: &str, header: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{header}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks on a connection of its own. A refusal is read to its last byte, which is timed; from anything else it turns away.
fn probe(addr: SocketAddr, request: &str) -> Result<Probe> {
    let sent = Instant::now();
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let (mut reader, mut body, mut buffer) = (ResponseReader::default(), Vec::new(), [0; 4096]);
    let status = loop {
        let n = stream.read(&mut buffer)?;
        ensure!(n > 0, "a refusal was cut off");
        reader.feed(&buffer[..n], |_, bytes| body.extend_from_slice(bytes))?;
        match reader.head().map(|head| head.status) {
            Some(status) if status == 200 || reader.is_done() => break status,
            _ => {}
        }
    };
    let answered = Instant::now();
    // Of what it turned away from there is no more than a beginning.
    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
    Ok(Probe {
        sent,
        answered,
        status,
        code: error["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wholly_within_the_stall_does_not_count() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let recording = |ms: &[u64]| Recording {
            sent: start,
            bytes: Vec::new(),
            reads: ms.iter().map(|ms| (at(*ms), 0)).collect(),
        };
        assert_eq!(stall(&recording(&[0, 20, 40, 1900, 1920])), None);
        let found = stall(&recording(&[0, 20, 40, 2060, 2080])).unwrap();
        assert_eq!(found, (at(90), at(2060)));
        let within = |sent: u64, answered: u64| {
            let probe = Probe {
                sent: at(sent),
                answered: at(answered),
                status: 503,
                code: String::new(),
            };
            probe.is_within(found)
        };
        assert!(within(90, 2060) && !within(89, 95) && !within(2055, 2061));
    }
}
