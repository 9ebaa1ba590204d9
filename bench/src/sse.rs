//! Makes sense of a recorded stream: takes the chunked framing off, finds the events and when each was complete.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::client::Recording;

/// A reply as its client saw it.
#[derive(Clone, Debug)]
pub struct Reply {
    pub sent: Instant,
    /// When each piece of text came. A token makes one piece or, if its text is empty or incomplete, none.
    pub texts: Vec<Instant>,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub cached_tokens: usize,
}

impl Reply {
    /// Every token made a piece of text, so pieces count tokens.
    pub fn is_clean(&self) -> bool {
        self.texts.len() == self.completion_tokens
    }

    /// Reads a complete, successful stream with a usage chunk.
    pub fn read(recording: &Recording) -> Result<Self> {
        let head_end = find(&recording.bytes, b"\r\n\r\n").context("no response")? + 4;
        let head = String::from_utf8_lossy(&recording.bytes[..head_end]);
        if !head.starts_with("HTTP/1.1 200") {
            bail!("{}", String::from_utf8_lossy(&recording.bytes));
        }
        let (body, times) = unchunk(recording, head_end)?;
        let mut reply = Self {
            sent: recording.sent,
            texts: Vec::new(),
            prompt_tokens: 0,
            completion_tokens: 0,
            cached_tokens: 0,
        };
        let mut done = false;
        let mut from = 0;
        let mut time = 0;
        while let Some(len) = find(&body[from..], b"\n\n") {
            let event = std::str::from_utf8(&body[from..from + len])?;
            from += len + 2;
            while times[time].1 < from {
                time += 1;
            }
            match event.strip_prefix("data: ") {
                Some("[DONE]") => done = true,
                Some(json) => reply.take(&serde_json::from_str(json)?, times[time].0)?,
                None => {}
            }
        }
        ensure!(done, "the stream did not end with [DONE]");
        Ok(reply)
    }

    fn take(&mut self, event: &Value, at: Instant) -> Result<()> {
        ensure!(event["error"].is_null(), "the stream failed: {event}");
        let text = event["choices"][0]["delta"]["content"].as_str();
        if text.is_some_and(|t| !t.is_empty()) {
            self.texts.push(at);
        }
        if let Some(usage) = event["usage"].as_object() {
            let count = |v: &Value| v.as_u64().unwrap_or(0) as usize;
            self.prompt_tokens = count(&usage["prompt_tokens"]);
            self.completion_tokens = count(&usage["completion_tokens"]);
            self.cached_tokens = count(&event["usage"]["prompt_tokens_details"]["cached_tokens"]);
        }
        Ok(())
    }
}

/// When a chunk was complete, and how long the body was then.
type Arrival = (Instant, usize);

/// The body, and the arrivals of its chunks.
fn unchunk(recording: &Recording, mut at: usize) -> Result<(Vec<u8>, Vec<Arrival>)> {
    let raw = &recording.bytes;
    let (mut body, mut times) = (Vec::new(), Vec::new());
    let mut read = 0;
    loop {
        let line = find(&raw[at..], b"\r\n").context("a chunk without a size")?;
        let size = usize::from_str_radix(std::str::from_utf8(&raw[at..at + line])?.trim(), 16)?;
        at += line + 2;
        if size == 0 {
            return Ok((body, times));
        }
        let chunk = raw.get(at..at + size).context("the stream was cut off")?;
        body.extend_from_slice(chunk);
        while recording.reads[read].1 < at + size {
            read += 1;
        }
        times.push((recording.reads[read].0, body.len()));
        at += size + 2;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_event_has_the_time_of_the_read_that_completed_it() {
        let t = Instant::now();
        let (t1, t2) = (t + Duration::from_millis(1), t + Duration::from_millis(2));
        let text =
            |s: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{s}\"}}}}]}}\n\n");
        let usage =
            "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        let chunk = |s: &str| format!("{:x}\r\n{s}\r\n", s.len());
        let head = "HTTP/1.1 200 OK\r\n\r\n".to_owned() + &chunk(&text("")) + &chunk(&text("a"));
        let all = head.clone() + &chunk(&text("b")) + &chunk(usage) + "0\r\n\r\n";
        // The first read ends in the middle of the second text's chunk.
        let cut = head.len() + 20;
        let recording = Recording {
            sent: t,
            reads: vec![(t1, cut), (t2, all.len())],
            bytes: all.into_bytes(),
        };
        let reply = Reply::read(&recording).unwrap();
        assert_eq!(reply.texts, [t1, t2]);
        assert!(reply.is_clean());
        assert_eq!(reply.prompt_tokens, 3);
    }
}
