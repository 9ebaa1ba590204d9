//! The promise a request asks for: `slo.e2e_ms` and `slo.ttft_ms` in the body, else headers, else the default.
//!
//! Each of the two is looked up on its own, so that a proxy may set one by header and a client the other in the body.

use std::ops::RangeInclusive;

use super::fields::{object, take, whole, wrong_value};
use super::json::Object;
use crate::error::{ServeError, excerpt};

/// Up to 24 hours.
const SLO_MS: RangeInclusive<i64> = 1..=86_400_000;

/// Service level objective: bounds on the time to the last and to the first token, both from arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slo {
    pub e2e_ms: Option<u64>,
    pub ttft_ms: Option<u64>,
}

pub fn parse_slo(
    body: &mut Object,
    headers: &dyn Fn(&str) -> Option<String>,
    default: Slo,
) -> Result<Slo, ServeError> {
    let mut slo = object("slo", take(body, "slo"))?.unwrap_or_default();
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
        e2e_ms: one("e2e_ms", "slo.e2e_ms", "x-slo-e2e-ms")?.or(default.e2e_ms),
        ttft_ms: one("ttft_ms", "slo.ttft_ms", "x-slo-ttft-ms")?.or(default.ttft_ms),
    })
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
