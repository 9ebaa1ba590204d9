//! Traces: one line of JSON for each request that was decided on, with the features as admission saw them and
//! what became of it. They are what calibrations are made of and hold no prompt text.
//!
//! Written by a thread of its own. Rows beyond what it keeps up with are dropped and counted, never waited
//! for. On disk there are at most two files of half the limit each: the one that is written, and beside it
//! with `.1` to its name the one before, which the next replaces.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::IntCounter;

use crate::job::Wish;
use crate::logic::conformal::predictor::Latency;
use crate::logic::conformal::receipt::Answer;
use crate::logic::conformal::trace::TraceRow;
use crate::logic::request::{Outcome, RequestSpec};
use crate::reply::Usage;

/// Rows that wait to be written.
const QUEUE: usize = 1024;

/// The way to the writer.
pub struct Traces {
    rows: SyncSender<Row>,
    dropped: IntCounter,
}

/// What is known of a request. It is made into text by the writer.
pub struct Row {
    pub spec: RequestSpec,
    pub wish: Wish,
    pub answer: Answer,
    pub outcome: Outcome,
    /// Whether it was promised something and ran in the best-effort lane all the same.
    pub demoted: bool,
    /// `None` for what was refused.
    pub end: Option<(Latency, Usage)>,
}

impl Row {
    fn line(&self, run: u64) -> TraceRow {
        let decision = &self.answer.decision;
        let (latency, usage) = self.end.unzip();
        let usage = usage.unwrap_or_default();
        TraceRow {
            run,
            request: self.spec.id.0,
            arrival_s: self.spec.arrival.0 as f64 / 1e6,
            verdict: decision.verdict.label().into(),
            confidence: decision.confidence(),
            bound_ms: decision.bound_ms.ok(),
            slo_ms: self.wish.slo.map(|slo| slo.as_millis() as u64),
            waited_ms: self.answer.waited_ms,
            features: decision.features,
            outcome: self.outcome.label().into(),
            latency_ms: latency.map(|l| l.ms()),
            censored: latency.is_some_and(|l| l.is_censored()),
            demoted: self.demoted,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
        }
    }
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
        let run = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let writing = move || {
            if let Err(e) = write_all(&queue, &mut files, run) {
                tracing::error!("traces: {}: {e}; no more are written", files.path.display());
                queue.iter().for_each(|_| lost.inc());
            }
        };
        std::thread::Builder::new()
            .name("traces".into())
            .spawn(writing)?;
        Ok(Self { rows, dropped })
    }

    /// Has a row written; drops it where the writer is behind.
    pub fn write(&self, row: Row) {
        if self.rows.try_send(row).is_err() {
            self.dropped.inc();
        }
    }
}

/// Writes rows until nobody sends any more; flushes whenever it has caught up.
fn write_all(queue: &Receiver<Row>, files: &mut Files, run: u64) -> io::Result<()> {
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
        let mut line = serde_json::to_vec(&row.line(run))?;
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
