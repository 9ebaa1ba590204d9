//! The numbers by which rungs are compared: where each is in a summary, how it is shown and which way is worse.

use super::Point;
use crate::load::metrics::Summary;
use crate::load::quantile::{P50, P99};

/// See the module's text.
pub struct Metric {
    pub name: &'static str,
    pub get: fn(&Summary) -> Option<f64>,
    /// Whether the value is only a lower bound, because clients gave up.
    pub is_bound: fn(&Summary) -> bool,
    pub less_is_worse: bool,
}

pub const TTFT_P50: Metric = Metric {
    name: "TTFT p50, s",
    get: |s| s.ttft.p50,
    is_bound: |s| s.ttft.is_bound(P50),
    less_is_worse: false,
};
pub const TTFT_P99: Metric = Metric {
    name: "TTFT p99, s",
    get: |s| s.ttft.p99,
    is_bound: |s| s.ttft.is_bound(P99),
    less_is_worse: false,
};
pub const E2E_P50: Metric = Metric {
    name: "E2E p50, s",
    get: |s| s.e2e.p50,
    is_bound: |s| s.e2e.is_bound(P50),
    less_is_worse: false,
};
pub const E2E_P99: Metric = Metric {
    name: "E2E p99, s",
    get: |s| s.e2e.p99,
    is_bound: |s| s.e2e.is_bound(P99),
    less_is_worse: false,
};
pub const FRAME_GAP_P50: Metric = Metric {
    name: "frame gap p50, ms",
    get: |s| s.frame_gap.p50.map(|v| v * 1e3),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const FRAME_GAP_P99: Metric = Metric {
    name: "frame gap p99, ms",
    get: |s| s.frame_gap.p99.map(|v| v * 1e3),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const FRAME_GAP_P999: Metric = Metric {
    name: "frame gap p99.9, ms",
    get: |s| s.frame_gap.p999.map(|v| v * 1e3),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const FRAME_GAP_MAX: Metric = Metric {
    name: "frame gap maximum, ms",
    get: |s| s.frame_gap.max.map(|v| v * 1e3),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const TOKEN_GAP_P50: Metric = Metric {
    name: "token gap p50, ms",
    get: |s| s.token_gap.p50.map(|v| v * 1e3),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const GOODPUT: Metric = Metric {
    name: "goodput, 1/s",
    get: |s| s.slo.map(|slo| slo.goodput_per_s),
    is_bound: |_| false,
    less_is_worse: true,
};
pub const OF_ALL: Metric = Metric {
    name: "SLO met, of all, %",
    get: |s| s.slo?.attainment_of_all.map(|v| v * 100.0),
    is_bound: |_| false,
    less_is_worse: true,
};
pub const OF_ADMITTED: Metric = Metric {
    name: "SLO met, of admitted, %",
    get: |s| s.slo?.attainment_of_admitted.map(|v| v * 100.0),
    is_bound: |_| false,
    less_is_worse: true,
};
pub const SHED: Metric = Metric {
    name: "shed, %",
    get: |s| (s.measured > 0).then(|| 100.0 * s.shed as f64 / s.measured as f64),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const PREFIX_HITS: Metric = Metric {
    name: "prefix hits, %",
    get: |s| s.cached_share.map(|v| v * 100.0),
    is_bound: |_| false,
    less_is_worse: true,
};
pub const IN_FLIGHT: Metric = Metric {
    name: "in flight, mean",
    get: |s| Some(s.mean_in_flight),
    is_bound: |_| false,
    less_is_worse: false,
};
pub const OUTPUT_TOKENS: Metric = Metric {
    name: "output tokens/s, middle 60%",
    get: |s| Some(s.capacity.tokens_per_s),
    is_bound: |_| false,
    less_is_worse: true,
};
pub const REQUESTS: Metric = Metric {
    name: "requests/s, middle 60%",
    get: |s| Some(s.capacity.requests_per_s),
    is_bound: |_| false,
    less_is_worse: true,
};

impl Metric {
    /// Median over the seeds with the lowest and the highest; a dash where no seed has the value.
    pub fn show(&self, point: &Point) -> String {
        let bound = point.cells.iter().any(|c| (self.is_bound)(&c.summary));
        point.spread(self.get).map_or_else(
            || "–".into(),
            |s| {
                let digits = digits(if s.median == 0.0 { s.max } else { s.median });
                let sign = if bound { "≥ " } else { "" };
                if point.cells.len() == 1 {
                    return format!("{sign}{:.digits$}", s.median);
                }
                sign.to_owned() + &s.show(digits)
            },
        )
    }
}

/// Decimals that leave three figures of a value, three decimals at most.
pub fn digits(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        0.0 => 0,
        _ => 3,
    }
}
