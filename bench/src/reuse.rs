//! `reuse`: what the prefix cache saves. The standard mix, one request after the other, so that the time to the
//! first token is computing and nothing else; the hit rate beside the highest that this workload allows, and
//! the tokens that are worth caching beside the pool.
//!
//! The ceiling is counted here, on the prompts' tokens in their order and without the daemon: of each prompt the
//! whole blocks that any earlier one began with, all but the last token.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cadenced::config::{Config, Flags};
use cadenced::logic::kv::BLOCK_TOKENS;
use cadenced::model::PromptEncoder;
use cadenced::model::llama::LoadedModel;
use clap::Args;
use serde::Serialize;

use crate::effective::Mismatch;
use crate::load::driver::{self, Drive, Due, Loop};
use crate::load::mix::{Mix, Workload};
use crate::load::prompts::{Prompts, Style};
use crate::load::target::Target;
use crate::numbers::at_least_one;
use crate::provenance::Provenance;
use crate::serving::Serving;
use crate::stats::Spread;

const RUNG: &str = "config/rung4-cache.toml";
const BLOCK: usize = BLOCK_TOKENS as usize;

#[derive(Args)]
pub struct ReuseArgs {
    #[command(flatten)]
    serving: Serving,
    #[arg(long, default_value_t = 80, value_parser = at_least_one::<usize>())]
    requests: usize,
    /// Longest answer: what follows the first token is not what is measured.
    #[arg(long, default_value_t = 16, value_parser = at_least_one::<u32>())]
    answer: u32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, default_value = "bench/results/reuse.json")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Outcome {
    requests: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    ceiling_tokens: u64,
    hit_rate: f64,
    ceiling: f64,
    /// Tokens of beginnings that at least two prompts have.
    shared_tokens: u64,
    /// The same, and a full batch of the longest requests.
    working_set_tokens: u64,
    pool_tokens: u64,
    ttft_hit_ms: Spread,
    ttft_miss_ms: Spread,
    hits: usize,
    ttft_ratio: f64,
}

pub fn run(args: &ReuseArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[&args.serving.model])?;
    let asks = Workload::new(Mix::Standard, args.seed, &[]).map(|mut ask| {
        ask.max_tokens = ask.max_tokens.min(args.answer);
        ask
    });
    let plan: Vec<Due> = asks
        .take(args.requests)
        .map(|ask| Due {
            at_us: 0,
            ask,
            measured: true,
        })
        .collect();
    let prompts = tokens(args, &plan)?;
    let daemon = args.serving.start(Path::new(RUNG), &[])?;
    provenance.effective = Some(daemon.effective()?);
    let stats = daemon.stats()?;
    let number = |path: &str| stats.pointer(path).and_then(serde_json::Value::as_u64);
    let blocks = number("/kv/blocks_total").context("kv.blocks_total")?;
    let ceiling = Ceiling::of(&prompts);
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let seats = args
        .serving
        .config(Path::new(RUNG), &[])?
        .policy()
        .max_running();
    let batch = (longest + u64::from(args.answer)) * seats as u64;
    let (pool, working_set) = (blocks * BLOCK as u64, ceiling.shared_tokens + batch);
    ensure!(
        working_set <= pool,
        Mismatch(format!(
            "the pool of {pool} tokens can't hold a full batch and what is shared, {working_set} tokens: the hit \
             rate would be the pool's size"
        ))
    );
    let target = Target::parse(&daemon.url(), None)?;
    let drive = Drive {
        mode: Loop::Closed(1),
        timeout: Duration::from_secs(120),
        slo_ms: None,
        style: Style::default(),
        closed_until: None,
    };
    let records = driver::drive(&target, &plan, &drive)?;
    provenance.canary.sing()?;

    let (mut hit, mut miss, mut cached, mut counted) = (Vec::new(), Vec::new(), 0, 0);
    for (record, prompt) in records.iter().zip(&prompts) {
        let tokens = record.prompt_tokens.context("an answer without usage")?;
        ensure!(
            tokens as usize == prompt.len(),
            Mismatch(format!(
                "the daemon counts {tokens} tokens, not {}",
                prompt.len()
            ))
        );
        let first = record.first_frame_us.context("an answer without text")?;
        let ttft_ms = (first - record.intended_us) as f64 * 1e-3;
        let from_cache = record.cached_tokens.unwrap_or(0);
        if from_cache > 0 { &mut hit } else { &mut miss }.push(ttft_ms);
        cached += u64::from(from_cache);
        counted += u64::from(tokens);
    }
    ensure!(
        !hit.is_empty() && !miss.is_empty(),
        "no hits, or nothing but hits"
    );
    let (ttft_hit_ms, ttft_miss_ms) = (Spread::of(&hit), Spread::of(&miss));
    let outcome = Outcome {
        requests: records.len(),
        prompt_tokens: counted,
        cached_tokens: cached,
        ceiling_tokens: ceiling.tokens,
        hit_rate: cached as f64 / counted as f64,
        ceiling: ceiling.tokens as f64 / counted as f64,
        shared_tokens: ceiling.shared_tokens,
        working_set_tokens: working_set,
        pool_tokens: pool,
        ttft_ratio: ttft_hit_ms.median / ttft_miss_ms.median,
        hits: hit.len(),
        ttft_hit_ms,
        ttft_miss_ms,
    };
    println!(
        "hit rate {:.3} of at most {:.3}; working set {:.2} of the pool; TTFT {} ms with a hit, {} ms without: {:.3}",
        outcome.hit_rate,
        outcome.ceiling,
        working_set as f64 / pool as f64,
        outcome.ttft_hit_ms.show(0),
        outcome.ttft_miss_ms.show(0),
        outcome.ttft_ratio
    );
    provenance.write(&args.out, &outcome)
}

/// The prompts as the daemon will tokenize them.
fn tokens(args: &ReuseArgs, plan: &[Due]) -> Result<Vec<Vec<i32>>> {
    let flags = Flags {
        model: Some(args.serving.model.clone()),
        ..Flags::default()
    };
    let encoder = LoadedModel::load(&Config::load(None, [], &flags)?.model)?;
    let (prompts, style) = (Prompts::default(), Style::default());
    plan.iter()
        .map(|due| {
            let body: serde_json::Value = serde_json::from_str(&prompts.body(&due.ask, &style))?;
            let tokens = encoder
                .encode_chat(&body["messages"], None)
                .map_err(|e| anyhow::anyhow!("{e:?}"))?;
            Ok(tokens.into_iter().map(|t| t.0).collect())
        })
        .collect()
}

/// What a cache without bounds could give these prompts, in this order.
#[derive(Debug, PartialEq, Eq)]
struct Ceiling {
    tokens: u64,
    shared_tokens: u64,
}

impl Ceiling {
    fn of(prompts: &[Vec<i32>]) -> Self {
        // How many prompts begin with these whole blocks.
        let mut seen: BTreeMap<&[i32], u32> = BTreeMap::new();
        let mut tokens = 0;
        for prompt in prompts {
            let usable = prompt.len().saturating_sub(1);
            let beginnings = (1..=prompt.len() / BLOCK).map(|n| &prompt[..n * BLOCK]);
            let known = beginnings.clone().take_while(|b| seen.contains_key(b));
            tokens += known.last().map_or(0, |b| b.len().min(usable)) as u64;
            for beginning in beginnings {
                *seen.entry(beginning).or_default() += 1;
            }
        }
        let shared = seen.values().filter(|n| **n > 1).count();
        Self {
            tokens,
            shared_tokens: (shared * BLOCK) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_counts_whole_blocks_of_what_came_before() {
        let a: Vec<i32> = (0..40).collect();
        let b: Vec<i32> = (0..20).chain(90..110).collect();
        let exact: Vec<i32> = (0..32).collect();
        let none = |p: &[Vec<i32>]| Ceiling::of(p).tokens;
        assert_eq!(none(std::slice::from_ref(&a)), 0);
        assert_eq!(none(&[a.clone(), b.clone()]), 16);
        assert_eq!(none(&[a.clone(), a.clone()]), 32);
        assert_eq!(
            none(&[exact.clone(), exact.clone()]),
            31,
            "the last is computed"
        );
        assert_eq!(Ceiling::of(&[a.clone(), b, a]).shared_tokens, 32);
    }
}
