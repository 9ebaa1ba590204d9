//! What a chunk of a streamed answer says, for a measurement: whether it brought text, why it ended, its bill.
//!
//! Nearly all chunks bring text and nothing else, so those are told by the keys they have, without reading the
//! JSON: about 60 ns instead of a microsecond and more. That is safe because a raw quote can't stand inside a
//! JSON string: `"content":"` with `{` or `,` before it is a key and the beginning of its value, wherever it is
//! found, and a value that does not begin with a quote is not empty. Whatever else is in a chunk (a reason, a
//! bill, an error, another layout) goes the long way through serde.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;

/// A search that is prepared once: preparing it takes longer than searching a chunk does.
type Search = LazyLock<Finder<'static>>;

const CONTENT_KEY: &str = r#""content":""#;
static CONTENT: Search = LazyLock::new(|| Finder::new(CONTENT_KEY));
static GOES_ON: Search = LazyLock::new(|| Finder::new(r#""finish_reason":null"#));
/// Any of these is worth the long way.
static MORE: LazyLock<[Finder<'static>; 3]> =
    LazyLock::new(|| [r#""usage":{"#, r#""error":"#, r#""timings":"#].map(Finder::new));

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// It brought text: a frame. An empty text is none, and neither is the role or the reason at the end.
    pub text: bool,
    pub finish_reason: Option<String>,
    pub usage: Option<Usage>,
    pub error: Option<Failure>,
    pub split: Option<Split>,
    pub promise: Option<Promise>,
}

/// The bill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "RawUsage")]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct RawUsage {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

impl From<RawUsage> for Usage {
    fn from(raw: RawUsage) -> Self {
        Self {
            prompt_tokens: raw.prompt_tokens,
            completion_tokens: raw.completion_tokens,
            cached_tokens: raw.prompt_tokens_details.and_then(|d| d.cached_tokens),
        }
    }
}

/// An error in OpenAI's envelope, as a body or as an event.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Failure {
    pub message: Option<String>,
    pub code: Option<serde_json::Value>,
}

impl Failure {
    /// The stable word for what went wrong, if there is one.
    pub fn code(&self) -> Option<String> {
        match self.code.as_ref()? {
            serde_json::Value::String(code) => Some(code.clone()),
            serde_json::Value::Null => None,
            other => Some(other.to_string()),
        }
    }
}

/// The server's own account of the time to the first token, under the key `timings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Split {
    pub queue_ms: Option<f64>,
    pub prefill_ms: Option<f64>,
    pub first_decode_ms: Option<f64>,
}

/// What was promised and whether it was kept: a chunk's `cadenced.receipt`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Promise {
    pub bound_ms: Option<f64>,
    pub verdict: Option<String>,
    pub confidence: Option<f64>,
    pub kept: Option<bool>,
}

/// What a chunk holds that only this daemon sends.
#[derive(Deserialize)]
struct Cadenced {
    receipt: Option<Promise>,
}

/// Reads the data of one event.
///
/// # Errors
/// When it is no JSON object.
pub fn read(data: &[u8]) -> serde_json::Result<Chunk> {
    if is_plain_text(data) {
        return Ok(Chunk {
            text: true,
            ..Chunk::default()
        });
    }
    Ok(Chunk::from(serde_json::from_slice::<Raw>(data)?))
}

/// Whether the chunk certainly brings text and nothing that is worth reading.
fn is_plain_text(data: &[u8]) -> bool {
    has_text(data)
        && GOES_ON.find(data).is_some()
        && MORE.iter().all(|key| key.find(data).is_none())
        && data.last() == Some(&b'}')
}

fn has_text(data: &[u8]) -> bool {
    CONTENT.find(data).is_some_and(|at| {
        let is_key = at > 0 && matches!(data[at - 1], b'{' | b',');
        let value = data.get(at + CONTENT_KEY.len());
        is_key && value.is_some_and(|b| *b != b'"')
    })
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Failure>,
    timings: Option<Split>,
    cadenced: Option<Cadenced>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    /// The older completions.
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    /// A model's thoughts are tokens like others.
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
}

impl From<Raw> for Chunk {
    fn from(raw: Raw) -> Self {
        let texts = raw.choices.iter().flat_map(|c| {
            let delta = c.delta.as_ref();
            [
                c.text.as_ref(),
                delta.and_then(|d| d.content.as_ref()),
                delta.and_then(|d| d.reasoning_content.as_ref()),
            ]
        });
        let text = texts.flatten().any(|t| !t.is_empty());
        Self {
            text,
            finish_reason: raw.choices.into_iter().find_map(|c| c.finish_reason),
            usage: raw.usage,
            error: raw.error,
            split: raw.timings,
            promise: raw.cadenced.and_then(|c| c.receipt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn chunk(delta: &Value, finish: Option<&str>) -> String {
        json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }], "usage": null,
        })
        .to_string()
    }

    proptest! {
        #[test]
        fn the_short_way_says_what_the_long_way_says(
            text in prop_oneof![
                any::<String>(),
                r#"[\\"{},:a]{0,12}(content|finish_reason|usage|error)?[\\"{},:a]{0,12}"#,
            ],
            key in prop_oneof![Just("content".to_owned()), Just("reasoning_content".to_owned()), any::<String>()],
            model in any::<String>(),
            finish in prop_oneof![Just(None), Just(Some("stop"))],
        ) {
            let mut delta = serde_json::Map::new();
            delta.insert(key, text.into());
            let mut value: Value = serde_json::from_str(&chunk(&delta.into(), finish)).unwrap();
            value["model"] = model.into();
            let data = value.to_string();
            let long = Chunk::from(serde_json::from_str::<Raw>(&data).unwrap());
            prop_assert_eq!(read(data.as_bytes()).unwrap(), long);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn a_chunk_of_the_daemon_goes_the_short_way() {
        use cadenced::http::openai::{Chunk as Written, ChunkWriter};
        for writer in [
            ChunkWriter::new("chatcmpl-1", 1, "m"),
            ChunkWriter::new("i", 1, "m").with_usage(true),
        ] {
            let data = writer.json(Written::Content("a \"word\"\n"));
            assert!(is_plain_text(data.as_bytes()), "{data}");
            assert!(!read(writer.role_chunk().as_bytes()).unwrap().text);
        }
    }

    #[test]
    fn the_terminal_frame_is_no_text() {
        let last = read(chunk(&json!({}), Some("length")).as_bytes()).unwrap();
        assert!(!last.text);
        assert_eq!(last.finish_reason.as_deref(), Some("length"));
        assert!(
            !read(chunk(&json!({ "role": "assistant", "content": "" }), None).as_bytes())
                .unwrap()
                .text
        );
        // Some servers put the last text and the reason into one chunk: that is a frame.
        assert!(
            read(chunk(&json!({ "content": "x" }), Some("stop")).as_bytes())
                .unwrap()
                .text
        );
    }

    #[test]
    fn the_bill_an_error_the_split_and_the_receipt_are_read() {
        let data = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":
            {"cached_tokens":4}},"timings":{"queue_ms":1.5,"prefill_ms":20,"first_decode_ms":null}}"#;
        let bill = read(data.as_bytes()).unwrap();
        assert_eq!(
            bill.usage,
            Some(Usage {
                prompt_tokens: 7,
                completion_tokens: 3,
                cached_tokens: Some(4)
            })
        );
        assert_eq!(
            bill.split,
            Some(Split {
                queue_ms: Some(1.5),
                prefill_ms: Some(20.0),
                first_decode_ms: None
            })
        );
        let error = read(br#"{"error":{"message":"no","type":"server_error","param":null,"code":"engine_error"}}"#);
        assert_eq!(
            error.unwrap().error.unwrap().code().as_deref(),
            Some("engine_error")
        );
    }

    /// The daemon's own words.
    #[test]
    fn a_receipt_is_read_as_the_daemon_writes_it() {
        use cadenced::http::openai::{Chunk as Written, ChunkWriter};
        use cadenced::logic::conformal::receipt::Receipt;
        let receipt = Receipt {
            verdict: "promised",
            bound_ms: Some(900),
            promised_ms: Some(900),
            actual_ms: 700,
            kept: Some(true),
            confidence: 0.95,
            slo_ms: Some(1000),
            slo_met: Some(true),
            demoted: false,
        };
        let data = ChunkWriter::new("id", 1, "model").json(Written::Receipt(&receipt));
        let read = read(data.as_bytes()).unwrap();
        assert!(!read.text, "it is no token");
        let promise = read.promise.unwrap();
        assert_eq!(
            (promise.bound_ms, promise.confidence, promise.kept),
            (Some(900.0), Some(0.95), Some(true))
        );
        assert_eq!(promise.verdict.as_deref(), Some("promised"));
    }

    #[test]
    fn a_bill_in_every_chunk_is_read_in_every_chunk() {
        let data = r#"{"choices":[{"delta":{"content":"x"},"finish_reason":null}],"usage":{"completion_tokens":2}}"#;
        let read = read(data.as_bytes()).unwrap();
        assert!(read.text && read.usage.is_some());
    }
}
