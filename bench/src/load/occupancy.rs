//! How many requests were in the system, when, and what came out of it meanwhile.

use super::record::Record;

/// A stretch of a run in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from_us: u64,
    pub to_us: u64,
}

impl Span {
    /// From the first intended arrival to the last end.
    pub fn of_run(records: &[Record]) -> Self {
        Self {
            from_us: records.iter().map(|r| r.intended_us).min().unwrap_or(0),
            to_us: records.iter().map(|r| r.finish_us).max().unwrap_or(0),
        }
    }

    /// From the first intended arrival to the last; of a burst, to the last end, since it has no length.
    pub fn of_arrivals(records: &[Record]) -> Self {
        let run = Self::of_run(records);
        let last = records.iter().map(|r| r.intended_us).max().unwrap_or(0);
        if last > run.from_us {
            Self { to_us: last, ..run }
        } else {
            run
        }
    }

    pub fn seconds(self) -> f64 {
        self.to_us.saturating_sub(self.from_us) as f64 * 1e-6
    }

    /// The part between two fractions of it.
    pub fn part(self, from: f64, to: f64) -> Self {
        let at =
            |f: f64| self.from_us + (self.to_us.saturating_sub(self.from_us) as f64 * f) as u64;
        Self {
            from_us: at(from),
            to_us: at(to),
        }
    }

    pub fn contains(self, at_us: u64) -> bool {
        (self.from_us..self.to_us).contains(&at_us)
    }
}

/// Mean number in the system: the time that requests spent there within the span over the span (Little's law).
/// A request is there from its intended arrival on, whether or not it was sent.
pub fn mean_in_flight(records: &[Record], span: Span) -> f64 {
    let inside = |r: &Record| {
        let (from, to) = (r.intended_us.max(span.from_us), r.finish_us.min(span.to_us));
        to.saturating_sub(from) as f64 * 1e-6
    };
    let seconds: f64 = records.iter().map(inside).sum();
    if span.seconds() > 0.0 {
        seconds / span.seconds()
    } else {
        0.0
    }
}

/// Tokens of an answer; frames where the server sent no bill.
pub fn tokens(record: &Record) -> f64 {
    record
        .completion_tokens
        .map_or(record.frames() as f64, f64::from)
}

/// Output tokens that came within the span: each frame brings its share of its answer's tokens. Answers that
/// were never completed count as far as they got, one token a frame.
pub fn tokens_within(records: &[Record], span: Span) -> f64 {
    let of = |r: &Record| {
        let frames = r.frame_times_us().filter(|t| span.contains(*t)).count();
        frames as f64 * r.tokens_per_frame().unwrap_or(1.0)
    };
    records.iter().map(of).sum()
}

/// Answers that were completed within the span.
pub fn completed_within(records: &[Record], span: Span) -> usize {
    let done = |r: &&Record| r.is_completed() && span.contains(r.finish_us);
    records.iter().filter(done).count()
}

/// Clients that gave up are a share of the last quarter's arrivals beyond this: the queue would have grown.
const CENSORED_SHARE_MAX: f64 = 0.05;

/// Whether the queue still grew when the arrivals ended: a latency of such a run is a fact about the run's
/// length. Three quarters of the arrivals' span, each with more in the system than the one before, and by more
/// than chance would have it (twice the deviation of a Poisson number, and two requests); or clients that gave
/// up at the end, which is what keeps an endless queue short.
pub fn is_growing(records: &[Record]) -> bool {
    let arrivals = Span::of_arrivals(records);
    let quarter = |i: u32| arrivals.part(f64::from(i) / 4.0, f64::from(i + 1) / 4.0);
    let [second, third, last] = [1, 2, 3].map(|i| mean_in_flight(records, quarter(i)));
    let grows = second < third && third < last && last - second > 2.0 + 2.0 * second.sqrt();
    let late: Vec<&Record> = records
        .iter()
        .filter(|r| quarter(3).contains(r.intended_us))
        .collect();
    let gave_up = late.iter().filter(|r| r.censored).count() as f64;
    grows || gave_up > CENSORED_SHARE_MAX * late.len() as f64
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// `n` requests, one each `gap_us`, the i-th of which takes `e2e_us(i)` and has ten tokens at its end.
    pub fn run(n: u64, gap_us: u64, e2e_us: impl Fn(u64) -> u64) -> Vec<Record> {
        (0..n)
            .map(|i| Record {
                index: i as u32,
                measured: true,
                intended_us: i * gap_us,
                dispatched_us: Some(i * gap_us + 100),
                sent_us: Some(i * gap_us + 200),
                first_frame_us: Some(i * gap_us + e2e_us(i) - 9),
                frame_gaps_us: vec![1; 9],
                last_frame_us: Some(i * gap_us + e2e_us(i)),
                finish_us: i * gap_us + e2e_us(i),
                status: Some(200),
                completion_tokens: Some(10),
                finish_reason: Some("stop".into()),
                ..Record::default()
            })
            .collect()
    }

    #[test]
    fn littles_law_on_a_run_that_can_be_counted() {
        // One each 10 ms, 30 ms each: three in the system once it has filled.
        let records = run(1000, 10_000, |_| 30_000);
        let middle = Span::of_arrivals(&records).part(0.2, 0.8);
        assert!((mean_in_flight(&records, middle) - 3.0).abs() < 0.02);
        assert!((completed_within(&records, middle) as f64 / middle.seconds() - 100.0).abs() < 1.0);
        assert!((tokens_within(&records, middle) / middle.seconds() - 1000.0).abs() < 10.0);
        assert!(!is_growing(&records));
    }

    #[test]
    fn a_server_at_half_the_speed_of_its_arrivals_has_a_growing_queue() {
        // Service takes 20 ms and arrivals 10: the i-th ends at 20 (i + 1).
        let records = run(400, 10_000, |i| 20_000 * (i + 1) - 10_000 * i);
        assert!(is_growing(&records));
        // Its capacity is what comes out, 50 a second, whatever was offered.
        let middle = Span::of_arrivals(&records).part(0.2, 0.8);
        assert!((tokens_within(&records, middle) / middle.seconds() - 500.0).abs() < 10.0);
    }

    #[test]
    fn clients_that_give_up_do_not_hide_a_growing_queue() {
        let mut records = run(400, 10_000, |_| 30_000);
        records.iter_mut().skip(380).for_each(|r| r.censored = true);
        assert!(is_growing(&records));
    }

    #[test]
    fn a_burst_spans_until_its_last_end_and_nothing_spans_nothing() {
        let burst = run(8, 0, |i| 1000 * (i + 1));
        assert_eq!(
            Span::of_arrivals(&burst),
            Span {
                from_us: 0,
                to_us: 8000
            }
        );
        assert_eq!(mean_in_flight(&[], Span::of_run(&[])), 0.0);
        assert!(!is_growing(&[]));
    }
}
