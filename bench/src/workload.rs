//! The prompts: four system prompts of about 500 tokens and sixteen user turns, in bench/data; the text is this
//! project's own. Everything is a function of the seed.

use anyhow::{Context, Result};
use cadenced::config::{Config, Flags};
use cadenced::model::PromptEncoder;
use cadenced::model::llama::LoadedModel;
use serde_json::{Value, json};
use std::path::Path;

pub const SYSTEM: [&str; 4] = [
    include_str!("../data/system-support.txt"),
    include_str!("../data/system-analyst.txt"),
    include_str!("../data/system-tutor.txt"),
    include_str!("../data/system-editor.txt"),
];
pub const USER: &str = include_str!("../data/users.txt");
const QUALITY: &str = include_str!("../data/quality.txt");

/// A prompt, and the tokens that the daemon will make of it.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub messages: Value,
    pub tokens: Vec<i32>,
}

impl Prompt {
    /// A streaming request that takes the most likely token `max_tokens` times, past the model's own end.
    pub fn request(&self, max_tokens: usize) -> String {
        json!({
            "messages": self.messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        })
        .to_string()
    }
}

/// `n` prompts of just under `tokens` tokens that share no beginning, so that no cache can shorten any.
pub fn distinct(model: &Path, n: usize, tokens: usize, seed: u64) -> Result<Vec<Prompt>> {
    let flags = Flags {
        model: Some(model.to_owned()),
        ..Flags::default()
    };
    let encoder = LoadedModel::load(&Config::load(None, [], &flags)?.model)?;
    (0..n).map(|i| fit(&encoder, i, tokens, seed)).collect()
}

/// Shortens the system prompt by whole words until the whole has at most `target` tokens.
fn fit(encoder: &LoadedModel, i: usize, target: usize, seed: u64) -> Result<Prompt> {
    let h = mix(seed ^ i as u64);
    let users: Vec<&str> = USER.lines().collect();
    let user = users[(i + seed as usize) % users.len()];
    let system = SYSTEM[i % SYSTEM.len()];
    // Twice, so that long targets can be met as well.
    let words: Vec<&str> = system.split(' ').chain(system.split(' ')).collect();
    let make = |n: usize| -> Result<Prompt> {
        let messages = json!([
            { "role": "system", "content": format!("Case {h:016x}. {}", words[..n].join(" ")) },
            { "role": "user", "content": user },
        ]);
        let tokens = encoder
            .encode_chat(&messages, None)
            .map_err(|e| anyhow::anyhow!("{e:?}"))?;
        Ok(Prompt {
            messages,
            tokens: tokens.into_iter().map(|t| t.0).collect(),
        })
    };
    let (mut low, mut high) = (0, words.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if make(middle)?.tokens.len() <= target {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let prompt = make(low)?;
    (prompt.tokens.len() + 16 >= target && prompt.tokens.len() <= target)
        .then_some(prompt)
        .with_context(|| format!("no prompt of about {target} tokens can be made"))
}

/// A few thousand tokens of plain text.
pub fn prose() -> String {
    SYSTEM.concat() + QUALITY
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
