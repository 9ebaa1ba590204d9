//! The llama.cpp backend; the only module of the daemon that names `llama_cpp_2`.
//!
//! The model is loaded once and lives as long as the process ([`LoadedModel`]); HTTP threads tokenize with it
//! while the runner computes. The context borrows it and belongs to the thread that made it
//! ([`LlamaBackend`]).

mod backend;

pub use backend::LlamaBackend;

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use llama_cpp_2::LlamaCppError;
use llama_cpp_2::llama_backend::LlamaBackend as Library;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use super::chat_template::{ChatTemplate, TemplateError};
use super::llama_log;
use super::vocab::{Vocab, VocabBuilder};
use super::{ModelBackend, PromptEncoder};
use crate::config::{AutoOr, Config, KvLayout, ModelConfig};
use crate::error::ServeError;
use crate::ids::TokenId;

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
        let given = Self::check_files(config)?;
        let path = &config.path;
        let library = library()?;
        llama_log::take();
        let params = LlamaModelParams::default().with_n_gpu_layers(config.gpu_layers);
        let model = LlamaModel::load_from_file(library, path, &params).map_err(|e| {
            let why = llama_log::take().last_error;
            unusable(path, &why.unwrap_or_else(|| e.to_string()))
        })?;
        // The process has one model, to its end: a leaked reference says so, where a self-referential
        // struct would need unsafe code to pretend otherwise.
        let model: &'static LlamaModel = Box::leak(Box::new(model));
        let vocab = Arc::new(read_vocab(model));
        let source = given.or_else(|| {
            let own = model.chat_template(None).ok()?;
            own.to_string().ok()
        });
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

    /// Whether the files that `config` names can be read and the model is a GGUF file, as far as its first bytes
    /// tell; gives the chat template that replaces the model's own.
    ///
    /// # Errors
    /// Names the key, the file and the reason.
    pub fn check_files(config: &ModelConfig) -> Result<Option<String>, ModelError> {
        let path = &config.path;
        // llama.cpp says only "failed to open", so the operating system's reason is found here.
        let mut magic = [0u8; 4];
        std::fs::File::open(path)
            .and_then(|mut f| f.read_exact(&mut magic))
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => unusable(path, "too short for a GGUF file"),
                _ => unusable(path, &e.to_string()),
            })?;
        if &magic != b"GGUF" {
            return Err(unusable(path, "not a GGUF file"));
        }
        let template = &config.chat_template;
        if template.as_os_str().is_empty() {
            return Ok(None);
        }
        let source = std::fs::read_to_string(template).map_err(|e| {
            let path = absolute(template);
            ModelError(format!("model.chat_template: {path}: {e}"))
        })?;
        Ok(Some(source))
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
        // Its warnings all come again with the pool itself.
        let quiet = tracing::subscriber::NoSubscriber::default();
        let backend = tracing::subscriber::with_default(quiet, || LlamaBackend::new(self, &small))?;
        Ok(backend.effective().kv_bytes.div_ceil(u64::from(CELLS)))
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

fn unusable(model: &Path, why: &str) -> ModelError {
    ModelError(format!("model.path: {}: {why}", absolute(model)))
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
