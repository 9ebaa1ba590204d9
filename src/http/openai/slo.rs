//! The promise a request asks for: `slo.e2e_ms`, `slo.ttft_ms`, `slo.confidence`, `slo.mode` and `slo.on_miss` in the
//! body, else headers (but for the last), else the default.
//!
//! Each of them is looked up on its own, so that a proxy may set one by header and a client the other in the body.
//! Other keys in `slo` are refused: a request that misspells what it must have would run without it.

use std::ops::RangeInclusive;

use super::fields::{number, object, string, take, whole, wrong_value};
use super::json::Object;
use crate::config::CONFIDENCE;
use crate::error::{ServeError, excerpt};

/// Up to 24 hours.
const SLO_MS: RangeInclusive<i64> = 1..=86_400_000;

/// Service level objective: bounds on the time to the last and to the first token, both from arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Slo {
    pub e2e_ms: Option<u64>,
    pub ttft_ms: Option<u64>,
    /// The confidence of the promise, if not the configured one.
    pub confidence: Option<f64>,
    /// No promise at all, and behind those that have one.
    pub best_effort: bool,
    /// The reply ends where its deadline for the last token does.
    pub stop_on_miss: bool,
}

pub fn parse_slo(
    body: &mut Object,
    headers: &dyn Fn(&str) -> Option<String>,
    default: Slo,
) -> Result<Slo, ServeError> {
    let mut slo = object("slo", take(body, "slo"))?.unwrap_or_default();
    let confidence = number("slo.confidence", take(&mut slo, "confidence"), CONFIDENCE)?;
    let confidence = match confidence {
        Some(confidence) => Some(confidence),
        None => headers(CONFIDENCE_HEADER)
            .map(|text| confidence_from_header(&text))
            .transpose()?,
    };
    let mode = match string("slo.mode", take(&mut slo, "mode"))? {
        Some(mode) => Some(one_of("slo.mode", &mode, ["promised", "best_effort"])?),
        None => headers(MODE_HEADER)
            .map(|mode| one_of(MODE_HEADER, mode.trim(), ["promised", "best_effort"]))
            .transpose()?,
    };
    let on_miss = string("slo.on_miss", take(&mut slo, "on_miss"))?
        .map(|word| one_of("slo.on_miss", &word, ["continue", "stop"]))
        .transpose()?;
    let mut one = |key: &str, param: &str, header: &str| {
        let from_body = whole(param, take(&mut slo, key))?
            .map(|ms| in_range(param, ms))
            .transpose()?;
        match from_body {
            Some(ms) => Ok(Some(ms)),
            None => headers(header)
                .map(|text| from_header(header, &text))
                .transpose(),
        }
    };
    let e2e_ms = one("e2e_ms", "slo.e2e_ms", "x-slo-e2e-ms")?.or(default.e2e_ms);
    let ttft_ms = one("ttft_ms", "slo.ttft_ms", "x-slo-ttft-ms")?.or(default.ttft_ms);
    if let Some(other) = slo.keys().next() {
        return Err(ServeError::invalid(
            "slo",
            "unknown_field",
            format!(
                "{} is no field of 'slo', which has e2e_ms, ttft_ms, confidence, mode and on_miss",
                excerpt(other)
            ),
        ));
    }
    let stop_on_miss = on_miss == Some(1);
    if stop_on_miss && e2e_ms.is_none() {
        return Err(wrong_value(
            "slo.on_miss",
            "needs a deadline to stop at, slo.e2e_ms",
            "'stop' without one",
        ));
    }
    Ok(Slo {
        confidence: confidence.or(default.confidence),
        e2e_ms,
        ttft_ms,
        best_effort: mode == Some(1),
        stop_on_miss,
    })
}

const CONFIDENCE_HEADER: &str = "x-slo-confidence";
const MODE_HEADER: &str = "x-slo-mode";

/// Which of two words it is.
fn one_of(param: &str, word: &str, words: [&str; 2]) -> Result<usize, ServeError> {
    words.iter().position(|w| *w == word).ok_or_else(|| {
        let rule = format_args!("must be '{}' or '{}'", words[0], words[1]);
        wrong_value(param, rule, excerpt(word))
    })
}

fn confidence_from_header(text: &str) -> Result<f64, ServeError> {
    match text.trim().parse() {
        Ok(confidence) if CONFIDENCE.contains(&confidence) => Ok(confidence),
        _ => Err(wrong_value(
            CONFIDENCE_HEADER,
            format_args!(
                "must be between {} and {}",
                CONFIDENCE.start(),
                CONFIDENCE.end()
            ),
            excerpt(text),
        )),
    }
}

fn from_header(header: &str, text: &str) -> Result<u64, ServeError> {
    match text.trim().parse() {
        Ok(ms) => in_range(header, ms),
        Err(_) => Err(bad(header, excerpt(text))),
    }
}

fn in_range(param: &str, ms: i64) -> Result<u64, ServeError> {
    match u64::try_from(ms) {
        Ok(valid) if SLO_MS.contains(&ms) => Ok(valid),
        _ => Err(bad(param, ms)),
    }
}

fn bad(param: &str, got: impl std::fmt::Display) -> ServeError {
    wrong_value(
        param,
        format_args!(
            "must be whole milliseconds from {} to {}",
            SLO_MS.start(),
            SLO_MS.end()
        ),
        got,
    )
}
