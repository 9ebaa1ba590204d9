//! Steps whose composition is known, timed by the daemon's own histograms.
//!
//! A prompt that is computed alone is a known row of chunks. Of streams that all decode, the rows are counted by
//! the daemon's counter of sampled tokens, and the tokens before each row follow from the lengths of the prompts and
//! from how many tokens had been sampled when the window began. What is timed is a step as the engine has it: the
//! model's part, and the host's work in between.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::counters::Counters;
use crate::client::{self, Moment};
use crate::daemon::Daemon;
use crate::serving::Serving;
use crate::sse::Reply;
use crate::stats::Spread;
use crate::twin::cost::Composition;
use crate::twin::fit::TimedSteps;
use crate::workload::SYSTEM;

/// How much is measured.
pub struct Size {
    chunks: &'static [u32],
    /// Batch sizes, each with the words of its prompts.
    batches: &'static [(usize, usize)],
    repeats: usize,
    /// Steps of a decode window, about.
    steps: usize,
    /// Requests to an idle server.
    pub unloaded: usize,
    /// Requests of each client of the last rung.
    pub best: usize,
}

const FULL: Size = Size {
    // With the seats of the rung that has the most, all of them fit into runner.n_batch.
    chunks: &[64, 128, 256, 384],
    batches: &[
        (1, 40),
        (1, 450),
        (1, 900),
        (4, 40),
        (4, 450),
        (8, 40),
        (8, 450),
        (16, 40),
        (16, 450),
    ],
    repeats: 3,
    steps: 48,
    unloaded: 60,
    best: 8,
};
const SHORT: Size = Size {
    chunks: &[64, 256],
    batches: &[(1, 40), (1, 450), (4, 40), (16, 40)],
    repeats: 2,
    steps: 24,
    unloaded: 30,
    best: 4,
};
/// Words of the prompt whose prefill is timed.
const PREFILL_WORDS: usize = 450;

impl Size {
    pub fn of(short: bool) -> Self {
        if short { SHORT } else { FULL }
    }
}

/// A prompt that was computed in chunks, alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillRow {
    pub chunk: u32,
    pub prompt_tokens: u32,
    pub tokens_per_s: Spread,
    /// Each repeat.
    pub timed: Vec<TimedSteps>,
}

/// Sequences that decoded together, alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeRow {
    pub batch: usize,
    /// Tokens before a row, in the mean.
    pub context: u32,
    pub step_ms: Spread,
    /// Each repeat.
    pub timed: Vec<TimedSteps>,
}

/// A chat template may begin all prompts alike, and what is timed is to be computed.
pub fn no_reuse() -> (String, String) {
    ("prefix.reuse".to_owned(), "off".to_owned())
}

/// Prefills a prompt, in chunks of each size, on a daemon of its own.
///
/// # Errors
/// When a daemon can't be measured.
pub fn prefill(serving: &Serving, rung: &Path, size: &Size) -> Result<Vec<PrefillRow>> {
    let mut rows = Vec::new();
    for &chunk in size.chunks {
        super::going_on(&format!("a prompt alone, in chunks of {chunk} tokens"));
        let budget = ("scheduler.prefill_budget".to_owned(), chunk.to_string());
        let daemon = serving.start(rung, &[budget, no_reuse()])?;
        let mut all = Vec::new();
        for repeat in 0..=size.repeats {
            let row = prefill_once(&daemon, chunk, u64::from(chunk) * 100 + repeat as u64)?;
            // The first one finds nothing warm.
            if repeat > 0 {
                all.push(row);
            }
        }
        let rate = |(tokens, t): &(u32, TimedSteps)| f64::from(*tokens) / t.seconds;
        rows.push(PrefillRow {
            chunk,
            prompt_tokens: all[0].0,
            tokens_per_s: Spread::of(&all.iter().map(rate).collect::<Vec<_>>()),
            timed: all.into_iter().map(|(_, timed)| timed).collect(),
        });
    }
    Ok(rows)
}

fn prefill_once(daemon: &Daemon, chunk: u32, salt: u64) -> Result<(u32, TimedSteps)> {
    daemon.rest()?;
    let before = Counters::read(daemon.addr)?;
    let replies = stream(daemon, &[body(salt, PREFILL_WORDS, 1)], |_| {})?;
    daemon.rest()?;
    let after = Counters::read(daemon.addr)?;
    ensure!(replies[0].cached_tokens == 0, "the prompt was cached");
    let tokens = replies[0].prompt_tokens as u32;
    let (steps, total) = chunks(tokens, chunk);
    let counted = after.model.since(&before.model).count;
    // One more when memory is given back, which may be after the reply: this one's, and that of the prompt before.
    ensure!(
        (f64::from(steps)..=f64::from(steps + 2)).contains(&counted),
        "a prompt of {tokens} tokens in chunks of {chunk} took {counted} steps"
    );
    let seconds = after.seconds_since(&before, f64::from(steps));
    Ok((
        tokens,
        TimedSteps {
            steps,
            total,
            seconds,
        },
    ))
}

/// The steps that compute a prompt alone.
fn chunks(tokens: u32, chunk: u32) -> (u32, Composition) {
    let starts = (0..tokens).step_by(chunk as usize);
    let rows = starts.map(|start| Composition::of_tokens(start, chunk.min(tokens - start)));
    let steps = tokens.div_ceil(chunk);
    (
        steps,
        rows.fold(Composition::default(), |sum, row| sum + row),
    )
}

/// Decodes at each batch size and length of context.
///
/// # Errors
/// When the daemon can't be measured.
pub fn decode(daemon: &Daemon, size: &Size) -> Result<Vec<DecodeRow>> {
    let mut rows = Vec::new();
    for (i, &(batch, words)) in size.batches.iter().enumerate() {
        super::going_on(&format!(
            "decoding, {batch} at a time after prompts of {words} words"
        ));
        let mut all = Vec::new();
        for repeat in 0..size.repeats {
            let salt = 1_000_000 + (i * 1000 + repeat * 100) as u64;
            all.push(decode_once(daemon, batch, words, size.steps, salt)?);
        }
        let ms: Vec<f64> = all
            .iter()
            .map(|t| t.seconds / f64::from(t.steps) * 1e3)
            .collect();
        let sampled: f64 = all.iter().map(|t| f64::from(t.total.decode_seqs)).sum();
        let cached: u64 = all.iter().map(|t| t.total.cached_tokens).sum();
        rows.push(DecodeRow {
            batch,
            context: (cached as f64 / sampled).round() as u32,
            step_ms: Spread::of(&ms),
            timed: all,
        });
    }
    Ok(rows)
}

fn decode_once(
    daemon: &Daemon,
    batch: usize,
    words: usize,
    steps: usize,
    salt: u64,
) -> Result<TimedSteps> {
    daemon.rest()?;
    let start = Counters::read(daemon.addr)?;
    // Prompts are computed one after the other, so the first stream is ahead of the last by some of its answer.
    let ahead = batch * (words * 2).div_ceil(256);
    let bodies: Vec<String> = (0..batch as u64)
        .map(|i| body(salt + i, words, steps + ahead))
        .collect();
    let (moments, addr) = (Rc::new(RefCell::new(Vec::new())), daemon.addr);
    let taken = Rc::clone(&moments);
    let replies = stream(daemon, &bodies, move |_| {
        taken.borrow_mut().push(Counters::read(addr))
    })?;
    ensure!(
        replies.iter().all(|r| r.cached_tokens == 0),
        "a prompt was cached"
    );
    let [began, ended] = moments
        .take()
        .try_into()
        .ok()
        .context("the streams never ran all together")?;
    let (began, ended) = (began?, ended?);
    let counted = ended.model.since(&began.model).count;
    let rows = ended.generated - began.generated;
    ensure!(
        counted >= 4.0 && (rows - counted * batch as f64).abs() <= 2.0 * batch as f64,
        "in {counted} steps {batch} streams had {rows} tokens"
    );
    let prompts: usize = replies.iter().map(|r| r.prompt_tokens).sum();
    // All but the newest token of each stream are in the cache when the window begins.
    let first = prompts as f64 + (began.generated - start.generated) - batch as f64;
    let total = Composition {
        prefill_tokens: 0,
        decode_seqs: rows as u32,
        cached_tokens: (first * counted + batch as f64 * counted * (counted - 1.0) / 2.0) as u64,
    };
    let seconds = ended.seconds_since(&began, counted);
    Ok(TimedSteps {
        steps: counted as u32,
        total,
        seconds,
    })
}

fn stream(daemon: &Daemon, bodies: &[String], on: impl Fn(Moment) + 'static) -> Result<Vec<Reply>> {
    let recordings = client::stream_all(daemon.addr, bodies, on)?;
    recordings.iter().map(Reply::read).collect()
}

/// A prompt of about so many words, whose beginning nobody else has, and an answer of exactly so many tokens.
fn body(salt: u64, words: usize, max_tokens: usize) -> String {
    let text: Vec<&str> = SYSTEM
        .iter()
        .flat_map(|s| s.split_whitespace())
        .take(words)
        .collect();
    json!({
        "messages": [{ "role": "user", "content": format!("{salt:08}. {}", text.join(" ")) }],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_alone_is_a_row_of_chunks() {
        let (steps, total) = chunks(600, 256);
        let expected = Composition {
            prefill_tokens: 600,
            decode_seqs: 0,
            cached_tokens: 256 + 512,
        };
        assert_eq!((steps, total), (3, expected));
        // A chunk of one token costs what a decode costs.
        let (steps, total) = chunks(513, 256);
        let expected = Composition {
            prefill_tokens: 512,
            decode_seqs: 1,
            cached_tokens: 256 + 512,
        };
        assert_eq!((steps, total), (3, expected));
    }
}
