//! The part of a batch of streams in which all of them decode and nothing else happens.
//!
//! Streams that are sent together start one after the other, because their prompts are computed one after the
//! other; and from the first end on the batch is smaller. The window lies between: from the first text of the
//! stream that started last to the last text of the stream that ended first. In it every step gives each stream
//! one token, so whole steps are counted on one stream, the clock, and a partial step at either end can't
//! enter: `tokens = streams × steps`, over the time between the clock's first and last text.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::sse::Reply;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Window {
    pub steps: usize,
    pub seconds: f64,
    /// Tokens that each stream has had when the window begins.
    pub had: Vec<usize>,
}

impl Window {
    pub fn of(replies: &[Reply]) -> Result<Self> {
        let first = |r: &Reply| r.texts.first().copied();
        let start = replies.iter().filter_map(first).max().context("no text")?;
        let end = replies
            .iter()
            .filter_map(|r| r.texts.last().copied())
            .min()
            .context("no text")?;
        ensure!(
            start < end,
            "the streams never ran all together: longer replies are needed"
        );
        // A stream that missed no token; the last to start, which needs no rounding, if possible.
        let clock = replies
            .iter()
            .filter(|r| r.is_clean())
            .max_by_key(|r| first(r))
            .context("no stream shows every token as text: other prompts are needed")?;
        let half = half_step(&clock.texts, start, end);
        let ticks: Vec<Instant> = clock
            .texts
            .iter()
            .copied()
            .filter(|t| *t + half >= start && *t <= end + half)
            .collect();
        ensure!(ticks.len() >= 8, "only {} steps in the window", ticks.len());
        let (began, ended) = (ticks[0], ticks[ticks.len() - 1]);
        Ok(Self {
            steps: ticks.len() - 1,
            seconds: (ended - began).as_secs_f64(),
            had: replies
                .iter()
                .map(|r| r.texts.iter().filter(|t| **t <= began + half).count())
                .collect(),
        })
    }

    pub fn tokens_per_s(&self) -> f64 {
        (self.steps * self.had.len()) as f64 / self.seconds
    }

    /// The position of each stream's first decode in the window: all it has is computed but its newest token.
    pub fn positions(&self, replies: &[Reply]) -> Vec<usize> {
        replies
            .iter()
            .zip(&self.had)
            .map(|(r, had)| r.prompt_tokens + had - 1)
            .collect()
    }
}

/// The mean length of the contexts over `steps` steps that begin at `positions`.
pub fn mean_context(positions: &[usize], steps: usize) -> f64 {
    let sum: usize = positions.iter().sum();
    sum as f64 / positions.len().max(1) as f64 + (steps + 1) as f64 / 2.0
}

/// Half of the median time between texts within the window: texts of one step lie closer, those of two don't.
fn half_step(texts: &[Instant], start: Instant, end: Instant) -> Duration {
    let mut gaps: Vec<Duration> = texts
        .windows(2)
        .filter(|w| w[0] >= start && w[1] <= end)
        .map(|w| w[1] - w[0])
        .collect();
    gaps.sort();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(t: Instant, ms: impl Iterator<Item = u64>, lost: usize) -> Reply {
        let texts: Vec<Instant> = ms.map(|m| t + Duration::from_millis(m)).collect();
        Reply {
            sent: t,
            completion_tokens: texts.len() + lost,
            texts,
            prompt_tokens: 100,
            cached_tokens: 0,
        }
    }

    #[test]
    fn whole_steps_are_counted_on_the_stream_that_started_last() {
        let t = Instant::now();
        // Steps of 10 ms; the second stream starts five steps later; both have 20 tokens.
        let a = reply(t, (0..20).map(|i| i * 10), 0);
        let b = reply(t, (5..25).map(|i| i * 10 + 1), 0);
        let w = Window::of(&[a.clone(), b.clone()]).unwrap();
        assert_eq!((w.steps, w.had.clone()), (14, vec![6, 1]));
        assert!((w.seconds - 0.14).abs() < 1e-9);
        assert!((w.tokens_per_s() - 200.0).abs() < 1e-6);
        assert_eq!(w.positions(&[a, b]), [105, 100]);
        assert_eq!(mean_context(&[105, 100], 14), 110.0);
    }

    #[test]
    fn a_stream_whose_tokens_have_no_text_is_no_clock() {
        let t = Instant::now();
        let a = reply(t, (0..20).map(|i| i * 10), 0);
        let b = reply(t, (5..25).filter(|i| i % 3 != 0).map(|i| i * 10 + 1), 7);
        let w = Window::of(&[a, b.clone()]).unwrap();
        // The clock is the first stream, in the same steps.
        assert_eq!(w.steps, 14);
        assert!(Window::of(&[b]).is_err());
    }
}
