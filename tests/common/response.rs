//! A response as it came, with what a client would make of it.

use serde_json::Value;

/// A response as it came.
#[derive(Debug, Clone)]
pub struct Response {
    /// 0 if none came.
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Without the chunks' framing.
    pub body: String,
    /// The body ended as its framing says it should, and the connection after it if that was waited for.
    pub complete: bool,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    pub fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type")
            .is_some_and(|t| t.starts_with("text/event-stream"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The stream's events, `[DONE]` included.
    pub fn events(&self) -> Vec<String> {
        self.body
            .lines()
            .filter_map(|l| l.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }

    /// The stream's events as JSON, without `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        self.events()
            .iter()
            .filter_map(|e| serde_json::from_str(e).ok())
            .collect()
    }

    /// Whether this is a stream that says that it is whole.
    pub fn is_done(&self) -> bool {
        self.complete && self.events().last().is_some_and(|e| e == "[DONE]")
    }

    /// The text of a reply, streamed or not.
    pub fn text(&self) -> String {
        if self.is_stream() {
            let text = |v: &Value| {
                v["choices"][0]["delta"]["content"]
                    .as_str()
                    .map(str::to_owned)
            };
            self.chunks().iter().filter_map(text).collect()
        } else {
            self.json()["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        }
    }

    /// Why the reply ended, streamed or not.
    pub fn finish_reason(&self) -> Option<String> {
        let chunks = if self.is_stream() {
            self.chunks()
        } else {
            vec![self.json()]
        };
        chunks
            .iter()
            .find_map(|c| c["choices"][0]["finish_reason"].as_str().map(str::to_owned))
    }

    /// What the reply cost, streamed (if it was asked for) or not.
    pub fn usage(&self) -> Value {
        let chunks = if self.is_stream() {
            self.chunks()
        } else {
            vec![self.json()]
        };
        let usage = chunks.iter().rev().find(|c| c["usage"].is_object());
        usage.unwrap_or_else(|| panic!("no usage: {self:?}"))["usage"].clone()
    }

    /// How many tokens of the prompt came out of the prefix cache.
    pub fn cached_tokens(&self) -> u64 {
        let usage = self.usage();
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        cached.as_u64().unwrap_or_else(|| panic!("{usage}"))
    }

    /// The code of the error that the reply is or ends with.
    pub fn error_code(&self) -> Option<String> {
        let last = if self.is_stream() {
            self.chunks().pop()?
        } else {
            self.json()
        };
        last["error"]["code"].as_str().map(str::to_owned)
    }
}
