//! The llama.cpp backend; the only file of the daemon that names `llama_cpp_2`.
//!
//! The model is loaded once and lives as long as the process ([`LoadedModel`]); HTTP threads tokenize with it
//! while the runner computes. The context borrows it and belongs to the thread that made it
//! ([`LlamaBackend`]). The batch is built by hand: positions, sequence ids and logits flags are the step's.

use std::io::Read;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend as Library;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use llama_cpp_2::{DecodeError, LlamaCppError};

use super::chat_template::{ChatTemplate, TemplateError};
use super::llama_log;
use super::vocab::{Vocab, VocabBuilder};
use super::{BatchRow, DecodeCode, EffectiveSettings, ModelBackend, PromptEncoder};
use crate::config::{AutoOr, Config, FlashAttention, KvLayout, KvType, ModelConfig, Reuse};
use crate::error::ServeError;
use crate::ids::{SeqId, TokenId};

/// Why a model can't be served; the text names the path and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ModelError(pub String);

/// llama.cpp itself, initialised once.
pub(super) fn library() -> Result<&'static Library, ModelError> {
    static LIBRARY: OnceLock<Result<Library, LlamaCppError>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            llama_log::install();
            Library::init()
        })
        .as_ref()
        .map_err(|e| ModelError(format!("llama.cpp: {e}")))
}

/// A model in memory, with what the HTTP side needs of it.
#[derive(Clone)]
pub struct LoadedModel {
    model: &'static LlamaModel,
    pub vocab: Arc<Vocab>,
    template: Option<Arc<ChatTemplate>>,
    /// The longest context that the model was trained on.
    pub n_ctx_train: u32,
}

impl LoadedModel {
    /// Loads the file that `config` names.
    ///
    /// # Errors
    /// When the file can't be read, is no GGUF, or is not a model that llama.cpp knows.
    pub fn load(config: &ModelConfig) -> Result<Self, ModelError> {
        let path = &config.path;
        let fail = |why: String| ModelError(format!("model.path: {}: {why}", absolute(path)));
        // llama.cpp says only "failed to open", so the operating system's reason is found here.
        let mut magic = [0u8; 4];
        std::fs::File::open(path)
            .and_then(|mut f| f.read_exact(&mut magic))
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => fail("too short for a GGUF file".into()),
                _ => fail(e.to_string()),
            })?;
        if &magic != b"GGUF" {
            return Err(fail("not a GGUF file".into()));
        }
        let library = library()?;
        llama_log::take();
        let params = LlamaModelParams::default().with_n_gpu_layers(config.gpu_layers);
        let model = LlamaModel::load_from_file(library, path, &params).map_err(|e| {
            fail(
                llama_log::take()
                    .last_error
                    .unwrap_or_else(|| e.to_string()),
            )
        })?;
        // The process has one model, to its end: a leaked reference says so, where a self-referential
        // struct would need unsafe code to pretend otherwise.
        let model: &'static LlamaModel = Box::leak(Box::new(model));
        let vocab = Arc::new(read_vocab(model));
        let source = if config.chat_template.as_os_str().is_empty() {
            model
                .chat_template(None)
                .ok()
                .and_then(|t| t.to_string().ok())
        } else {
            Some(std::fs::read_to_string(&config.chat_template).map_err(|e| {
                ModelError(format!(
                    "model.chat_template: {}: {e}",
                    absolute(&config.chat_template)
                ))
            })?)
        };
        let template = match source {
            None => {
                tracing::warn!("the model has no chat template: chat requests will be refused");
                None
            }
            Some(source) => {
                let template = ChatTemplate::new(
                    &source,
                    vocab.bos_text(),
                    vocab.eos_text(),
                    vocab.special_texts(),
                )
                .map_err(|e| ModelError(format!("the model's chat template: {e}")))?;
                for (conversation, error) in template.check() {
                    tracing::warn!("the chat template does not take {conversation}: {error}");
                }
                Some(Arc::new(template))
            }
        };
        Ok(Self {
            model,
            vocab,
            template,
            n_ctx_train: model.n_ctx_train(),
        })
    }

    /// Bytes that a token takes in the pool, asked of llama.cpp by making a small one.
    ///
    /// # Errors
    /// When not even that can be made.
    pub fn kv_bytes_per_token(&self, config: &Config) -> Result<u64, ModelError> {
        const CELLS: u32 = 256;
        let mut small = config.clone();
        small.kv.cells = AutoOr::Count(CELLS);
        small.kv.layout = KvLayout::Unified;
        let backend = LlamaBackend::new(self, &small)?;
        Ok(backend.effective.kv_bytes.div_ceil(u64::from(CELLS)))
    }

    /// Bytes that are left where the pool will be: on the GPU that the layers go to, else in this machine.
    #[must_use]
    pub fn memory_available(config: &ModelConfig) -> u64 {
        use llama_cpp_2::LlamaBackendDeviceType::{Gpu, IntegratedGpu};
        let devices = llama_cpp_2::list_llama_ggml_backend_devices();
        let gpus = devices
            .iter()
            .filter(|d| config.gpu_layers > 0 && matches!(d.device_type, Gpu | IntegratedGpu));
        let on_gpus: usize = gpus.map(|d| d.memory_free).sum();
        match on_gpus as u64 {
            0 => super::memory::available().unwrap_or(0),
            bytes => bytes,
        }
    }

    fn tokenize(&self, text: &str, parse_special: bool, out: &mut Vec<TokenId>) {
        let tokens = self
            .model
            .vocab()
            .tokenize(text.as_bytes(), false, parse_special);
        out.extend(tokens.into_iter().map(|t| TokenId(t.0)));
    }
}

impl PromptEncoder for LoadedModel {
    fn encode_chat(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
    ) -> Result<Vec<TokenId>, ServeError> {
        let invalid = |message: String| ServeError::InvalidRequest {
            param: Some("messages".into()),
            message,
            code: None,
        };
        let template = self.template.as_ref().ok_or_else(|| {
            invalid("this model has no chat template; configure model.chat_template".into())
        })?;
        let segments = template
            .render(messages, tools, true)
            .map_err(|e| match e {
                TemplateError::Raised(why) => {
                    invalid(format!("the model's chat template refuses: {why}"))
                }
                other => invalid(other.to_string()),
            })?;
        let mut tokens = Vec::new();
        let bos = self.vocab.bos_text();
        // A template that writes BOS itself must not get a second one.
        let written = segments
            .first()
            .is_some_and(|s| s.parse_special && !bos.is_empty() && s.text.starts_with(bos));
        if let Some(id) = self
            .vocab
            .bos()
            .filter(|_| self.vocab.add_bos() && !written)
        {
            tokens.push(id);
        }
        for segment in &segments {
            self.tokenize(&segment.text, segment.parse_special, &mut tokens);
        }
        Ok(tokens)
    }
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path)
        .unwrap_or_else(|_| path.to_path_buf())
        .display()
        .to_string()
}

fn read_vocab(model: &LlamaModel) -> Vocab {
    let vocab = model.vocab();
    let mut b = VocabBuilder::with_capacity(vocab.n_tokens() as usize);
    for token in vocab.tokens() {
        // What only `parse_special` recognises; other added tokens are text like any other.
        let id = if vocab
            .attr(token)
            .intersects(LlamaTokenAttr::Control | LlamaTokenAttr::Unknown)
        {
            b.push_control(&text_of(model, token))
        } else {
            b.push(&vocab.token_to_piece(token, false, None))
        };
        if vocab.is_eog(token) {
            b.mark_eog(id);
        }
    }
    let (bos, eos) = (vocab.bos(), vocab.eos());
    if bos.0 >= 0 {
        b.set_bos(TokenId(bos.0), &text_of(model, bos));
        b.set_add_bos(vocab.should_add_bos());
    }
    if eos.0 >= 0 {
        b.set_eos(TokenId(eos.0), &text_of(model, eos));
    }
    b.build()
}

fn text_of(model: &LlamaModel, token: LlamaToken) -> String {
    model
        .vocab()
        .text(token)
        .map(|t| t.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// A context of its own over the loaded model; see the module's text.
pub struct LlamaBackend {
    context: LlamaContext<'static>,
    batch: LlamaBatch<'static>,
    /// Index in the batch of each row's last token.
    last_token: Vec<i32>,
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
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(config.cells()))
            .with_n_batch(runner.n_batch)
            .with_n_ubatch(runner.n_ubatch)
            .with_n_seq_max(sequences)
            .with_n_threads(threads)
            .with_n_threads_batch(threads_batch)
            .with_type_k(kv_type(kv.type_k))
            .with_type_v(kv_type(kv.type_v))
            .with_kv_unified(kv.layout.resolved() == KvLayout::Unified)
            .with_no_perf(true)
            .with_flash_attention_policy(match runner.flash_attention {
                // llama.cpp's own "enabled" moves the operation to the CPU where a device lacks it, and says
                // nothing; "auto" tells what it chose, which "on" then requires.
                FlashAttention::Auto | FlashAttention::On => {
                    llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO
                }
                FlashAttention::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
            });
        llama_log::take();
        let context = loaded.model.new_context(library()?, params).map_err(|e| {
            let why = llama_log::take()
                .last_error
                .unwrap_or_else(|| e.to_string());
            ModelError(format!("the model's context (kv.*, runner.*): {why}"))
        })?;
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
            kv_type_k: format!("{:?}", kv.type_k).to_lowercase(),
            kv_type_v: format!("{:?}", kv.type_v).to_lowercase(),
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
            context,
            batch,
            last_token: Vec::new(),
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
        // Positions are below 2^31, which is all that can fail here.
        let copied = if self.effective.kv_layout == "unified" {
            self.context
                .kv_cache_seq_cp(source, copy, None, Some(tokens))
        } else {
            // Between streams only the whole can be copied.
            self.context.kv_cache_seq_cp(source, copy, None, None)
        };
        debug_assert!(copied.is_ok());
        self.remove(to, tokens);
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

fn kv_type(t: KvType) -> KvCacheType {
    match t {
        KvType::F32 => KvCacheType::F32,
        KvType::F16 => KvCacheType::F16,
        KvType::Bf16 => KvCacheType::BF16,
        KvType::Q8_0 => KvCacheType::Q8_0,
        KvType::Q4_0 => KvCacheType::Q4_0,
    }
}
