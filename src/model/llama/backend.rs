//! A context over the loaded model. The batch is built by hand: positions, sequence ids and logits flags are the
//! step's.

use std::num::NonZeroU32;
use std::sync::Arc;

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;

use super::super::vocab::Vocab;
use super::super::{BatchRow, DecodeCode, EffectiveSettings, ModelBackend, llama_log};
use super::{LoadedModel, ModelError, library};
use crate::config::{Config, FlashAttention, KvLayout, KvType, Reuse};
use crate::ids::{SeqId, TokenId};

/// A context of its own over the loaded model; see the module's text.
pub struct LlamaBackend {
    vocab: Arc<Vocab>,
    context: LlamaContext<'static>,
    batch: LlamaBatch<'static>,
    /// Index in the batch of each row's last token.
    last_token: Vec<i32>,
    /// Sequences share one pool of cells.
    unified: bool,
    effective: EffectiveSettings,
}

impl LlamaBackend {
    /// Makes the context, on the thread that will use it.
    ///
    /// # Errors
    /// When an explicit setting can't be honoured, or memory is short.
    pub fn new(loaded: &LoadedModel, config: &Config) -> Result<Self, ModelError> {
        let (runner, kv, sequences) = (&config.runner, &config.kv, config.sequences());
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let threads = runner.threads.or(cores) as i32;
        let threads_batch = runner.threads_batch.or(cores) as i32;
        let params = |type_k: KvType, type_v: KvType| {
            LlamaContextParams::default()
                .with_n_ctx(NonZeroU32::new(config.cells()))
                .with_n_batch(runner.n_batch)
                .with_n_ubatch(runner.n_ubatch)
                .with_n_seq_max(sequences)
                .with_n_threads(threads)
                .with_n_threads_batch(threads_batch)
                .with_type_k(kv_type(type_k))
                .with_type_v(kv_type(type_v))
                .with_kv_unified(kv.layout.resolved() == KvLayout::Unified)
                .with_no_perf(true)
                .with_flash_attention_policy(match runner.flash_attention {
                    // llama.cpp's own "enabled" moves the operation to the CPU where a device lacks it, and
                    // says nothing; "auto" tells what it chose, which "on" then requires.
                    FlashAttention::Auto | FlashAttention::On => {
                        llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO
                    }
                    FlashAttention::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
                })
        };
        let make = |type_k, type_v| {
            llama_log::take();
            let made = loaded.model.new_context(library()?, params(type_k, type_v));
            made.map_err(|e| {
                let why = llama_log::take()
                    .last_error
                    .unwrap_or_else(|| e.to_string());
                ModelError(format!("the model's context (kv.*, runner.*): {why}"))
            })
        };
        let choose = |t: KvType, auto: KvType| if t == KvType::Auto { auto } else { t };
        let both = |auto| (choose(kv.type_k, auto), choose(kv.type_v, auto));
        let (mut types, plain) = (both(KvType::Q8_0), both(KvType::F16));
        if runner.flash_attention == FlashAttention::Off {
            types = plain;
        }
        let context = match make(types.0, types.1) {
            Err(why) if types != plain => {
                tracing::warn!("kv.type_k, kv.type_v: f16 instead of q8_0: {}", why.0);
                types = plain;
                make(types.0, types.1)?
            }
            made => made?,
        };
        let log = llama_log::take();
        let flash_attention = log
            .flash_attention
            .unwrap_or(runner.flash_attention != FlashAttention::Off);
        if runner.flash_attention == FlashAttention::On && !flash_attention {
            return Err(ModelError(
                "runner.flash_attention: this model and device can't honour \"on\"".into(),
            ));
        }
        if context.n_ctx() < config.cells() {
            return Err(ModelError(format!(
                "kv.cells: llama.cpp made {} of {}",
                context.n_ctx(),
                config.cells()
            )));
        }
        let effective = EffectiveSettings {
            threads,
            threads_batch,
            wait_policy: crate::wait_policy::in_force(),
            n_batch: context.n_batch(),
            n_ubatch: context.n_ubatch(),
            kv_cells: context.n_ctx(),
            kv_type_k: name(types.0),
            kv_type_v: name(types.1),
            flash_attention,
            kv_layout: format!("{:?}", kv.layout.resolved()).to_lowercase(),
            partial_removal: false,
            prefix_reuse: false,
            model_bytes: loaded.model.size(),
            kv_bytes: log.kv_bytes,
            compute_bytes: log.compute_bytes,
        };
        let batch = LlamaBatch::new(runner.n_batch as usize, 1);
        let mut backend = Self {
            vocab: Arc::clone(&loaded.vocab),
            context,
            batch,
            last_token: Vec::new(),
            unified: kv.layout.resolved() == KvLayout::Unified,
            effective,
        };
        backend.effective.partial_removal = backend.try_partial_removal(loaded);
        let able = backend.effective.partial_removal;
        match config.prefix.reuse {
            Reuse::On if !able => {
                return Err(ModelError(
                    "prefix.reuse: this model can't forget a part of a sequence (a sliding window, or recurrent \
                     layers), which sharing prefixes needs"
                        .into(),
                ));
            }
            Reuse::Auto if !able => tracing::warn!(
                "prefixes are not shared: this model can't forget a part of a sequence (a sliding window, or \
                 recurrent layers)"
            ),
            _ => {}
        }
        backend.effective.prefix_reuse = able && config.may_reuse();
        Ok(backend)
    }

    /// Asks the model by doing it: whether part of a sequence can be removed.
    fn try_partial_removal(&mut self, loaded: &LoadedModel) -> bool {
        // Of a sliding window's cells those behind it are overwritten, and llama.cpp removes parts all the same.
        if loaded.model.is_recurrent()
            || loaded.model.is_hybrid()
            || has_sliding_window(loaded.model)
        {
            return false;
        }
        let token = loaded.vocab.bos().unwrap_or(TokenId(0));
        let row = BatchRow {
            seq: SeqId(0),
            position: 0,
            tokens: &[token, token],
            logits: false,
        };
        let able = self.decode(&[row]).is_ok() && self.remove(SeqId(0), 1);
        self.remove(SeqId(0), 0);
        able
    }
}

impl ModelBackend for LlamaBackend {
    fn decode(&mut self, rows: &[BatchRow<'_>]) -> Result<(), DecodeCode> {
        self.batch.clear();
        self.last_token.clear();
        for row in rows {
            let seq = [row.seq.0 as i32];
            let last = row.tokens.len().saturating_sub(1);
            for (i, token) in row.tokens.iter().enumerate() {
                let position = row.position as i32 + i as i32;
                // A plan never exceeds `n_batch`; if one did, it would be an invalid batch.
                self.batch
                    .add(LlamaToken(token.0), position, &seq, row.logits && i == last)
                    .map_err(|_| DecodeCode(-1))?;
            }
            self.last_token.push(self.batch.n_tokens() - 1);
        }
        self.context.decode(&mut self.batch).map_err(|e| match e {
            DecodeError::NoKvCacheSlot => DecodeCode(1),
            DecodeError::NTokensZero => DecodeCode(-1),
            DecodeError::Unknown(code) => DecodeCode(code),
        })
    }

    fn ends(&self, token: TokenId) -> bool {
        self.vocab.is_eog(token)
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.get_logits_ith(self.last_token[row])
    }

    fn remove(&mut self, seq: SeqId, position: u32) -> bool {
        let from = (position > 0).then_some(position);
        self.context
            .kv_cache_seq_rm(seq.0 as i32, from, None)
            .is_ok()
    }

    fn copy(&mut self, from: SeqId, to: SeqId, tokens: u32) {
        let (source, copy) = (from.0 as i32, to.0 as i32);
        // Between streams only the whole can be copied.
        let end = self.unified.then_some(tokens);
        if let Err(e) = self.context.kv_cache_seq_cp(source, copy, None, end) {
            tracing::error!(
                from = from.0,
                to = to.0,
                tokens,
                "the prefix was not copied: {e}"
            );
        }
        if !self.unified {
            self.remove(to, tokens);
        }
    }

    fn effective(&self) -> EffectiveSettings {
        self.effective.clone()
    }
}

/// Whether the model attends to the last tokens only in some layers.
fn has_sliding_window(model: &LlamaModel) -> bool {
    let value = |key: &str| model.meta_val_str(key).ok();
    value("general.architecture")
        .and_then(|arch| value(&format!("{arch}.attention.sliding_window")))
        .and_then(|tokens| tokens.parse::<u32>().ok())
        .is_some_and(|tokens| tokens > 0)
}

/// As the configuration writes it.
fn name(t: KvType) -> String {
    format!("{t:?}").to_lowercase()
}

fn kv_type(t: KvType) -> KvCacheType {
    match t {
        KvType::F32 => KvCacheType::F32,
        KvType::Auto | KvType::F16 => KvCacheType::F16,
        KvType::Bf16 => KvCacheType::BF16,
        KvType::Q8_0 => KvCacheType::Q8_0,
        KvType::Q4_0 => KvCacheType::Q4_0,
    }
}
