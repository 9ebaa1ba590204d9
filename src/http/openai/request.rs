//! A chat request: bytes and headers in, a valid [`ChatRequest`] or one 400 out. Nothing behind it checks again.

use serde_json::Value;

use super::fields::{boolean, list, number, object, string, take, whole, wrong_type, wrong_value};
use super::json::{Object, read_object};
use super::messages::parse_messages;
use super::slo::{Slo, parse_slo};
use super::tools::parse_tools;
use super::unsupported;
use crate::config::{Config, SamplingConfig};
use crate::error::ServeError;
use crate::model::sampling::SamplingParams;

/// What the operator allows one request. All values come from the configuration and are positive.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLimits {
    /// The ceiling on `max_tokens`, whatever a client asks for.
    pub max_output_tokens: u32,
    /// `max_tokens` of a request that names none.
    pub default_max_tokens: u32,
    /// Of what it leaves out.
    pub default_sampling: SamplingConfig,
    pub default_slo: Slo,
    pub max_stop_strings: usize,
    /// The text held back while it may still become a stop string is as long as the longest of them.
    pub max_stop_bytes: usize,
    pub max_messages: usize,
    /// JSON values in the fields that are kept; bounds memory per body byte.
    pub max_json_values: usize,
}

impl RequestLimits {
    /// Those of a server that is configured so.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let some = |ms: u64| (ms > 0).then_some(ms);
        Self {
            max_output_tokens: config.limits.max_output_tokens,
            default_max_tokens: config.limits.default_max_tokens,
            default_sampling: config.sampling,
            default_slo: Slo {
                e2e_ms: some(config.slo.e2e_ms),
                ttft_ms: some(config.slo.ttft_ms),
                ..Slo::default()
            },
            max_stop_strings: 4,
            max_stop_bytes: 1024,
            max_messages: 4096,
            max_json_values: 100_000,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// As sent; looked up in the table of loaded models and used for nothing else.
    pub model: Option<String>,
    /// For the chat template: an array of objects whose `content` is always a string.
    pub messages: Value,
    /// A non-empty array for the chat template.
    pub tools: Option<Value>,
    pub stream: bool,
    /// Only ever true with `stream`.
    pub include_usage: bool,
    /// From 1 to the ceiling.
    pub max_tokens: u32,
    pub sampling: SamplingParams,
    /// Non-empty strings.
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub slo: Slo,
    pub user: Option<String>,
}

const FIELDS: &[&str] = &[
    "model",
    "messages",
    "tools",
    "tool_choice",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "ignore_eos",
    "slo",
    "user",
];

/// `headers` looks a header up by its lower-case name; it should replace bytes that are not UTF-8 rather than hide the
/// header, so that a bad `x-slo-…` is refused and not ignored.
pub fn parse_chat(
    body: &[u8],
    headers: &dyn Fn(&str) -> Option<String>,
    limits: &RequestLimits,
) -> Result<ChatRequest, ServeError> {
    let known: Vec<&str> = FIELDS.iter().copied().chain(unsupported::names()).collect();
    let mut body = read_object(body, &known, limits.max_json_values)?;
    // The order is the order in which a request with several faults hears of them.
    let model = string("model", take(&mut body, "model"))?;
    let messages = parse_messages(
        take(&mut body, "messages"),
        limits.max_messages,
        limits.max_json_values,
    )?;
    unsupported::refuse_unsupported(&mut body)?;
    let stream = boolean("stream", take(&mut body, "stream"))?.unwrap_or(false);
    Ok(ChatRequest {
        model,
        messages,
        tools: parse_tools(&mut body)?,
        stream,
        include_usage: parse_include_usage(&mut body)? && stream,
        max_tokens: parse_max_tokens(&mut body, limits)?,
        sampling: parse_sampling(&mut body, &limits.default_sampling)?,
        stop: parse_stop(&mut body, limits)?,
        ignore_eos: boolean("ignore_eos", take(&mut body, "ignore_eos"))?.unwrap_or(false),
        slo: parse_slo(&mut body, headers, limits.default_slo)?,
        user: string("user", take(&mut body, "user"))?,
    })
}

fn parse_include_usage(body: &mut Object) -> Result<bool, ServeError> {
    let mut options = object("stream_options", take(body, "stream_options"))?.unwrap_or_default();
    let include_usage = take(&mut options, "include_usage");
    Ok(boolean("stream_options.include_usage", include_usage)?.unwrap_or(false))
}

/// `max_completion_tokens` is the current name and wins. The ceiling applies to every way of asking, and of not asking.
fn parse_max_tokens(body: &mut Object, limits: &RequestLimits) -> Result<u32, ServeError> {
    let mut one = |name: &str| match whole(name, take(body, name))? {
        None => Ok(None),
        Some(tokens) if tokens < 1 => Err(wrong_value(name, "must be at least 1", tokens)),
        // More than 32 bits is more than any ceiling.
        Some(tokens) => Ok(Some(u32::try_from(tokens).unwrap_or(u32::MAX))),
    };
    let newer = one("max_completion_tokens")?;
    let older = one("max_tokens")?;
    Ok(newer
        .or(older)
        .unwrap_or(limits.default_max_tokens)
        .min(limits.max_output_tokens))
}

/// Defaults are OpenAI's: temperature 1, everything else off.
fn parse_sampling(
    body: &mut Object,
    default: &SamplingConfig,
) -> Result<SamplingParams, ServeError> {
    let mut real = |name: &str, max: f64| number(name, take(body, name), 0.0..=max);
    let temperature = real("temperature", 2.0)?.unwrap_or(default.temperature);
    let top_p = real("top_p", 1.0)?.unwrap_or(default.top_p);
    let min_p = real("min_p", 1.0)?.unwrap_or(default.min_p);
    // -0.0 is in range; adding zero makes it the one zero that means argmax.
    let single = |value: f64| value as f32 + 0.0;
    Ok(SamplingParams {
        temperature: single(temperature),
        top_p: single(top_p),
        top_k: parse_top_k(body)?.unwrap_or(default.top_k),
        min_p: single(min_p),
        seed: parse_seed(body)?,
    })
}

/// 0 and -1 both mean off in the wild; 0 does here.
fn parse_top_k(body: &mut Object) -> Result<Option<u32>, ServeError> {
    match whole("top_k", take(body, "top_k"))? {
        None => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(top_k) if top_k < 0 => Err(wrong_value(
            "top_k",
            "must be at least 0, or -1 for off",
            top_k,
        )),
        Some(top_k) => Ok(Some(u32::try_from(top_k).unwrap_or(u32::MAX))),
    }
}

/// -1 is what front ends send for "random". Every other seed is fixed, negative ones included: the 64 bits are kept as
/// they are, so that no two seeds are the same and none becomes an engine's 32-bit "random" sentinel.
fn parse_seed(body: &mut Object) -> Result<u64, ServeError> {
    match whole("seed", take(body, "seed"))? {
        None | Some(-1) => Ok(rand::random()),
        Some(seed) => Ok(seed.cast_unsigned()),
    }
}

fn parse_stop(body: &mut Object, limits: &RequestLimits) -> Result<Vec<String>, ServeError> {
    let listed = match take(body, "stop") {
        None => return Ok(Vec::new()),
        Some(text @ Value::String(_)) => vec![text],
        Some(value @ Value::Array(_)) => list("stop", Some(value))?.unwrap_or_default(),
        Some(other) => {
            return Err(wrong_type(
                "stop",
                "a string or an array of strings",
                &other,
            ));
        }
    };
    if listed.len() > limits.max_stop_strings {
        let rule = format_args!("must hold at most {} strings", limits.max_stop_strings);
        return Err(wrong_value("stop", rule, listed.len()));
    }
    let mut stop = Vec::with_capacity(listed.len());
    for (index, value) in listed.into_iter().enumerate() {
        let Value::String(text) = value else {
            return Err(wrong_type(
                format_args!("stop[{index}]"),
                "a string",
                &value,
            ));
        };
        if text.len() > limits.max_stop_bytes {
            let rule = format_args!("must be at most {} bytes", limits.max_stop_bytes);
            return Err(wrong_value(format_args!("stop[{index}]"), rule, text.len()));
        }
        // An empty string would match at once and end every reply.
        if !text.is_empty() {
            stop.push(text);
        }
    }
    Ok(stop)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "cases_tests.rs"]
mod cases;

#[cfg(test)]
#[path = "generation_tests.rs"]
mod generation;

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile;

#[cfg(test)]
#[path = "property_tests.rs"]
mod properties;
