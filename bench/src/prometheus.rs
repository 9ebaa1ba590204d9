//! Reading histograms out of Prometheus' exposition text.

/// A cumulative histogram at a moment, or the difference of two.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bound and the count of observations up to it; the last bound is infinite.
    buckets: Vec<(f64, f64)>,
    pub sum: f64,
    pub count: f64,
}

impl Histogram {
    /// The histogram called `name` in `text`; empty if there is none.
    pub fn read(text: &str, name: &str) -> Self {
        let mut h = Self::default();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(name) else {
                continue;
            };
            let Some((key, value)) = rest.rsplit_once(' ') else {
                continue;
            };
            let value = value.parse().unwrap_or(0.0);
            if let Some(bound) = key
                .strip_prefix("_bucket{le=\"")
                .and_then(|k| k.strip_suffix("\"}"))
            {
                h.buckets
                    .push((bound.parse().unwrap_or(f64::INFINITY), value));
            } else if key == "_sum" {
                h.sum = value;
            } else if key == "_count" {
                h.count = value;
            }
        }
        h
    }

    /// What was observed after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            buckets: self
                .buckets
                .iter()
                .enumerate()
                .map(|(i, (bound, n))| (*bound, n - earlier.buckets.get(i).map_or(0.0, |b| b.1)))
                .collect(),
            sum: self.sum - earlier.sum,
            count: self.count - earlier.count,
        }
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    /// The quantile, interpolated linearly inside its bucket; the last finite bound if it lies beyond.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = q * self.count;
        let (mut low, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.buckets {
            if count >= rank && count > below {
                if bound.is_infinite() {
                    return low;
                }
                return low + (bound - low) * (rank - below) / (count - below);
            }
            (low, below) = (bound, count);
        }
        low
    }

    /// The share of observations up to `limit`; up to the last bucket's bound below it, if it is none itself.
    pub fn share_within(&self, limit: f64) -> f64 {
        // The bounds have been through decimals and back.
        let inside = |bound: f64| bound <= limit * (1.0 + 1e-9);
        let last = self.buckets.iter().rfind(|(bound, _)| inside(*bound));
        last.map_or(0.0, |(_, count)| count / self.count.max(1.0))
    }

    /// The smallest bucket's bound that no observation exceeds.
    pub fn at_most(&self) -> f64 {
        let whole = self.buckets.iter().find(|(_, n)| *n >= self.count);
        whole.map_or(0.0, |(bound, _)| *bound)
    }
}

/// The value of a counter or gauge, named with its labels if it has any.
pub fn value(text: &str, name: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP h x\nh_bucket{le=\"1\"} 50\nh_bucket{le=\"3\"} 100\nh_bucket{le=\"+Inf\"} 100\n\
                        h_sum 120\nh_count 100\nc 7\n";

    #[test]
    fn quantiles_are_interpolated_inside_their_bucket() {
        let h = Histogram::read(TEXT, "h");
        assert_eq!(h.mean(), 1.2);
        assert_eq!(h.quantile(0.25), 0.5);
        assert_eq!(h.quantile(0.75), 2.0);
        assert_eq!(h.since(&h).count, 0.0);
        assert_eq!(value(TEXT, "c"), Some(7.0));
    }

    #[test]
    fn shares_are_whole_buckets_and_the_highest_bound_is_one_that_was_reached() {
        let h = Histogram::read(TEXT, "h");
        assert_eq!(
            [0.9, 1.0, 2.9, 3.0].map(|x| h.share_within(x)),
            [0.0, 0.5, 0.5, 1.0]
        );
        assert_eq!(h.at_most(), 3.0);
        let beyond = TEXT.replace(
            "} 100\nh_bucket{le=\"+Inf\"} 100",
            "} 99\nh_bucket{le=\"+Inf\"} 100",
        );
        assert_eq!(Histogram::read(&beyond, "h").at_most(), f64::INFINITY);
        // What came later alone: the first fifty may have been slow.
        let later = TEXT
            .replace("} 50", "} 90")
            .replace("100", "140")
            .replace("_sum 120", "_sum 160");
        let since = Histogram::read(&later, "h").since(&h);
        assert_eq!((since.at_most(), since.share_within(1.0)), (1.0, 1.0));
    }
}
