//! `quality`: how far a variant of the model (its file, its KV type) is from the reference, on a fixed text:
//! perplexity, how often the most likely token is the same, and the mean Kullback–Leibler divergence.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::engine::{Bare, BareSettings, load_model};
use crate::provenance::Provenance;
use crate::workload;

#[derive(Args)]
pub struct QualityArgs {
    /// The reference, with an f16 cache.
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_1.gguf")]
    a: PathBuf,
    /// What it is replaced by.
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_0.gguf")]
    b: PathBuf,
    /// KV types of both.
    #[arg(long, value_delimiter = ',', default_value = "f16,q8_0")]
    kv: Vec<String>,
    /// The text is cut into pieces of so many tokens.
    #[arg(long, default_value_t = 512)]
    context: usize,
    /// Predictions with less than this before them are not scored.
    #[arg(long, default_value_t = 64)]
    skip: usize,
    #[arg(long, default_value = "bench/results/quality.json")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Score {
    model: String,
    kv: String,
    predictions: usize,
    perplexity: f64,
    /// Of the reference's most likely tokens, the part that this variant agrees with.
    top_token_agreement: f64,
    kl_divergence: f64,
    #[serde(skip)]
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    nll: f64,
    agreed: usize,
    kl: f64,
}

pub fn run(args: &QualityArgs) -> Result<()> {
    ensure!(args.skip + 1 < args.context, "nothing would be scored");
    let provenance = Provenance::begin(&[&args.a, &args.b])?;
    let mut variants = Vec::new();
    for path in [&args.a, &args.b] {
        let model = load_model(path)?;
        for kv in &args.kv {
            let settings = settings(path, kv, args.context as u32);
            variants.push((Bare::with_model(model, &settings)?, Score::new(path, kv)));
        }
    }
    ensure!(
        args.kv[0] == "f16",
        "the reference has an f16 cache: --kv f16,…"
    );
    let tokens = variants[0].0.tokenize(&workload::prose());
    println!("{} tokens of text", tokens.len());
    for piece in tokens.chunks_exact(args.context) {
        let (reference, others) = variants.split_at_mut(1);
        let (reference, score) = &mut reference[0];
        reference.compute_all(piece)?;
        let logs: Vec<Vec<f32>> = (args.skip..piece.len() - 1)
            .map(|i| log_softmax(reference.logits(i)))
            .collect();
        for (at, log) in logs.iter().enumerate() {
            score.take(log, log, piece[args.skip + at + 1]);
        }
        for (bare, score) in others {
            bare.compute_all(piece)?;
            for (at, log) in logs.iter().enumerate() {
                let own = log_softmax(bare.logits(args.skip + at));
                score.take(log, &own, piece[args.skip + at + 1]);
            }
        }
    }
    let scores: Vec<Score> = variants
        .into_iter()
        .map(|(_, score)| score.finish())
        .collect();
    for s in &scores {
        println!(
            "{} kv {}: perplexity {:.3}, agreement {:.1}%, KL {:.4} over {} predictions",
            s.model,
            s.kv,
            s.perplexity,
            s.top_token_agreement * 100.0,
            s.kl_divergence,
            s.predictions
        );
    }
    provenance.write(&args.out, &scores)
}

fn settings(path: &Path, kv: &str, context: u32) -> BareSettings {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    let mut settings = BareSettings::plain(path, cores, context.next_multiple_of(256));
    settings.sequences = 1;
    settings.effective.n_batch = context;
    settings.effective.n_ubatch = context;
    settings.effective.kv_type_k = kv.to_owned();
    settings.effective.kv_type_v = kv.to_owned();
    settings
}

impl Score {
    fn new(path: &Path, kv: &str) -> Self {
        Self {
            model: path
                .file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            kv: kv.to_owned(),
            predictions: 0,
            perplexity: 0.0,
            top_token_agreement: 0.0,
            kl_divergence: 0.0,
            sums: Sums::default(),
        }
    }

    /// Scores one prediction: the reference's and the own log-probabilities, and the token that came.
    fn take(&mut self, reference: &[f32], own: &[f32], next: i32) {
        self.predictions += 1;
        self.sums.nll -= f64::from(own[next as usize]);
        self.sums.agreed += usize::from(top(reference) == top(own));
        let kl: f64 = reference
            .iter()
            .zip(own)
            .map(|(p, q)| f64::from(*p).exp() * f64::from(p - q))
            .sum();
        self.sums.kl += kl;
    }

    fn finish(mut self) -> Self {
        let n = self.predictions.max(1) as f64;
        self.perplexity = (self.sums.nll / n).exp();
        self.top_token_agreement = self.sums.agreed as f64 / n;
        self.kl_divergence = self.sums.kl / n;
        self
    }
}

fn top(logits: &[f32]) -> usize {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(i, _)| i)
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    let shift = max + sum.ln() as f32;
    logits.iter().map(|l| l - shift).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_that_is_the_reference_agrees_with_it() {
        let log = log_softmax(&[0.0, 1.0, 2.0, 1.0]);
        assert!((log.iter().map(|l| l.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
        let mut score = Score::new(Path::new("m"), "f16");
        score.take(&log, &log, 2);
        let score = score.finish();
        assert_eq!((score.top_token_agreement, score.kl_divergence), (1.0, 0.0));
        assert!((score.perplexity - f64::from(-log[2]).exp()).abs() < 1e-9);
    }
}
