//! Traces: one line of JSON for each request that was decided on, with the features as admission saw them and
//! what became of it. They are what calibrations are made of and hold no prompt text.
//!
//! Written by a thread of its own. Rows beyond what it keeps up with are dropped and counted, never waited
//! for. On disk there are at most two files of half the limit each: the one that is written, and beside it
//! with `.1` to its name the one before, which the next replaces.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::IntCounter;
use serde::Serialize;

use crate::job::{Admitted, Standing, Wish};
use crate::logic::conformal::features::NAMES;
use crate::logic::conformal::predictor::Latency;
use crate::logic::conformal::receipt::Answer;
use crate::logic::request::{Outcome, RequestSpec};
use crate::messages::RequestEnded;

/// Rows that wait to be written.
const QUEUE: usize = 1024;

/// The way to the writer.
pub struct Traces {
    rows: SyncSender<Row>,
    dropped: IntCounter,
    run: u64,
}

/// A line.
#[derive(Serialize)]
struct Row {
    /// When the daemon started, in Unix seconds: rows of one run belong together.
    run: u64,
    request: u64,
    /// Since the start.
    arrival_s: f64,
    verdict: &'static str,
    confidence: f64,
    /// From the decision, as `latency_ms` is.
    bound_ms: Option<f64>,
    slo_ms: Option<u64>,
    /// From the arrival to the decision.
    waited_ms: f64,
    features: BTreeMap<&'static str, f32>,
    outcome: &'static str,
    /// To the server's last token; `None` for what never ran.
    latency_ms: Option<f64>,
    /// Whether it would have taken longer, had its client stayed.
    censored: bool,
    /// Whether it was promised something and ran in the best-effort lane all the same.
    demoted: bool,
    completion_tokens: u32,
    cached_tokens: u32,
}

impl Traces {
    /// Starts to write at `path`, at most `bytes_max` in all. `dropped` counts what is lost.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn start(path: &Path, bytes_max: u64, dropped: IntCounter) -> io::Result<Self> {
        let mut files = Files::open(path.to_owned(), bytes_max / 2)?;
        let (rows, queue) = sync_channel(QUEUE);
        let lost = dropped.clone();
        let writing = move || {
            if let Err(e) = write_all(&queue, &mut files) {
                tracing::error!("traces: {}: {e}; no more are written", files.path.display());
                queue.iter().for_each(|_| lost.inc());
            }
        };
        std::thread::Builder::new()
            .name("traces".into())
            .spawn(writing)?;
        let run = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Ok(Self { rows, dropped, run })
    }

    /// A request that ran, or began to.
    pub fn ended(&self, ended: &RequestEnded, latency: Latency) {
        let Admitted {
            answer,
            wish,
            standing,
            ..
        } = &ended.admitted;
        self.send(Row {
            latency_ms: Some(latency.ms()),
            censored: latency.is_censored(),
            demoted: *standing == Standing::Demoted,
            completion_tokens: ended.usage.completion_tokens,
            cached_tokens: ended.usage.cached_tokens,
            ..self.row(&ended.spec, wish, answer, ended.outcome)
        });
    }

    /// A request that was refused, and what it counts as.
    pub fn refused(&self, spec: &RequestSpec, wish: &Wish, answer: &Answer, outcome: Outcome) {
        self.send(self.row(spec, wish, answer, outcome));
    }

    fn row(&self, spec: &RequestSpec, wish: &Wish, answer: &Answer, outcome: Outcome) -> Row {
        let decision = &answer.decision;
        Row {
            run: self.run,
            request: spec.id.0,
            arrival_s: spec.arrival.0 as f64 / 1e6,
            verdict: decision.verdict.label(),
            confidence: decision.confidence(),
            bound_ms: decision.bound_ms.ok(),
            slo_ms: wish.slo.map(|slo| slo.as_millis() as u64),
            waited_ms: answer.waited_ms,
            features: NAMES.into_iter().zip(decision.features.0).collect(),
            outcome: outcome.label(),
            latency_ms: None,
            censored: false,
            demoted: false,
            completion_tokens: 0,
            cached_tokens: 0,
        }
    }

    fn send(&self, row: Row) {
        if self.rows.try_send(row).is_err() {
            self.dropped.inc();
        }
    }
}

/// Writes rows until nobody sends any more; flushes whenever it has caught up.
fn write_all(queue: &Receiver<Row>, files: &mut Files) -> io::Result<()> {
    loop {
        let row = match queue.try_recv() {
            Ok(row) => row,
            Err(TryRecvError::Disconnected) => return files.out.flush(),
            Err(TryRecvError::Empty) => {
                files.out.flush()?;
                match queue.recv() {
                    Ok(row) => row,
                    Err(_) => return Ok(()),
                }
            }
        };
        let mut line = serde_json::to_vec(&row)?;
        line.push(b'\n');
        files.append(&line)?;
    }
}

/// The file that is written and the one before.
struct Files {
    path: PathBuf,
    out: BufWriter<File>,
    bytes: u64,
    bytes_max: u64,
}

impl Files {
    fn open(path: PathBuf, bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Self {
            bytes: file.metadata()?.len(),
            out: BufWriter::new(file),
            path,
            bytes_max,
        })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let len = line.len() as u64;
        if self.bytes + len > self.bytes_max {
            self.out.flush()?;
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            std::fs::rename(&self.path, before)?;
            *self = Self::open(self.path.clone(), self.bytes_max)?;
        }
        self.out.write_all(line)?;
        self.bytes += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_hold_the_last_lines_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("traces.jsonl");
        // What an earlier run has left counts.
        std::fs::write(&path, "earlier run\n").unwrap();
        let mut files = Files::open(path.clone(), 50).unwrap();
        for i in 0..100 {
            files.append(format!("line {i:02}\n").as_bytes()).unwrap();
            files.out.flush().unwrap();
            let size = |p: &Path| std::fs::metadata(p).map_or(0, |m| m.len());
            let before = dir.path().join("traces.jsonl.1");
            assert!(size(&path) <= 50 && size(&path) + size(&before) <= 100);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("line 99\n"), "{text}");
        let before = std::fs::read_to_string(dir.path().join("traces.jsonl.1")).unwrap();
        assert!(before.starts_with("line "), "{before}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
