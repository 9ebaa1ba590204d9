//! The daemon in virtual time, set up as a trial has it.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cadenced::clock::Clock;
use cadenced::config::{AdmissionMode, Backend, Config};
use cadenced::ids::RequestId;
use cadenced::logic::capacity::Capacity;
use cadenced::logic::conformal::artifact::Artifact;
use cadenced::logic::request::{Lane, RequestSpec, Terms};
use cadenced::logic::time::Timestamp;
use cadenced::messages::WarmedUp;
use cadenced::model::ModelBackend;
use cadenced::model::fake::{self, FakeBackend};
use cadenced::model::vocab::Vocab;
use cadenced::promises::{self, Files};
use cadenced::system::{self, Engine, Shared, Threads};
use cadenced::telemetry::accounts::Accounts;
use cadenced::telemetry::metrics::Metrics;

use super::super::cost::PS_PER_US;
use super::super::engine::{Request, Trial};

/// The daemon, and what everybody knows there.
pub struct House {
    pub config: Config,
    pub shared: Shared,
    pub engine: Engine,
    pub capacity: Arc<Capacity>,
    pub vocab: Arc<Vocab>,
    pub requests: Vec<Request>,
    /// What the requests' times count from.
    opened: Timestamp,
    pub slo_us: Option<u64>,
    pub patience_us: Option<u64>,
}

impl House {
    pub async fn open(trial: &Trial, requests: &[Request]) -> Self {
        let mut config = config(trial);
        let shared = Shared {
            clock: Clock::start_virtual(),
            published: Arc::default(),
            accounts: Accounts::new(Metrics::new().expect("names of metrics are valid")),
        };
        let answer = |r: &Request| {
            let prompt = r.text.tokens(r.prompt_tokens, 0);
            (fake::prompt_hash(&prompt), r.answer_tokens - 1)
        };
        let lengths = requests.iter().map(answer).collect();
        let backend = FakeBackend::new(&config).with_lengths(lengths);
        let artifact = trial.artifact.as_deref();
        let files = artifact
            .filter(|_| trial.controller.is_some())
            .map(|a| calibration(&mut config, a, &backend, &shared.accounts.metrics))
            .transpose()
            .expect("a calibration can be written and read again")
            .unwrap_or_default();
        let make =
            move || Ok::<_, std::convert::Infallible>(Box::new(backend) as Box<dyn ModelBackend>);
        let started = system::start(&config, &shared, files, Threads::current(), make);
        let Ok(engine) = started.await;
        // Heard before any request; who has a calibration knows better.
        if let Some(controller) = &trial.controller {
            engine.warmed_up.do_send(WarmedUp(controller.idle()));
        }
        Self {
            capacity: Capacity::of_lanes(config.capacities()),
            vocab: Arc::new(fake::vocab()),
            requests: requests.to_vec(),
            opened: shared.clock.now(),
            slo_us: trial.slo_us,
            patience_us: trial.patience_us,
            config,
            shared,
            engine,
        }
    }

    /// Microseconds since the opening.
    pub fn now_us(&self) -> u64 {
        self.shared.clock.now().since(self.opened).as_micros() as u64
    }

    pub async fn sleep_until(&self, at_us: u64) {
        let left_us = at_us.saturating_sub(self.now_us());
        if left_us > 0 {
            self.shared
                .clock
                .sleep(Duration::from_micros(left_us))
                .await;
        }
    }

    pub fn spec(&self, index: usize, request: &Request) -> RequestSpec {
        let arrival = self.opened + Duration::from_micros(request.at_us);
        let context = self.config.kv_pool().sequence_tokens_max();
        let room = context - request.prompt_tokens;
        let cap = room.min(self.config.limits.max_output_tokens);
        let deadline = self
            .slo_us
            .map_or(Timestamp::NEVER, |us| arrival + Duration::from_micros(us));
        RequestSpec {
            id: RequestId(index as u64 + 1),
            arrival,
            deadline,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens.min(cap),
            preempted: false,
            terms: Terms {
                due: deadline,
                ..Terms::default()
            },
        }
    }

    /// Nothing is held but what is cached.
    pub fn is_at_rest(&self) -> bool {
        let kv = self.shared.published.kv();
        let held = |lane| self.capacity.held_by(lane).requests;
        Lane::ALL.into_iter().all(|lane| held(lane) == 0)
            && kv.blocks_free + kv.blocks_cached == kv.blocks_total
    }
}

/// The rung's configuration with the fake at the trial's costs.
fn config(trial: &Trial) -> Config {
    let (rung, cost) = (&trial.rung, trial.cost);
    let mut config = rung.config.clone();
    let is_as_configured = rung.policy == config.policy() && rung.capacity == config.capacity();
    assert!(is_as_configured, "the actors run what is configured");
    assert!(!trial.come_again, "nobody comes to the actors again");
    let us = |ps: u64| ps as f64 / PS_PER_US as f64;
    config.model.backend = Backend::Fake;
    config.fake.step_us = us(cost.step_ps);
    config.fake.prefill_token_us = us(cost.prefill_token_ps);
    config.fake.decode_seq_us = us(cost.decode_seq_ps);
    config.fake.cached_token_us = us(cost.cached_token_ps);
    match &trial.controller {
        None => config.admission.mode = AdmissionMode::Off,
        Some(controller) => {
            let configured = promises::deployed(&config, trial.artifact.as_deref());
            let is_as_configured = controller.settings() == configured.settings();
            assert!(is_as_configured, "the actors decide as configured");
        }
    }
    config
}

/// What a daemon would read that was given `artifact` as its calibration file, made for the engine that it runs.
fn calibration(
    config: &mut Config,
    artifact: &Artifact,
    backend: &FakeBackend,
    metrics: &Metrics,
) -> Result<Files> {
    let hash = promises::model_sha256(config).map_err(anyhow::Error::msg)?;
    let artifact = Artifact {
        provenance: promises::provenance(config, &backend.effective(), hash),
        ..artifact.clone()
    };
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&artifact.encode()?)?;
    config.admission.artifact = file.path().to_owned();
    promises::open(config, metrics).map_err(anyhow::Error::msg)
}
