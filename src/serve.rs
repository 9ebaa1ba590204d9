//! `cadenced serve`: from a configuration to an exit code.
//!
//! Listen → load → start the engine → warm up → ready → (signal or failure) → drain → exit. The socket comes
//! first, so that a busy port is found before a model is loaded and `/health` answers while it loads.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Data;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::clock::Clock;
use crate::config::{Auto, AutoOr, Backend, Config};
use crate::error::ServeError;
use crate::http::server;
use crate::http::state::{AppState, Served};
use crate::lifecycle::Phase;
use crate::logic::kv::sizing::Plan;
use crate::logic::request::Outcome;
use crate::model::fake::{self, FakeBackend, FakeEncoder};
use crate::model::llama::{LlamaBackend, LoadedModel, ModelError};
use crate::model::{ModelBackend, ModelFront};
use crate::system::{self, Shared, Threads};
use crate::telemetry::accounts::Accounts;
use crate::telemetry::logging;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::published::Published;
use crate::{listen, promises, warm_up, watchdog};

/// How the process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Drained, as it was told to.
    Clean,
    /// It can't serve: port or model.
    Unavailable,
    /// Something inside failed.
    Internal,
    /// A second signal: ended at once.
    Interrupted,
}

impl Exit {
    /// The process's exit code; the first ones are sysexits.h's.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Clean => 0,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::Interrupted => 130,
        }
    }
}

/// Serves until told to stop. The caller exits with the result; threads may still run.
pub fn run(config: Config) -> Exit {
    // The watchdog tells of a dead actor; the panic itself is told here, in one line.
    std::panic::set_hook(Box::new(|info| tracing::error!("panic: {info}")));
    let listener = match listen::listener(config.server.listen) {
        Ok(listener) => listener,
        Err(e) => return unavailable(&format!("server.listen: {e}")),
    };
    let admin = match config.server.admin_listen.map(listen::bind).transpose() {
        Ok(admin) => admin,
        Err(e) => return unavailable(&format!("server.admin_listen: {e}")),
    };
    let system = actix_rt::System::new();
    let exit = system.block_on(serve(config, listener, admin));
    // Dropped, it would wait for a model that is still being loaded.
    std::mem::forget(system);
    exit
}

fn address(listener: &TcpListener) -> String {
    listener
        .local_addr()
        .map_or_else(|e| e.to_string(), |a| a.to_string())
}

fn unavailable(why: &str) -> Exit {
    tracing::error!("{why}");
    Exit::Unavailable
}

async fn serve(config: Config, listener: TcpListener, admin: Option<TcpListener>) -> Exit {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signal handlers can't be installed");
        return Exit::Internal;
    };
    let address = self::address(&listener);
    let state = match state(config) {
        Ok(state) => state,
        Err(e) => {
            tracing::error!("metrics: {e}");
            return Exit::Internal;
        }
    };
    let server = match server::server(state.clone(), listener) {
        Ok(server) => server,
        Err(e) => return unavailable(&format!("server.listen: {address}: {e}")),
    };
    let mut http = vec![server.handle()];
    actix_rt::spawn(server);
    if let Some(listener) = admin {
        let address = self::address(&listener);
        let admin = match server::admin(state.clone(), listener) {
            Ok(admin) => admin,
            Err(e) => return unavailable(&format!("server.admin_listen: {address}: {e}")),
        };
        http.push(admin.handle());
        actix_rt::spawn(admin);
        tracing::info!("the operator's door is at http://{address}");
    }
    tracing::info!("listening on http://{address}");

    let exit = tokio::select! {
        exit = serve_until_failure(&state) => exit,
        exit = serve_until_told(&state, &mut terminate, &mut interrupt) => exit,
    };
    // What is left has been told its end; this closes the sockets. A second signal waits for nobody.
    let graceful = exit != Exit::Interrupted;
    let stopped = futures_util::future::join_all(http.iter().map(|http| http.stop(graceful)));
    let _ = tokio::time::timeout(SOCKETS_CLOSE, stopped).await;
    if let Some(served) = state.served.get() {
        served.engine.stop();
    }
    exit
}

fn state(config: Config) -> Result<Data<AppState>, prometheus::Error> {
    let shared = Shared {
        clock: Clock::start(),
        published: Arc::new(Published::default()),
        accounts: Accounts::new(Metrics::new()?),
    };
    Ok(Data::new(AppState::new(config, shared)))
}

/// Starts the engine and watches over it. Returns when it can't be started or something in it died.
async fn serve_until_failure(state: &Data<AppState>) -> Exit {
    let served = match start(state).await {
        Ok(served) => Arc::new(served),
        Err(ModelError(why)) => return unavailable(&why),
    };
    let _ = state.served.set(Arc::clone(&served));
    let watch = watchdog::until_dead(state, &served.engine);
    let warm = async {
        let limit = Duration::from_secs(state.config.lifecycle.step_age_limit_s);
        match warm_up::generate(&served, &state.shared, limit).await {
            Ok(()) => {
                state.lifecycle.enter(Phase::Ready);
                notify(sd_notify::NotifyState::Ready);
                tracing::info!(model = served.name, rung = state.config.rung(), "ready");
                std::future::pending().await
            }
            Err(why) => why,
        }
    };
    let why = tokio::select! { why = watch => why, why = warm => why };
    tracing::error!("{why}; ending every request and the process");
    end_all(state, ServeError::Engine { message: why }, Outcome::Failed).await;
    Exit::Internal
}

async fn start(state: &Data<AppState>) -> Result<Served, ModelError> {
    let config = state.config.clone();
    let (front, config, kv_plan, make): (_, _, _, Box<dyn FnOnce() -> Made + Send>) =
        match config.model.backend {
            Backend::Fake => {
                let available = crate::model::memory::available().unwrap_or(0);
                let (config, plan) = config
                    .sized(fake::BYTES_PER_TOKEN, fake::CONTEXT, available)
                    .map_err(|e| ModelError(e.to_string()))?;
                plan.iter().for_each(logging::planned);
                let encoder = FakeEncoder {
                    fault_marker: config.fake.fault_marker.clone(),
                };
                let front = ModelFront {
                    encoder: Arc::new(encoder),
                    vocab: Arc::new(fake::vocab()),
                    transcripts: None,
                    context: config.kv_pool().sequence_tokens_max(),
                };
                let backend = FakeBackend::new(&config);
                (
                    front,
                    config,
                    plan,
                    Box::new(move || Ok(Box::new(backend) as _)),
                )
            }
            Backend::Llama => {
                let loaded = tokio::task::spawn_blocking(move || load(config))
                    .await
                    .map_err(|e| ModelError(format!("loading the model: {e}")))??;
                let (loaded, config, plan) = loaded;
                let front = ModelFront {
                    encoder: Arc::new(loaded.clone()),
                    vocab: Arc::clone(&loaded.vocab),
                    transcripts: None,
                    context: loaded
                        .n_ctx_train
                        .min(config.kv_pool().sequence_tokens_max()),
                };
                let own = config.clone();
                let make = move || LlamaBackend::new(&loaded, &own).map(|b| Box::new(b) as _);
                (front, config, plan, Box::new(make))
            }
        };
    let (own, accounts) = (config.clone(), Arc::clone(&state.shared.accounts));
    let files = tokio::task::spawn_blocking(move || promises::open(&own, &accounts.metrics))
        .await
        .map_err(|e| ModelError(format!("admission: {e}")))?
        .map_err(ModelError)?;
    let engine = system::start(&config, &state.shared, files, Threads::own(), make).await?;
    let transcripts = engine.effective.prefix_reuse.then(Arc::default);
    let front = ModelFront {
        transcripts,
        ..front
    };
    let created = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    logging::engine_started(front.context, &engine.effective);
    Ok(Served {
        engine,
        front,
        name: config.model_name(),
        created,
        kv_plan,
    })
}

/// Loads the model and sizes its pool.
fn load(config: Config) -> Result<(LoadedModel, Config, Option<Plan>), ModelError> {
    let loaded = LoadedModel::load(&config.model)?;
    if config.kv.cells != AutoOr::Auto(Auto::Auto) {
        return Ok((loaded, config, None));
    }
    tracing::info!("planning the KV pool's memory");
    let bytes_per_token = loaded.kv_bytes_per_token(&config)?;
    let available = LoadedModel::memory_available(&config.model);
    let (config, plan) = config
        .sized(bytes_per_token, loaded.n_ctx_train, available)
        .map_err(|e| ModelError(e.to_string()))?;
    // Before the pool is made: clearing gigabytes takes a while, and this says of how many.
    plan.iter().for_each(logging::planned);
    Ok((loaded, config, plan))
}

type Made = Result<Box<dyn ModelBackend>, ModelError>;

/// Returns after the drain that a signal starts, or at once at the second signal.
async fn serve_until_told(
    state: &Data<AppState>,
    terminate: &mut Signal,
    interrupt: &mut Signal,
) -> Exit {
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    tracing::info!(in_flight = state.lifecycle.in_flight(), "draining");
    tokio::select! {
        ended = drain(state) => {
            tracing::info!(ended, "drained");
            return Exit::Clean;
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let ended = state.lifecycle.in_flight();
    tracing::warn!(ended, "a second signal: ending at once");
    Exit::Interrupted
}

/// Returns how many requests had to be ended.
async fn drain(state: &Data<AppState>) -> usize {
    let config = &state.config.lifecycle;
    let grace = Duration::from_millis(config.drain_grace_ms);
    // Without a grace there is no moment at which a server that is not ready accepts.
    state.lifecycle.enter(if grace.is_zero() {
        Phase::Draining
    } else {
        Phase::Leaving
    });
    notify(sd_notify::NotifyState::Stopping);
    tokio::time::sleep(grace).await;
    state.lifecycle.enter(Phase::Draining);
    let limit = Duration::from_secs(config.drain_limit_s);
    let finished = tokio::time::timeout(limit, nothing_in_flight(state)).await;
    if finished.is_ok() {
        return 0;
    }
    let in_flight = state.lifecycle.in_flight();
    tracing::warn!(
        in_flight,
        "the drain limit has passed; ending what still runs"
    );
    let error = ServeError::Draining { retry_after: 1 };
    end_all(state, error, Outcome::Drained).await;
    in_flight
}

/// How long replies that were ended may take to say so, and after that the sockets to close. Together they are what a
/// drain may take beyond its limit, which a supervisor counts on.
const ENDS_TOLD: Duration = Duration::from_millis(500);
const SOCKETS_CLOSE: Duration = Duration::from_millis(500);

/// Tells every open reply that it ends, and gives the sockets a moment to say so.
async fn end_all(state: &Data<AppState>, error: ServeError, outcome: Outcome) {
    state.lifecycle.enter(Phase::Draining);
    state.shared.accounts.cut(outcome);
    state.lifecycle.cut(error);
    let _ = tokio::time::timeout(ENDS_TOLD, nothing_in_flight(state)).await;
}

async fn nothing_in_flight(state: &Data<AppState>) {
    while state.lifecycle.in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(e) = crate::notify::notify(state) {
        tracing::warn!("systemd could not be notified: {e}");
    }
}
