//! The prefix cache: which beginnings of prompts are already in the KV pool.
//!
//! Rungs 1 to 3 run without one. [`NoPrefixCache`] is what "without" means: it is asked like any other, and
//! it never has anything.

use crate::ids::TokenId;

/// What a cache can be asked.
pub trait PrefixIndex {
    /// How many leading tokens of `prompt` are cached.
    fn match_prefix(&mut self, prompt: &[TokenId]) -> u32;

    /// Blocks that cached prefixes hold.
    fn blocks_held(&self) -> u32;
}

/// The cache that is off.
#[derive(Debug, Default)]
pub struct NoPrefixCache;

impl PrefixIndex for NoPrefixCache {
    fn match_prefix(&mut self, _prompt: &[TokenId]) -> u32 {
        0
    }

    fn blocks_held(&self) -> u32 {
        0
    }
}
