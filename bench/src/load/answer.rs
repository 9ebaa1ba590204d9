//! From the bytes of a response and the times they came to a [`Record`]. No sockets, no clock.

use anyhow::Result;

use super::chunk::{self, Failure};
use super::http1::{Head, ResponseReader};
use super::record::Record;
use super::sse::Events;

/// Of a body that is no stream, so much is read.
const BODY_BYTES_MAX: usize = 16 << 10;

/// An answer that is being read.
#[derive(Debug, Default)]
pub struct Answer {
    http: ResponseReader,
    stream: Stream,
}

/// The part behind the framing.
#[derive(Debug, Default)]
struct Stream {
    events: Events,
    /// A body that is no stream of events.
    plain: Vec<u8>,
    done: bool,
    error: Option<String>,
}

impl Answer {
    /// Takes what a read returned at `at_us`. Says whether the response is complete.
    ///
    /// # Errors
    /// When this is no HTTP.
    pub fn take(&mut self, bytes: &[u8], at_us: u64, record: &mut Record) -> Result<bool> {
        record.first_byte_us.get_or_insert(at_us);
        let stream = &mut self.stream;
        self.http
            .feed(bytes, |head, body| stream.take(head, body, at_us, record))?;
        // Known even if the rest never comes.
        if let Some(head) = self.http.head().filter(|_| record.status.is_none()) {
            greet(head, record);
        }
        if self.http.is_done() {
            self.settle(at_us, record);
        }
        Ok(self.http.is_done())
    }

    /// The connection has ended, at `at_us`.
    ///
    /// # Errors
    /// When the response had not.
    pub fn end(&mut self, at_us: u64, record: &mut Record) -> Result<()> {
        self.http.end()?;
        self.settle(at_us, record);
        Ok(())
    }

    /// Whether the connection may carry another request.
    pub fn keeps_alive(&self) -> bool {
        self.http.is_done() && self.http.head().is_some_and(|h| h.keep_alive)
    }

    fn settle(&mut self, at_us: u64, record: &mut Record) {
        record.finish_us = at_us;
        let Some(head) = self.http.head() else { return };
        record.error.clone_from(&self.stream.error);
        if !head.is_event_stream {
            let body: Option<Envelope> = serde_json::from_slice(&self.stream.plain).ok();
            record.code = body.and_then(|b| b.error).and_then(|e| e.code());
        }
        if head.status == 200 && record.error.is_none() {
            let complaint = match record.first_frame_us {
                _ if !head.is_event_stream => Some("not a stream"),
                None => Some("no text"),
                Some(_) if !self.stream.done && record.finish_reason.is_none() => Some("no end"),
                Some(_) => None,
            };
            record.error = complaint.map(str::to_owned);
        }
    }
}

/// Takes what the head says. What came with the same bytes may have said it more exactly.
fn greet(head: &Head, record: &mut Record) {
    let number = |name: &str| head.header(name).and_then(|v| v.parse::<f64>().ok());
    record.status = Some(head.status);
    record.retry_after_s = number("retry-after").map(|s| s as u32);
    record.bound_ms = record.bound_ms.or(number("x-cadenced-bound-ms"));
    record.level = record.level.or(number("x-cadenced-confidence"));
    if record.verdict.is_none() {
        record.verdict = head.header("x-cadenced-verdict").map(str::to_owned);
    }
}

#[derive(serde::Deserialize)]
struct Envelope {
    error: Option<Failure>,
}

impl Stream {
    fn take(&mut self, head: &Head, body: &[u8], at_us: u64, record: &mut Record) {
        if !head.is_event_stream {
            let room = BODY_BYTES_MAX.saturating_sub(self.plain.len());
            self.plain.extend_from_slice(&body[..body.len().min(room)]);
            return;
        }
        let (done, error) = (&mut self.done, &mut self.error);
        self.events.feed(body, |data| {
            if data == b"[DONE]" {
                *done = true;
                return;
            }
            match chunk::read(data) {
                Ok(chunk) => {
                    if let Some(failure) = &chunk.error {
                        let message = failure.message.clone().unwrap_or_else(|| "unknown".into());
                        record.code = failure.code();
                        error.get_or_insert(message);
                    }
                    note(chunk, at_us, record);
                }
                Err(e) => {
                    error.get_or_insert_with(|| format!("an event that is no chunk: {e}"));
                }
            }
        });
    }
}

fn note(chunk: chunk::Chunk, at_us: u64, record: &mut Record) {
    if chunk.text {
        match record.last_frame_us {
            None => record.first_frame_us = Some(at_us),
            Some(last) => {
                let gap = u32::try_from(at_us.saturating_sub(last)).unwrap_or(u32::MAX);
                record.frame_gaps_us.push(gap);
            }
        }
        record.last_frame_us = Some(at_us);
    }
    if chunk.finish_reason.is_some() {
        record.finish_reason = chunk.finish_reason;
    }
    if let Some(usage) = chunk.usage {
        record.prompt_tokens = Some(usage.prompt_tokens);
        record.completion_tokens = Some(usage.completion_tokens);
        record.cached_tokens = usage.cached_tokens;
    }
    if let Some(split) = chunk.split {
        record.queue_ms = split.queue_ms;
        record.prefill_ms = split.prefill_ms;
        record.first_decode_ms = split.first_decode_ms;
    }
    if let Some(promise) = chunk.promise {
        record.bound_ms = promise.bound_ms.or(record.bound_ms);
        record.level = promise.confidence.or(record.level);
        record.verdict = promise.verdict.or(record.verdict.take());
        record.kept = promise.kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::record::Outcome;

    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        x-cadenced-bound-ms: 1200\r\nx-cadenced-verdict: admitted\r\ntransfer-encoding: chunked\r\n\r\n";

    fn text(t: &str) -> String {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{t}\"}},\"finish_reason\":null}}]}}\n\n"
        )
    }

    fn framed(body: &str) -> String {
        format!("{:x}\r\n{body}\r\n", body.len())
    }

    fn read(pieces: &[(u64, String)]) -> (Record, Result<()>) {
        let (mut answer, mut record) = (Answer::default(), Record::default());
        let mut at = 0;
        for (at_us, piece) in pieces {
            at = *at_us;
            if let Err(e) = answer.take(piece.as_bytes(), at, &mut record) {
                return (record, Err(e));
            }
        }
        let end = answer.end(at, &mut record);
        (record, end)
    }

    const END: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\
        \"prompt_tokens_details\":{\"cached_tokens\":8}},\"timings\":{\"queue_ms\":3}}\n\ndata: [DONE]\n\n";

    #[test]
    fn every_field_is_filled_from_one_stream() {
        let (r, end) = read(&[
            (5, HEAD.into()),
            (10, framed(&text(""))),
            (20, framed(&text("a"))),
            (30, framed(&text("b"))),
            (45, framed(&text("c")) + &framed(END) + "0\r\n\r\n"),
        ]);
        end.unwrap();
        assert_eq!(r.outcome(), Outcome::Completed);
        assert_eq!(
            (r.first_byte_us, r.first_frame_us, r.last_frame_us),
            (Some(5), Some(20), Some(45))
        );
        assert_eq!(
            (r.frame_gaps_us.as_slice(), r.finish_us),
            (&[10, 15][..], 45)
        );
        assert_eq!(
            (r.prompt_tokens, r.cached_tokens, r.completion_tokens),
            (Some(9), Some(8), Some(4))
        );
        assert_eq!(
            (r.bound_ms, r.verdict.as_deref(), r.queue_ms),
            (Some(1200.0), Some("admitted"), Some(3.0))
        );
        assert_eq!(r.finish_reason.as_deref(), Some("length"));
    }

    #[test]
    fn a_promise_is_known_as_soon_as_it_is_made() {
        let (mut answer, mut r) = (Answer::default(), Record::default());
        let head = HEAD.replace("\r\n\r\n", "\r\nx-cadenced-confidence: 0.95\r\n\r\n");
        let (first, rest) = head.split_at(40);
        answer.take(first.as_bytes(), 5, &mut r).unwrap();
        assert_eq!((r.status, r.bound_ms), (None, None));
        answer.take(rest.as_bytes(), 6, &mut r).unwrap();
        // The client may lose patience here.
        assert_eq!(
            (r.status, r.bound_ms, r.level, r.verdict.as_deref()),
            (Some(200), Some(1200.0), Some(0.95), Some("admitted"))
        );
    }

    #[test]
    fn a_refusal_keeps_its_reason_and_is_no_error() {
        let body =
            r#"{"error":{"message":"m","type":"server_error","param":null,"code":"queue_full"}}"#;
        let response = format!(
            "HTTP/1.1 503 No\r\nretry-after: 7\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (r, end) = read(&[(9, response)]);
        end.unwrap();
        assert_eq!(r.outcome(), Outcome::Shed);
        assert_eq!(
            (r.code.as_deref(), r.retry_after_s),
            (Some("queue_full"), Some(7))
        );
    }

    #[test]
    fn a_stream_without_text_or_without_an_end_or_with_an_error_failed() {
        let error = "data: {\"error\":{\"message\":\"broke\",\"code\":\"engine_error\"}}\n\n";
        for (body, complaint) in [
            (framed(END), "no text"),
            (framed(&text("a")), "no end"),
            (framed(&text("a")) + &framed(error), "broke"),
            (framed("data: {nonsense\n\n"), "no chunk"),
        ] {
            let (r, end) = read(&[(1, HEAD.to_owned() + &body + "0\r\n\r\n")]);
            end.unwrap();
            assert_eq!(r.outcome(), Outcome::Failed);
            assert!(
                r.error.as_deref().is_some_and(|e| e.contains(complaint)),
                "{:?}",
                r.error
            );
        }
        let (_, end) = read(&[(1, HEAD.to_owned() + &framed(&text("a")))]);
        assert!(end.is_err());
    }
}
