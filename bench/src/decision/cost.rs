//! What decisions cost, and how soon refusals are answered: of one repeat, and over all of them.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::{P50_US, P99_US};
use crate::load::quantile::Quantiles;
use crate::prometheus::Histogram;
use crate::stats::Spread;

/// What decisions cost by one clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    pub count: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Shares of what was within [`P50_US`] and [`P99_US`].
    pub within_p50: f64,
    pub within_p99: f64,
    /// The bound of the highest bucket that was reached; none beyond the last.
    pub at_most_us: Option<f64>,
}

/// The same over repeats.
#[derive(Serialize)]
pub struct Costs {
    pub p50_us: Spread,
    pub p99_us: Spread,
    pub within_p50: Spread,
    pub within_p99: Spread,
    pub at_most_us: Option<f64>,
}

/// How soon refusals with 503 were answered, over their repeats, in ms.
#[derive(Serialize)]
pub struct Refusals {
    pub count: usize,
    pub codes: BTreeMap<String, usize>,
    pub p50_ms: Spread,
    pub p99_ms: Spread,
    pub max_ms: Spread,
}

/// Refusals of one repeat: why each was refused, and after how many ms that was told whole.
#[derive(Default, Serialize)]
pub struct Refused {
    pub codes: BTreeMap<String, usize>,
    #[serde(serialize_with = "quantiles")]
    pub ms: Vec<f64>,
}

fn quantiles<S: Serializer>(ms: &[f64], to: S) -> Result<S::Ok, S::Error> {
    Quantiles::of(ms.iter().copied()).serialize(to)
}

impl Cost {
    pub fn of(h: &Histogram) -> Self {
        let at_most_us = h.at_most() * 1e6;
        Self {
            count: h.count,
            mean_us: h.mean() * 1e6,
            p50_us: h.quantile(0.5) * 1e6,
            p99_us: h.quantile(0.99) * 1e6,
            within_p50: h.share_within(P50_US * 1e-6),
            within_p99: h.share_within(P99_US * 1e-6),
            at_most_us: at_most_us.is_finite().then_some(at_most_us),
        }
    }
}

impl Costs {
    pub fn of(repeats: impl Iterator<Item = Cost>) -> Self {
        let repeats: Vec<Cost> = repeats.collect();
        let of = |f: &dyn Fn(&Cost) -> f64| Spread::of(&repeats.iter().map(f).collect::<Vec<_>>());
        let highest = repeats.iter().map(|c| c.at_most_us);
        Self {
            p50_us: of(&|c| c.p50_us),
            p99_us: of(&|c| c.p99_us),
            within_p50: of(&|c| c.within_p50),
            within_p99: of(&|c| c.within_p99),
            at_most_us: highest
                .collect::<Option<Vec<_>>>()
                .map(|all| Spread::of(&all).max),
        }
    }
}

impl Refusals {
    pub fn of<R: Borrow<Refused>>(repeats: &[R]) -> Self {
        let mut codes = BTreeMap::new();
        for (code, n) in repeats.iter().flat_map(|r| &r.borrow().codes) {
            *codes.entry(code.clone()).or_default() += n;
        }
        let quantiles = repeats
            .iter()
            .map(|r| Quantiles::of(r.borrow().ms.iter().copied()));
        let quantiles: Vec<Quantiles> = quantiles.collect();
        let of = |f: &dyn Fn(&Quantiles) -> Option<f64>| {
            Spread::of(&quantiles.iter().filter_map(f).collect::<Vec<_>>())
        };
        Self {
            count: quantiles.iter().map(|q| q.n).sum(),
            codes,
            p50_ms: of(&|q| q.p50),
            p99_ms: of(&|q| q.p99),
            max_ms: of(&|q| q.max),
        }
    }

    pub fn show(&self) -> String {
        format!(
            "{} in p50 {}, p99 {}, at most {} ms",
            self.count,
            self.p50_ms.show(2),
            self.p99_ms.show(2),
            self.max_ms.show(2)
        )
    }
}

impl Refused {
    pub fn push(&mut self, code: &str, ms: f64) {
        *self.codes.entry(code.to_owned()).or_default() += 1;
        self.ms.push(ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_beyond_the_last_bucket_has_no_bound() {
        let text = |last: u32| {
            format!(
                "h_bucket{{le=\"0.00001\"}} 60\nh_bucket{{le=\"0.00005\"}} {last}\nh_bucket{{le=\"+Inf\"}} 100\n\
                 h_sum 0.001\nh_count 100\n"
            )
        };
        let cost = |last| Cost::of(&Histogram::read(&text(last), "h"));
        let within = cost(100);
        assert_eq!((within.within_p50, within.within_p99), (0.6, 1.0));
        assert!((within.at_most_us.unwrap() - 50.0).abs() < 1e-9);
        let beyond = cost(99);
        assert_eq!((beyond.within_p99, beyond.at_most_us), (0.99, None));
        let both = Costs::of([within, beyond].into_iter());
        assert_eq!((both.within_p99.min, both.at_most_us), (0.99, None));
    }

    #[test]
    fn refusals_of_repeats_are_counted_together_and_timed_apart() {
        let of = |ms: &[f64], code: &str| {
            let mut refused = Refused::default();
            ms.iter().for_each(|ms| refused.push(code, *ms));
            refused
        };
        let repeats = [of(&[1.0, 2.0, 9.0], "a"), of(&[3.0], "b"), of(&[], "c")];
        let all = Refusals::of(&repeats);
        assert_eq!(all.count, 4);
        assert_eq!(all.codes, [("a".into(), 3), ("b".into(), 1)].into());
        assert_eq!((all.p50_ms.min, all.p50_ms.max), (2.0, 3.0));
        assert_eq!(all.max_ms.max, 9.0);
    }
}
