//! llama.cpp with nothing around it: what the daemon is compared with, and what the knobs are measured on.
//! Built like the daemon's context (unified KV, a batch by hand), but on its own code, so that a mistake of the
//! daemon's is not repeated here. The argmax is the daemon's: the comparison is about everything else.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cadenced::model::sampling::{Sampler, SamplingParams};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::context::session::LlamaStateSeqFlags;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use serde::{Deserialize, Serialize};

use crate::effective::Effective;

const GREEDY: SamplingParams = SamplingParams {
    temperature: 0.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    seed: 0,
};

/// How a context is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BareSettings {
    pub model: PathBuf,
    pub sequences: u32,
    pub effective: Effective,
}

impl BareSettings {
    /// The daemon's defaults around a model, with so many threads and cells.
    pub fn plain(model: &Path, threads: i32, kv_cells: u32) -> Self {
        Self {
            model: model.to_owned(),
            sequences: 64,
            effective: Effective {
                threads,
                threads_batch: threads,
                wait_policy: crate::child::BOUNDED.into(),
                n_batch: 512,
                n_ubatch: 512,
                kv_cells,
                kv_type_k: "f16".into(),
                kv_type_v: "f16".into(),
                flash_attention: true,
                kv_layout: "unified".into(),
                model_bytes: 0,
                kv_bytes: 0,
                compute_bytes: 0,
            },
        }
    }
}

/// A sequence that decodes: the token to feed next, and where.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    pub id: i32,
    pub token: i32,
    pub position: u32,
}

impl Sequence {
    pub fn new(id: i32, token: i32, position: u32) -> Self {
        Self {
            id,
            token,
            position,
        }
    }
}

/// A model and a context over it.
pub struct Bare {
    model: &'static LlamaModel,
    context: LlamaContext<'static>,
    batch: LlamaBatch<'static>,
    sampler: Sampler,
    settings: Effective,
}

impl Bare {
    pub fn load(settings: &BareSettings) -> Result<Self> {
        Self::with_model(load_model(&settings.model)?, settings)
    }

    /// Another context over a model.
    pub fn with_model(model: &'static LlamaModel, settings: &BareSettings) -> Result<Self> {
        let e = &settings.effective;
        let flash = if e.flash_attention {
            llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED
        } else {
            llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED
        };
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(e.kv_cells))
            .with_n_batch(e.n_batch)
            .with_n_ubatch(e.n_ubatch)
            .with_n_seq_max(settings.sequences)
            .with_n_threads(e.threads)
            .with_n_threads_batch(e.threads_batch)
            .with_type_k(kv_type(&e.kv_type_k)?)
            .with_type_v(kv_type(&e.kv_type_v)?)
            .with_kv_unified(e.kv_layout == "unified")
            .with_no_perf(true)
            .with_flash_attention_policy(flash);
        let context = model
            .new_context(library()?, params)
            .context("the context")?;
        let batch = LlamaBatch::new(e.n_batch as usize, 1);
        let settings = Effective {
            wait_policy: cadenced::wait_policy::in_force(),
            n_batch: context.n_batch(),
            n_ubatch: context.n_ubatch(),
            kv_cells: context.n_ctx(),
            ..e.clone()
        };
        Ok(Self {
            model,
            context,
            batch,
            sampler: Sampler::default(),
            settings,
        })
    }

    /// The settings that llama.cpp made of those asked for.
    pub fn settings(&self) -> &Effective {
        &self.settings
    }

    pub fn tokenize(&self, text: &str) -> Vec<i32> {
        let tokens = self.model.vocab().tokenize(text.as_bytes(), false, false);
        tokens.into_iter().map(|t| t.0).collect()
    }

    /// Computes `tokens` of a sequence from `position` on, in batches as large as allowed; gives the next token.
    pub fn prefill(&mut self, seq: i32, position: u32, tokens: &[i32]) -> Result<i32> {
        ensure!(!tokens.is_empty(), "an empty prompt");
        let mut at = position as i32;
        for chunk in tokens.chunks(self.settings.n_batch as usize) {
            self.batch.clear();
            for (i, token) in chunk.iter().enumerate() {
                self.batch
                    .add(LlamaToken(*token), at, &[seq], i + 1 == chunk.len())?;
                at += 1;
            }
            self.context.decode(&mut self.batch)?;
        }
        Ok(self.argmax(self.batch.n_tokens() - 1, 0))
    }

    /// Computes `tokens` as an empty sequence 0, in one batch, with logits after each.
    pub fn compute_all(&mut self, tokens: &[i32]) -> Result<()> {
        self.remove(0, 0)?;
        self.batch.clear();
        for (i, token) in tokens.iter().enumerate() {
            self.batch.add(LlamaToken(*token), i as i32, &[0], true)?;
        }
        Ok(self.context.decode(&mut self.batch)?)
    }

    /// Logits after token `i` of the last batch.
    pub fn logits(&self, i: usize) -> &[f32] {
        self.context.get_logits_ith(i as i32)
    }

    /// Advances every sequence by one token: the loop that the daemon can't beat.
    pub fn step(&mut self, sequences: &mut [Sequence]) -> Result<()> {
        self.batch.clear();
        for s in sequences.iter() {
            self.batch
                .add(LlamaToken(s.token), s.position as i32, &[s.id], true)?;
        }
        self.context.decode(&mut self.batch)?;
        for (row, s) in sequences.iter_mut().enumerate() {
            s.token = self.argmax(row as i32, s.position);
            s.position += 1;
        }
        Ok(())
    }

    /// Gives sequence `to` cells of its own with the contents of `from`'s.
    pub fn copy(&mut self, from: i32, to: &[i32]) -> Result<()> {
        let state = self
            .context
            .state_seq_get(from, LlamaStateSeqFlags::empty())?;
        to.iter()
            .try_for_each(|seq| Ok(self.context.state_seq_set(&state, *seq)?))
    }

    /// Removes the cells of `seq` from `position` on.
    pub fn remove(&mut self, seq: i32, position: u32) -> Result<()> {
        let from = (position > 0).then_some(position);
        self.context
            .kv_cache_seq_rm(seq, from, None)
            .map_err(|e| anyhow!("{e}"))
    }

    fn argmax(&mut self, row: i32, index: u32) -> i32 {
        self.sampler
            .sample(self.context.get_logits_ith(row), &GREEDY, index)
            .0
    }
}

/// Loads a model for the rest of the process's life.
pub fn load_model(path: &Path) -> Result<&'static LlamaModel> {
    let params = LlamaModelParams::default().with_n_gpu_layers(999);
    let model = LlamaModel::load_from_file(library()?, path, &params)
        .with_context(|| format!("loading {}", path.display()))?;
    Ok(Box::leak(Box::new(model)))
}

fn library() -> Result<&'static LlamaBackend> {
    static LIBRARY: OnceLock<Result<LlamaBackend, String>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let mut library = LlamaBackend::init().map_err(|e| e.to_string())?;
            library.void_logs();
            Ok(library)
        })
        .as_ref()
        .map_err(|e| anyhow!("llama.cpp: {e}"))
}

fn kv_type(name: &str) -> Result<KvCacheType> {
    Ok(match name.replace('_', "").as_str() {
        "f32" => KvCacheType::F32,
        "f16" => KvCacheType::F16,
        "bf16" => KvCacheType::BF16,
        "q80" => KvCacheType::Q8_0,
        "q40" => KvCacheType::Q4_0,
        _ => bail!("no such KV type: {name}"),
    })
}
