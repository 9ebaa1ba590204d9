//! Models, turns and daemons for the tests of this crate.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cadenced::config::{AutoOr, Config, Flags, KvConfig, KvType, ModelConfig};
use cadenced::ids::TokenId;
use cadenced::model::PromptEncoder;
use cadenced::model::llama::{LlamaBackend, LoadedModel};
use serde_json::{Value, json};

use crate::common::{Daemon, Response};

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_0.gguf";
pub const GEMMA: &str = "gemma3-270m-q4_k_m.gguf";

/// A path of this repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The path of a model that `make test-models` has fetched.
pub fn model_file(name: &str) -> String {
    let path = repository("models").join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `make test-models`",
        path.display()
    );
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// What only one test at a time may do: compute.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed has left nothing behind that the next one could trip over.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A daemon that has its turn.
pub struct Served {
    // Dropped in this order: the daemon is gone before the next one starts.
    daemon: Daemon,
    _turn: MutexGuard<'static, ()>,
}

impl Served {
    /// Serves a model of `models/` once it is this test's turn.
    pub fn model(name: &str, settings: &[(&str, &str)]) -> Self {
        Self::serve(&["serve", "--model", &model_file(name)], settings)
    }

    /// The default model with a small pool.
    pub fn smollm2(settings: &[(&str, &str)]) -> Self {
        let mut all = vec![("kv.cells", "4096")];
        all.extend_from_slice(settings);
        Self::model(SMOLLM2, &all)
    }

    /// The fake, for what a real model can't be told to do.
    pub fn fake(settings: &[(&str, &str)]) -> Self {
        Self::serve(&["serve", "--backend", "fake"], settings)
    }

    pub fn serve(args: &[&str], settings: &[(&str, &str)]) -> Self {
        let turn = turn();
        Self {
            daemon: Daemon::start(args, settings).ready(),
            _turn: turn,
        }
    }

    /// The whole reply to a request that must succeed.
    #[track_caller]
    pub fn reply(&self, body: &Value) -> Response {
        let response = self.chat(body).response();
        assert_eq!(response.status, 200, "{body}: {response:?}");
        assert!(response.complete, "{body}: {response:?}");
        if response.is_stream() {
            assert!(response.is_done(), "{body}: {response:?}");
        }
        response
    }

    /// The text of [`Self::reply`].
    #[track_caller]
    pub fn text(&self, body: &Value) -> String {
        self.reply(body).text()
    }

    /// All the replies to requests sent at once, in their order.
    pub fn at_once(&self, bodies: &[Value]) -> Vec<Response> {
        let open: Vec<_> = bodies.iter().map(|body| self.chat(body)).collect();
        let replies: Vec<_> = open
            .into_iter()
            .map(|connection| connection.response())
            .collect();
        for (body, reply) in bodies.iter().zip(&replies) {
            assert_eq!(reply.status, 200, "{body}: {reply:?}");
            assert!(reply.complete, "{body}: {reply:?}");
        }
        replies
    }
}

impl Deref for Served {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

/// A greedy request of one user message with further fields.
pub fn ask_with(content: &str, max_tokens: u32, stream: bool, more: Value) -> Value {
    let mut body = crate::common::ask(content, max_tokens, stream);
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// A conversation of one user message.
pub fn user(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

/// A model in this process, loaded once.
pub struct InProcess {
    pub loaded: LoadedModel,
    config: Config,
}

impl InProcess {
    /// Loads a model of `models/`, with a chat template of this repository if one is named.
    pub fn load(name: &str, chat_template: &str) -> Self {
        let mut config = Config::load(None, [], &Flags::default()).expect("the defaults");
        let template = (!chat_template.is_empty()).then(|| repository(chat_template));
        config.model = ModelConfig {
            path: model_file(name).into(),
            chat_template: template.unwrap_or_default(),
            ..config.model
        };
        let loaded = LoadedModel::load(&config.model).expect("a model that loads");
        Self { loaded, config }
    }

    /// A context of its own, with keys and values of a type.
    pub fn backend(&self, cells: u32, sequences: u32, kv_type: KvType) -> LlamaBackend {
        let mut config = self.config.clone();
        config.kv = KvConfig {
            cells: AutoOr::Count(cells),
            type_k: kv_type,
            type_v: kv_type,
            ..config.kv
        };
        // Two ids for each seat.
        config.scheduler.max_running = sequences.div_ceil(2);
        LlamaBackend::new(&self.loaded, &config).expect("a context")
    }

    /// The prompt of a conversation.
    pub fn encode(&self, messages: &Value) -> Vec<TokenId> {
        self.loaded
            .encode_chat(messages, None)
            .expect("a conversation that the template takes")
    }

    /// How many tokens the prompt of one user message has.
    pub fn count(&self, content: &str) -> usize {
        self.encode(&user(content)).len()
    }
}

/// The default model.
pub fn smollm2() -> Arc<InProcess> {
    static MODEL: LazyLock<Arc<InProcess>> =
        LazyLock::new(|| Arc::new(InProcess::load(SMOLLM2, "")));
    Arc::clone(&MODEL)
}

/// The template that a Gemma needs and this file of one has not.
pub const GEMMA_TEMPLATE: &str = "src/model/chat_template/fixtures/gemma.jinja";

/// Gemma with its template.
pub fn gemma() -> Arc<InProcess> {
    static MODEL: LazyLock<Arc<InProcess>> =
        LazyLock::new(|| Arc::new(InProcess::load(GEMMA, GEMMA_TEMPLATE)));
    Arc::clone(&MODEL)
}
