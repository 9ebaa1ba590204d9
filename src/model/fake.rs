//! A model that computes nothing: deterministic text, costs by formula, faults on demand.
//!
//! What it says is a pure function of the tokens in its sequence, as a real model's greedy text is, so a
//! reply is the same alone and in any batch, and different if one sequence reads another's cells. How long it
//! speaks is a hash of the prompt: nobody at admission can know it, `max_tokens` is only a cap.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::vocab::{Vocab, VocabBuilder};
use super::{BatchRow, DecodeCode, EffectiveSettings, ModelBackend, PromptEncoder};
use crate::config::Config;
use crate::error::ServeError;
use crate::ids::{SeqId, TokenId};
use crate::logic::rng::SplitMix64;

/// Words that the fake says; ids below this are the reply's, ids from here on are the prompt's.
pub const VOCAB: i32 = 1024;
/// Of its cells, for `kv.cells = "auto"`: as many as a small real model's.
pub const BYTES_PER_TOKEN: u64 = 16 << 10;
/// The longest context that it was never trained on.
pub const CONTEXT: u32 = 8192;
/// Ends a reply.
const EOG: TokenId = TokenId(0);
/// Stands in a prompt for the fault marker.
const FAULT: TokenId = TokenId(VOCAB);
/// Prompt ids are `VOCAB + 1 ..` this.
const PROMPT_IDS: u64 = 1 << 30;

/// What the fake does when a marked request reaches `at_token`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    None,
    /// Decode returns 1 for every batch that the request is in.
    NoRoom,
    /// Decode returns -1 for every batch that the request is in.
    Invalid,
    /// Decode blocks its thread for `stall_ms`.
    Stall,
    /// Decode panics.
    Panic,
}

/// Section `[fake]` of the configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeConfig {
    /// Cost of a step, of each prompt token, of each decoding sequence, and of each token that the decoding
    /// sequences have in the cache; microseconds.
    pub step_us: f64,
    pub prefill_token_us: f64,
    pub decode_seq_us: f64,
    pub cached_token_us: f64,
    /// Lognormal length of the replies, in tokens, clipped.
    pub length_log_mean: f64,
    pub length_log_sd: f64,
    pub length_min: u32,
    pub length_max: u32,
    /// Prompts that contain this text are marked for the fault; empty marks none.
    pub fault_marker: String,
    pub fault: Fault,
    /// At which token of the marked request's reply it happens.
    pub fault_at_token: u32,
    pub stall_ms: u64,
}

/// The state of one sequence: what was fed to it.
#[derive(Default)]
struct Cells {
    tokens: Vec<TokenId>,
    prompt_hash: u64,
    generated: u32,
    marked: bool,
}

impl Cells {
    fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        if token.0 < VOCAB {
            self.generated += 1;
        } else {
            self.prompt_hash = mix(self.prompt_hash ^ token.0 as u64);
            self.marked |= token == FAULT;
        }
    }
}

/// See the module's text.
pub struct FakeBackend {
    config: FakeConfig,
    /// Of the reply to each prompt, by the prompt's hash, where they are not drawn.
    lengths: BTreeMap<u64, u32>,
    effective: EffectiveSettings,
    cells: BTreeMap<SeqId, Cells>,
    /// One-hot logits for each row of the last batch.
    logits: Vec<Vec<f32>>,
    hot: Vec<usize>,
    delay: Duration,
}

impl FakeBackend {
    /// A fake as `config` has it. It does not count its cells: the pool does.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let effective = EffectiveSettings {
            threads: config.runner.threads.or(0) as i32,
            n_batch: config.runner.n_batch,
            n_ubatch: config.runner.n_ubatch,
            kv_cells: config.cells(),
            kv_layout: format!("{:?}", config.kv.layout.resolved()).to_lowercase(),
            partial_removal: true,
            prefix_reuse: config.may_reuse(),
            ..EffectiveSettings::default()
        };
        Self {
            config: config.fake.clone(),
            lengths: BTreeMap::new(),
            effective,
            cells: BTreeMap::new(),
            logits: Vec::new(),
            hot: Vec::new(),
            delay: Duration::ZERO,
        }
    }

    /// The same with replies of given lengths, without the token that ends them, for prompts by their
    /// [`prompt_hash`]; all others are drawn.
    #[must_use]
    pub fn with_lengths(self, lengths: BTreeMap<u64, u32>) -> Self {
        Self { lengths, ..self }
    }

    /// The next token after what is in `cells`.
    fn next_token(&self, cells: &Cells) -> TokenId {
        let given = self.lengths.get(&cells.prompt_hash).copied();
        let length = given.unwrap_or_else(|| reply_length(&self.config, cells.prompt_hash));
        if cells.generated >= length {
            return EOG;
        }
        let h = mix(cells.prompt_hash.wrapping_add(u64::from(cells.generated)));
        TokenId(1 + (h % (VOCAB as u64 - 1)) as i32)
    }

    fn fault_due(&self, row: &BatchRow<'_>) -> bool {
        self.cells
            .get(&row.seq)
            .is_some_and(|c| c.marked && c.generated == self.config.fault_at_token)
    }

    fn set_hot(&mut self, row: usize, token: TokenId) {
        while self.logits.len() <= row {
            self.logits.push(vec![-30.0; VOCAB as usize]);
            self.hot.push(0);
        }
        self.logits[row][self.hot[row]] = -30.0;
        self.hot[row] = token.0 as usize;
        self.logits[row][self.hot[row]] = 0.0;
    }

    fn cost(&self, rows: &[BatchRow<'_>]) -> Duration {
        let c = &self.config;
        let mut us = c.step_us;
        for row in rows {
            let cached = f64::from(row.position) * c.cached_token_us;
            us += match row.tokens {
                [_] => c.decode_seq_us + cached,
                tokens => c.prefill_token_us * tokens.len() as f64 + cached,
            };
        }
        Duration::from_nanos((us * 1e3) as u64)
    }
}

impl ModelBackend for FakeBackend {
    fn decode(&mut self, rows: &[BatchRow<'_>]) -> Result<(), DecodeCode> {
        if rows.iter().any(|r| self.fault_due(r)) {
            match self.config.fault {
                Fault::None => {}
                Fault::NoRoom => return Err(DecodeCode(1)),
                Fault::Invalid => return Err(DecodeCode(-1)),
                Fault::Stall => std::thread::sleep(Duration::from_millis(self.config.stall_ms)),
                Fault::Panic => panic!("the fake was told to panic"),
            }
        }
        self.delay += self.cost(rows);
        for (i, row) in rows.iter().enumerate() {
            let cells = self.cells.entry(row.seq).or_default();
            // A real cache would answer -1 to a hole; a fake that accepts one would hide it.
            if cells.tokens.len() != row.position as usize {
                return Err(DecodeCode(-1));
            }
            row.tokens.iter().for_each(|t| cells.push(*t));
            if row.logits {
                let next = self.next_token(&self.cells[&row.seq]);
                self.set_hot(i, next);
            }
        }
        Ok(())
    }

    fn ends(&self, token: TokenId) -> bool {
        token == EOG
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn remove(&mut self, seq: SeqId, position: u32) -> bool {
        if position == 0 {
            self.cells.remove(&seq);
        } else if let Some(cells) = self.cells.remove(&seq) {
            let mut kept = Cells::default();
            cells
                .tokens
                .iter()
                .take(position as usize)
                .for_each(|t| kept.push(*t));
            self.cells.insert(seq, kept);
        }
        true
    }

    fn copy(&mut self, from: SeqId, to: SeqId, tokens: u32) {
        let mut copy = Cells::default();
        if let Some(cells) = self.cells.get(&from) {
            let kept = cells.tokens.iter().take(tokens as usize);
            kept.for_each(|t| copy.push(*t));
        }
        self.cells.insert(to, copy);
    }

    fn take_delay(&mut self) -> Duration {
        std::mem::take(&mut self.delay)
    }

    fn effective(&self) -> EffectiveSettings {
        self.effective.clone()
    }
}

/// What the fake knows a prompt by.
#[must_use]
pub fn prompt_hash(prompt: &[TokenId]) -> u64 {
    let mut cells = Cells::default();
    prompt.iter().for_each(|t| cells.push(*t));
    cells.prompt_hash
}

/// How many tokens the fake answers to a prompt with this hash: lognormal, by two uniforms from the hash.
fn reply_length(config: &FakeConfig, prompt_hash: u64) -> u32 {
    let unit = |x: u64| ((mix(x) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (u, v) = (unit(prompt_hash ^ 0xA5A5), unit(prompt_hash ^ 0x5A5A));
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let length = (config.length_log_mean + config.length_log_sd * normal)
        .exp()
        .round();
    (length as u32).clamp(config.length_min, config.length_max)
}

/// Every bit of the input moves half of the output's.
fn mix(x: u64) -> u64 {
    SplitMix64::new(x).next_u64()
}

/// The fake's vocabulary: an end, and words.
#[must_use]
pub fn vocab() -> Vocab {
    let mut b = VocabBuilder::with_capacity(VOCAB as usize);
    let end = b.push_control("<|end|>");
    b.mark_eog(end);
    for id in 1..VOCAB {
        b.push(format!(" w{id}").as_bytes());
    }
    b.build()
}

/// Tokenizes four bytes at a time, which is about what real vocabularies make of English.
pub struct FakeEncoder {
    pub fault_marker: String,
}

impl PromptEncoder for FakeEncoder {
    fn encode_chat(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
    ) -> Result<Vec<TokenId>, ServeError> {
        let mut text = messages.to_string();
        if let Some(tools) = tools {
            text.push_str(&tools.to_string());
        }
        let mut tokens: Vec<TokenId> = text
            .as_bytes()
            .chunks(4)
            .map(|c| {
                let h = c.iter().fold(0, |h, b| mix(h ^ u64::from(*b)));
                TokenId(VOCAB + 1 + (h % PROMPT_IDS) as i32)
            })
            .collect();
        if !self.fault_marker.is_empty() && text.contains(&self.fault_marker) {
            tokens.push(FAULT);
        }
        Ok(tokens)
    }
}

#[cfg(test)]
#[path = "fake_tests.rs"]
mod tests;
