//! Options that change what a reply means and that this server does not implement: refused unless they say "off".
//!
//! Ignoring them would answer 200 with something other than what was asked for. Everything not listed here or read
//! elsewhere is a hint or unknown, and ignored as OpenAI ignores it.

use serde_json::Value;

use super::fields::{take, unsupported};
use super::json::Object;
use crate::error::ServeError;

/// When an option leaves the reply as it would be without it.
#[derive(Clone, Copy)]
enum Neutral {
    /// Only when absent or null.
    Never,
    False,
    Number(f64),
    Word(&'static str),
    /// `[]` or `{}`.
    Empty,
    /// `{"type": "text"}`
    TextFormat,
    /// `["text"]`
    TextOnly,
    /// A map of numbers that are all zero.
    Zeros,
}

/// OpenAI's options, then those of vLLM and llama.cpp that constrain or extend the reply.
const OPTIONS: &[(&str, Neutral)] = &[
    ("n", Neutral::Number(1.0)),
    ("response_format", Neutral::TextFormat),
    ("logprobs", Neutral::False),
    ("top_logprobs", Neutral::Number(0.0)),
    ("presence_penalty", Neutral::Number(0.0)),
    ("frequency_penalty", Neutral::Number(0.0)),
    ("repeat_penalty", Neutral::Number(1.0)),
    ("repetition_penalty", Neutral::Number(1.0)),
    ("logit_bias", Neutral::Zeros),
    ("functions", Neutral::Empty),
    ("function_call", Neutral::Word("none")),
    ("modalities", Neutral::TextOnly),
    ("audio", Neutral::Never),
    ("web_search_options", Neutral::Never),
    ("best_of", Neutral::Number(1.0)),
    ("echo", Neutral::False),
    ("continue_final_message", Neutral::False),
    ("use_beam_search", Neutral::False),
    ("min_tokens", Neutral::Number(0.0)),
    ("stop_token_ids", Neutral::Empty),
    ("bad_words", Neutral::Empty),
    ("grammar", Neutral::Word("")),
    ("json_schema", Neutral::Empty),
    ("structured_outputs", Neutral::Empty),
    ("guided_json", Neutral::Never),
    ("guided_regex", Neutral::Never),
    ("guided_choice", Neutral::Empty),
    ("guided_grammar", Neutral::Never),
    ("prompt_logprobs", Neutral::Number(0.0)),
];

/// The names above, for the reader of the body.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

pub fn refuse_unsupported(body: &mut Object) -> Result<(), ServeError> {
    for (name, neutral) in OPTIONS {
        if let Some(value) = take(body, name)
            && !neutral.admits(&value)
        {
            return Err(unsupported(name, format_args!("this value of '{name}' is")));
        }
    }
    Ok(())
}

impl Neutral {
    fn admits(self, value: &Value) -> bool {
        match self {
            Self::Never => false,
            Self::False => *value == Value::Bool(false),
            Self::Number(neutral) => is_number(value, neutral),
            Self::Word(neutral) => value.as_str() == Some(neutral),
            Self::Empty => {
                value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(Object::is_empty)
            }
            Self::TextFormat => value.get("type").and_then(Value::as_str) == Some("text"),
            Self::TextOnly => value
                .as_array()
                .is_some_and(|list| list.iter().all(|item| item.as_str() == Some("text"))),
            Self::Zeros => value
                .as_object()
                .is_some_and(|map| map.values().all(|bias| is_number(bias, 0.0))),
        }
    }
}

fn is_number(value: &Value, wanted: f64) -> bool {
    value.as_f64() == Some(wanted)
}
