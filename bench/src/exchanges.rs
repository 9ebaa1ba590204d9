//! `exchanges`: a refusal, a quote and a receipt as curl has them, for the README. A daemon of rung 5 is asked on an idle
//! engine what it would promise, keeps that promise, and is then given work until the same request does not fit any more.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::calibrated::{Calibrated, RUNG, armed};
use crate::daemon::{self, Daemon};
use crate::decision;
use crate::numbers::positive;
use crate::provenance::Provenance;

const CHAT: &str = "/v1/chat/completions";
const QUOTE: &str = "/v1/admission/quote";
/// Streams that are added, one by one, until the request does not fit.
const STREAMS_MAX: usize = 32;
/// For each to begin.
const SETTLE: Duration = Duration::from_millis(300);

#[derive(Args)]
pub struct ExchangesArgs {
    /// The model that answers; without one the fake does.
    #[arg(long, requires = "artifact")]
    model: Option<PathBuf>,
    /// Its calibration; the fake is calibrated first.
    #[arg(long, requires = "model")]
    artifact: Option<PathBuf>,
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// How long the fake is calibrated.
    #[arg(long, default_value_t = 8.0, value_parser = positive)]
    calibrate_minutes: f64,
    #[arg(long, default_value = "bench/results/exchanges.json")]
    out: PathBuf,
}

/// What was asked, and what `curl -i` printed, byte for byte.
#[derive(Serialize)]
struct Exchange {
    name: &'static str,
    path: &'static str,
    body: String,
    answer: String,
}

/// # Errors
/// When there is no curl, or the daemon can't be brought to answer so.
pub fn run(args: &ExchangesArgs) -> Result<()> {
    let models: Vec<_> = args.model.iter().map(PathBuf::as_path).collect();
    let mut provenance = Provenance::begin(&models)?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    // Kept while the daemon runs, which may be asked for its file again.
    let calibrated;
    let daemon = match args.model.iter().zip(&args.artifact).next() {
        Some((model, artifact)) => {
            let text = |path: &PathBuf| path.to_str().map(str::to_owned).context("not UTF-8");
            let set = |key: &str, value: String| (key.to_owned(), value);
            let settings = [
                set("admission.artifact", text(artifact)?),
                // What would be refused is.
                set("admission.explore_every", "0".into()),
            ];
            let args = ["--config", RUNG, "--model", &text(model)?];
            armed(Daemon::start(&binary, &args, &settings)?)?
        }
        None => {
            calibrated = Calibrated::make(&binary, &decision::FAKE, args.calibrate_minutes)?;
            calibrated.start()?
        }
    };
    provenance.effective = Some(daemon.effective()?);
    let slo_ms = slo_ms(&daemon)?;
    // Before the question is asked in earnest: then it would be cached as a whole, as no calibration's question was.
    let [refusal, quote] = overloaded(&daemon, slo_ms)?;
    at_rest(&daemon, &asked(slo_ms, true))?;
    let receipt = Exchange::of(&daemon, "receipt", CHAT, &asked(slo_ms, true))?;
    ensure!(
        receipt.is("promised") && receipt.answer.contains("data: [DONE]"),
        "no promise on an idle engine: {}",
        receipt.answer
    );
    provenance.write(&args.out, &[refusal, quote, receipt])
}

fn asked(slo_ms: u64, stream: bool) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What is the capital of France, and what is it known for? One sentence, please." }],
        "max_tokens": 24,
        "slo": { "e2e_ms": slo_ms },
    });
    if stream {
        body["stream"] = true.into();
    }
    body
}

/// An SLO that an idle daemon can promise, with a fifth to spare, in tenths of a second.
fn slo_ms(daemon: &Daemon) -> Result<u64> {
    // After one that brings the beginning of all prompts into the cache, without which nothing was calibrated.
    let first = json!({ "messages": [{ "role": "user", "content": "Hello." }], "max_tokens": 1 });
    Exchange::of(daemon, "", CHAT, &first)?;
    let ample = asked(600_000, false);
    at_rest(daemon, &ample)?;
    let quote = Exchange::of(daemon, "", QUOTE, &ample)?;
    let (_, body) = quote.answer.split_once("\r\n\r\n").context("no answer")?;
    let quoted: Value = serde_json::from_str(body)?;
    let bound_ms = quoted["bound_ms"].as_f64();
    let bound_ms = bound_ms.with_context(|| format!("nothing can be promised: {quoted}"))?;
    Ok((bound_ms * 1.2 / 100.0).ceil() as u64 * 100)
}

/// Waits until what kept the daemon busy is gone and forgotten.
fn at_rest(daemon: &Daemon, body: &Value) -> Result<()> {
    for _ in 0..STREAMS_MAX {
        if Exchange::of(daemon, "", QUOTE, body)?.is("promised") {
            return Ok(());
        }
        std::thread::sleep(SETTLE);
    }
    bail!("nothing is promised to an idle daemon")
}

/// The refusal, and the quote right after it.
fn overloaded(daemon: &Daemon, slo_ms: u64) -> Result<[Exchange; 2]> {
    let body = asked(slo_ms, false);
    let mut streams = Vec::new();
    for i in 0..STREAMS_MAX {
        streams.push(occupy(daemon, i)?);
        std::thread::sleep(SETTLE);
        let ask = |name, path| Exchange::of(daemon, name, path, &body);
        // One in so many that would be refused runs all the same: then once more, with one more stream.
        if ask("quote", QUOTE)?.is("overloaded") {
            let both = [ask("refusal", CHAT)?, ask("quote", QUOTE)?];
            if both.iter().all(|e| e.is("overloaded")) {
                return Ok(both);
            }
        }
    }
    bail!("it still fits beside {STREAMS_MAX} streams, or never did")
}

/// A stream that lasts; it ends with its connection.
fn occupy(daemon: &Daemon, i: usize) -> Result<TcpStream> {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("Tell me story {i}.") }],
        "max_tokens": 160,
        "ignore_eos": true,
        "stream": true,
    })
    .to_string();
    let mut stream = TcpStream::connect(daemon.addr)?;
    write!(
        stream,
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    Ok(stream)
}

impl Exchange {
    fn of(daemon: &Daemon, name: &'static str, path: &'static str, body: &Value) -> Result<Self> {
        let body = body.to_string();
        let url = daemon.url() + path;
        let header = "content-type: application/json";
        let curl = Command::new("curl")
            .args(["-isN", &url, "-H", header, "-d", &body])
            .output()
            .context("running curl")?;
        let answer = String::from_utf8(curl.stdout)?;
        ensure!(curl.status.success(), "curl: {}: {answer}", curl.status);
        Ok(Self {
            name,
            path,
            body,
            answer,
        })
    }

    /// Whether this is the verdict.
    fn is(&self, verdict: &str) -> bool {
        let line = format!("x-cadenced-verdict: {verdict}\r\n");
        self.answer.contains(&line)
    }
}
