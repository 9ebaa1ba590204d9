//! A line of a trace: what admission saw of a request, and what became of it. Calibrations are made of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::features::{COUNT, Features, NAMES};
use super::policy::Verdict;
use super::predictor::{Latency, Row};

/// One for each request that was decided on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceRow {
    /// When the daemon started, in Unix seconds: rows of one run belong together.
    pub run: u64,
    pub request: u64,
    /// Since the start.
    pub arrival_s: f64,
    pub verdict: Cow<'static, str>,
    pub confidence: f64,
    /// From the decision, as `latency_ms` is.
    pub bound_ms: Option<f64>,
    pub slo_ms: Option<u64>,
    /// From the arrival to the decision.
    pub waited_ms: f64,
    #[serde(with = "by_name")]
    pub features: Features,
    pub outcome: Cow<'static, str>,
    /// To the server's last token; `None` for what never ran.
    pub latency_ms: Option<f64>,
    /// Whether it would have taken longer, had its client stayed.
    pub censored: bool,
    /// Whether it was promised something and ran in the best-effort lane all the same.
    pub demoted: bool,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
}

impl TraceRow {
    /// What can be learnt from it; `None` for what never ran, and for what ran in the lane that yields.
    #[must_use]
    pub fn observation(&self) -> Option<Row> {
        let ms = self.latency_ms.filter(|ms| ms.is_finite())?;
        let ran = self.verdict != Verdict::BestEffort.label() && !self.demoted;
        ran.then_some(Row {
            features: self.features,
            latency: if self.censored {
                Latency::AtLeast(ms)
            } else {
                Latency::Exact(ms)
            },
        })
    }
}

/// Features as a map by their names; other names are another version's, and refused.
mod by_name {
    use super::unknown;
    use super::{BTreeMap, COUNT, Cow, Deserialize, Deserializer, Features, NAMES, Serializer};

    pub fn serialize<S: Serializer>(x: &Features, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(NAMES.into_iter().zip(x.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Features, D::Error> {
        let mut map = BTreeMap::<Cow<'_, str>, f32>::deserialize(from)?;
        let mut x = [0.0; COUNT];
        for (to, name) in x.iter_mut().zip(NAMES) {
            *to = map.remove(name).ok_or_else(|| unknown::<D>(name))?;
        }
        match map.keys().next() {
            None => Ok(Features(x)),
            Some(name) => Err(unknown::<D>(name)),
        }
    }
}

fn unknown<'de, D: Deserializer<'de>>(name: &str) -> D::Error {
    D::Error::custom(format!("traced with other features: {name}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of one's own, that took `latency_ms`.
    pub fn row(request: u64, latency_ms: Option<f64>) -> TraceRow {
        TraceRow {
            run: 7,
            request,
            arrival_s: request as f64,
            verdict: "observed".into(),
            confidence: 0.95,
            bound_ms: None,
            slo_ms: None,
            waited_ms: 0.5,
            features: Features(std::array::from_fn(|i| i as f32 + 0.1)),
            outcome: "stop".into(),
            latency_ms,
            censored: false,
            demoted: false,
            completion_tokens: 3,
            cached_tokens: 16,
        }
    }

    #[test]
    fn comes_back_from_its_line_and_other_features_are_refused() {
        let row = row(1, Some(12.5));
        let line = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<TraceRow>(&line).unwrap(), row);
        for (name, other) in [("\"waiting\"", "\"arrivals\""), (",\"waiting\":7.1", "")] {
            let changed = line.replace(name, other);
            assert_ne!(changed, line);
            let e = serde_json::from_str::<TraceRow>(&changed).unwrap_err();
            assert!(e.to_string().contains("other features: waiting"), "{e}");
        }
    }

    #[test]
    fn what_never_ran_teaches_nothing_and_who_left_gives_a_lower_bound() {
        assert_eq!(row(1, None).observation(), None);
        let left = TraceRow {
            censored: true,
            ..row(1, Some(9.0))
        };
        let seen = left.observation().unwrap();
        assert_eq!(seen.latency, Latency::AtLeast(9.0));
        let lane = TraceRow {
            verdict: "best_effort".into(),
            ..row(1, Some(9.0))
        };
        assert_eq!(lane.observation(), None);
        let demoted = TraceRow {
            demoted: true,
            ..row(1, Some(9.0))
        };
        assert_eq!(demoted.observation(), None);
    }
}
