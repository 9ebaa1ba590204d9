//! The promise a request asks for: `slo.e2e_ms`, `slo.ttft_ms` and `slo.confidence` in the body, else headers, else
//! the default.
//!
//! Each of them is looked up on its own, so that a proxy may set one by header and a client the other in the body.

use std::ops::RangeInclusive;

use super::fields::{number, object, string, take, unsupported, whole, wrong_value};
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
    if let Some(mode) = string("slo.mode", take(&mut slo, "mode"))? {
        return Err(unsupported(
            "slo.mode",
            format_args!("'slo.mode' {} is", excerpt(&mode)),
        ));
    }
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
    Ok(Slo {
        confidence: confidence.or(default.confidence),
        e2e_ms: one("e2e_ms", "slo.e2e_ms", "x-slo-e2e-ms")?.or(default.e2e_ms),
        ttft_ms: one("ttft_ms", "slo.ttft_ms", "x-slo-ttft-ms")?.or(default.ttft_ms),
    })
}

const CONFIDENCE_HEADER: &str = "x-slo-confidence";

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
