//! Replies: the chunks of a stream and the one body of a plain completion, written straight as JSON text.
//!
//! A content chunk is made for every token of every stream, so its constant parts are prepared once per request and only
//! the text between them is serialised: no tree of values, one allocation (unless the text is mostly control characters,
//! which grow sixfold), none when the buffer is reused.
//! JSON text has no raw line breaks (they are escaped in strings), so it is one `data:` line as it stands.

use serde::Serialize;
use serde_json::json;

use crate::error::ServeError;
use crate::logic::conformal::receipt::Receipt;
use crate::logic::request::FinishReason;
use crate::reply::{Timings, Usage};

/// What ends every successful stream, framed.
pub const DONE: &str = "data: [DONE]\n\n";

fn finish_reason_str(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Slo => "slo",
    }
}

fn usage_value(usage: Usage) -> serde_json::Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
    })
}

/// `chatcmpl-` and 128 random bits; one for all chunks of a reply.
pub fn new_completion_id() -> String {
    format!("chatcmpl-{:032x}", rand::random::<u128>())
}

/// One event of a stream. The order is Role, Content…, Finish, Receipt (where admission makes promises), Usage
/// (if asked for), then [`DONE`]; an Error ends a
/// stream in place of Finish, and no [`DONE`] follows it, so that a fragment never looks like a whole answer.
#[derive(Debug, Clone, Copy)]
pub enum Chunk<'a> {
    Role,
    Content(&'a str),
    Finish(FinishReason),
    /// What was promised of the reply and what came of it, as an extension in a chunk of its own. It has one empty
    /// choice, because clients that did not ask for a usage chunk look into `choices[0]` of every chunk.
    Receipt(&'a Receipt),
    Usage(Usage, Timings),
    Error(&'a ServeError),
}

/// Writes the chunks of one reply: same id, time and model in each.
#[derive(Debug, Clone)]
pub struct ChunkWriter {
    /// `{"id":…,"choices":[`
    head: String,
    include_usage: bool,
}

/// Room for a short text and its escapes, so that a chunk of a token or two is one allocation.
const TEXT_ROOM_BYTES: usize = 160;

const CHOICE: &str = r#"{"index":0,"delta":"#;

impl ChunkWriter {
    /// `created` is in seconds since the Unix epoch.
    pub fn new(id: &str, created: u64, model: &str) -> Self {
        let mut head = Vec::from(br#"{"id":"#);
        write_value(&mut head, id);
        head.extend_from_slice(br#","object":"chat.completion.chunk","created":"#);
        write_value(&mut head, &created);
        head.extend_from_slice(br#","model":"#);
        write_value(&mut head, model);
        head.extend_from_slice(br#","choices":["#);
        Self {
            head: into_string(head),
            include_usage: false,
        }
    }

    /// With `stream_options.include_usage` every chunk but the usage chunk carries `"usage":null`.
    pub fn with_usage(mut self, include_usage: bool) -> Self {
        self.include_usage = include_usage;
        self
    }

    pub fn role_chunk(&self) -> String {
        self.json(Chunk::Role)
    }

    pub fn content_chunk(&self, text: &str) -> String {
        self.json(Chunk::Content(text))
    }

    pub fn finish_chunk(&self, reason: FinishReason) -> String {
        self.json(Chunk::Finish(reason))
    }

    pub fn usage_chunk(&self, usage: Usage, timings: Timings) -> String {
        self.json(Chunk::Usage(usage, timings))
    }

    pub fn receipt_chunk(&self, receipt: &Receipt) -> String {
        self.json(Chunk::Receipt(receipt))
    }

    pub fn error_event(&self, error: &ServeError) -> String {
        self.json(Chunk::Error(error))
    }

    pub fn json(&self, chunk: Chunk) -> String {
        let text_bytes = if let Chunk::Content(text) = chunk {
            text.len()
        } else {
            0
        };
        let mut out = Vec::with_capacity(self.head.len() + text_bytes + TEXT_ROOM_BYTES);
        self.write_json(&mut out, chunk);
        into_string(out)
    }

    /// Appends `data: {json}` and the blank line that ends the event.
    pub fn write_sse(&self, out: &mut Vec<u8>, chunk: Chunk) {
        out.extend_from_slice(b"data: ");
        self.write_json(out, chunk);
        out.extend_from_slice(b"\n\n");
    }

    pub fn write_json(&self, out: &mut Vec<u8>, chunk: Chunk) {
        match chunk {
            Chunk::Role => self.write_choice(out, None, |out| {
                out.extend_from_slice(br#"{"role":"assistant","content":""}"#);
            }),
            Chunk::Content(text) => self.write_choice(out, None, |out| {
                out.extend_from_slice(br#"{"content":"#);
                write_value(out, text);
                out.push(b'}');
            }),
            Chunk::Finish(reason) => {
                self.write_choice(out, Some(reason), |out| out.extend_from_slice(b"{}"))
            }
            Chunk::Receipt(receipt) => {
                self.write_choice(out, None, |out| out.extend_from_slice(b"{}"));
                // One more key before the object's end.
                out.pop();
                out.extend_from_slice(br#","cadenced":{"receipt":"#);
                write_value(out, receipt);
                out.extend_from_slice(b"}}");
            }
            Chunk::Usage(usage, timings) => {
                out.extend_from_slice(self.head.as_bytes());
                out.extend_from_slice(br#"],"usage":"#);
                write_value(out, &usage_value(usage));
                out.extend_from_slice(br#","timings":"#);
                write_value(out, &timings);
                out.push(b'}');
            }
            Chunk::Error(error) => write_value(out, &error.to_json()),
        }
    }

    fn write_choice(
        &self,
        out: &mut Vec<u8>,
        finish: Option<FinishReason>,
        delta: impl FnOnce(&mut Vec<u8>),
    ) {
        out.extend_from_slice(self.head.as_bytes());
        out.extend_from_slice(CHOICE.as_bytes());
        delta(out);
        out.extend_from_slice(match finish {
            None => br#","finish_reason":null}]"#,
            Some(FinishReason::Stop) => br#","finish_reason":"stop"}]"#,
            Some(FinishReason::Length) => br#","finish_reason":"length"}]"#,
            Some(FinishReason::Slo) => br#","finish_reason":"slo"}]"#,
        });
        out.extend_from_slice(if self.include_usage {
            br#","usage":null}"#
        } else {
            b"}"
        });
    }
}

/// A whole reply that was not streamed.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    pub id: &'a str,
    pub created: u64,
    pub model: &'a str,
    pub content: &'a str,
    pub finish_reason: FinishReason,
    pub usage: Usage,
    pub timings: Timings,
}

pub fn completion_json(completion: &Completion) -> String {
    json!({
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": completion.content, "refusal": null },
            "logprobs": null,
            "finish_reason": finish_reason_str(completion.finish_reason),
        }],
        "usage": usage_value(completion.usage),
        "timings": completion.timings,
    })
    .to_string()
}

/// Neither a `Vec` nor a string or number can fail here.
fn write_value<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let _ = serde_json::to_writer(out, value);
}

/// serde_json writes UTF-8; the other branch is there to have no panic in a reply's path.
fn into_string(json: Vec<u8>) -> String {
    String::from_utf8(json)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
