//! Models: what the engine needs of one, the llama.cpp backend, and a fake with costs of its own choosing.
//!
//! A model has two sides. The [`ModelBackend`] computes; it lives on the runner's thread and nowhere else.
//! The [`PromptEncoder`] turns a conversation into tokens; it is shared by all HTTP threads.

pub mod chat_template;
pub mod fake;
pub mod llama;
mod llama_log;
pub mod memory;
pub mod quantize;
pub mod sampling;
pub mod step;
pub mod transcripts;
pub mod vocab;

use std::sync::Arc;
use std::time::Duration;

use crate::error::ServeError;
use crate::ids::{SeqId, TokenId};
use transcripts::Transcripts;
use vocab::Vocab;

/// One sequence's part of a batch: `tokens` at `position` and the ones after it.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow<'a> {
    pub seq: SeqId,
    pub position: u32,
    pub tokens: &'a [TokenId],
    /// Whether the logits after its last token are wanted.
    pub logits: bool,
}

/// `llama_decode`'s non-zero answer: 1 = no room in the KV cache, -1 = invalid batch, below = the engine broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeCode(pub i32);

/// A model that advances several sequences by one batch.
pub trait ModelBackend {
    /// Computes a batch of at most `n_batch` tokens in one call.
    ///
    /// # Errors
    /// The code of the failure; any of the rows' cells may have been written then.
    fn decode(&mut self, rows: &[BatchRow<'_>]) -> Result<(), DecodeCode>;

    /// Logits after the last token of row `row` of the last batch; only for rows that asked for them.
    fn logits(&self, row: usize) -> &[f32];

    /// Whether the model ends a reply with this token.
    fn ends(&self, token: TokenId) -> bool;

    /// Removes the cells of `seq` from `position` on. False if the model can't remove a part of a sequence.
    fn remove(&mut self, seq: SeqId, position: u32) -> bool;

    /// Gives `to`, which is empty, the first `tokens` tokens of `from`.
    fn copy(&mut self, from: SeqId, to: SeqId, tokens: u32);

    /// Time that the last batch shall appear to have taken; the runner sleeps it on tokio's clock, which a
    /// test can pause. Only a simulated model has any.
    fn take_delay(&mut self) -> Duration {
        Duration::ZERO
    }

    /// What was made of the settings.
    fn effective(&self) -> EffectiveSettings;
}

/// Settings as they are in force, for `/stats` and for benchmarks that refuse to measure something else.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct EffectiveSettings {
    pub threads: i32,
    pub threads_batch: i32,
    /// How the compute threads wait for one another.
    pub wait_policy: String,
    pub n_batch: u32,
    pub n_ubatch: u32,
    pub kv_cells: u32,
    pub kv_type_k: String,
    pub kv_type_v: String,
    pub flash_attention: bool,
    /// "unified" or "streams".
    pub kv_layout: String,
    /// Whether part of a sequence can be removed (false for recurrent models and those with sliding windows).
    pub partial_removal: bool,
    /// Whether requests share the KV of their prefixes.
    pub prefix_reuse: bool,
    pub model_bytes: u64,
    pub kv_bytes: u64,
    pub compute_bytes: u64,
}

/// Turns conversations into prompts.
pub trait PromptEncoder: Send + Sync {
    /// Renders the model's chat template over `messages` and tokenizes it. Text of the messages never becomes
    /// a control token.
    ///
    /// # Errors
    /// When the template refuses the conversation.
    fn encode_chat(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
    ) -> Result<Vec<TokenId>, ServeError>;
}

/// What the HTTP side knows of the model.
#[derive(Clone)]
pub struct ModelFront {
    pub encoder: Arc<dyn PromptEncoder>,
    pub vocab: Arc<Vocab>,
    /// Replies given, for the prompts that they come back in; `None` where prefixes are not shared.
    pub transcripts: Option<Arc<Transcripts>>,
    /// The most tokens that one request may have, prompt and reply together.
    pub context: u32,
}
