//! A daemon with a calibration: made here, for the fake that it runs, with a model of latency that a test can
//! reason about.

use std::io::Write as _;

use cadenced::config::{Backend, Config, Flags};
use cadenced::logic::conformal::artifact::{Artifact, Provenance};
use cadenced::logic::conformal::baselines::Throughput;
use cadenced::logic::conformal::features::{COUNT, Features, NAMES};
use cadenced::logic::conformal::online::Point;
use cadenced::logic::conformal::predictor::{Estimate, Latency, Model, Predictor};
use cadenced::logic::conformal::snapshot::Pace;
use cadenced::logic::conformal::support::Support;
use cadenced::model::fake::FakeBackend;
use cadenced::model::{EffectiveSettings, ModelBackend as _};
use cadenced::promises;
use tempfile::NamedTempFile;

use super::{Daemon, Dice, command};

/// Every step of the fake, in ms.
pub const STEP_MS: u32 = 2;

/// What a calibration says of latency.
#[derive(Clone, Copy)]
pub struct Said {
    /// The bound at the median, over the time that the request's own steps take.
    pub own: f64,
    /// The same for the time that the work of the others takes.
    pub others: f64,
    /// How far the calibration's latencies spread beyond that, as the logarithm of a ratio.
    pub spread: f64,
}

/// Twenty times what it really takes, so that promises are kept on a busy machine, and the others' work on top.
pub const CAREFUL: Said = Said {
    own: 20.0,
    others: 20.0,
    spread: 0.0,
};

/// The settings of a fake whose steps all cost the same and whose replies end only at `max_tokens`, and the
/// calibration file for them.
pub struct Calibrated {
    settings: Vec<(String, String)>,
    pub file: NamedTempFile,
}

impl Calibrated {
    /// A calibration that says `said`, and a daemon's settings to use it with: `more` beats what they are
    /// otherwise. It is made for the daemon as these settings have it.
    pub fn new(said: Said, more: &[(&str, &str)]) -> Self {
        let step_us = (STEP_MS * 1000).to_string();
        let mut settings = vec![
            ("server.workers", "1"),
            ("fake.step_us", step_us.as_str()),
            ("fake.prefill_token_us", "0"),
            ("fake.decode_seq_us", "0"),
            ("fake.cached_token_us", "0"),
            ("fake.length_min", "1000000"),
            ("fake.length_max", "1000000"),
            ("admission.mode", "conformal"),
            ("admission.explore_every", "0"),
        ];
        settings.extend_from_slice(more);
        let mut file = NamedTempFile::new().unwrap();
        let provenance = provenance(&settings);
        file.write_all(&artifact(said, provenance).encode().unwrap())
            .unwrap();
        let path = file.path().to_string_lossy().into_owned();
        let mut settings: Vec<(String, String)> = settings
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        settings.push(("admission.artifact".into(), path));
        Self { settings, file }
    }

    /// Changes a setting after the calibration was made.
    pub fn but(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.into(), value.into()));
        self
    }

    pub fn start(&self) -> Daemon {
        Daemon::fake(&self.pairs())
    }

    /// The daemon's command, for one that does not start.
    pub fn command(&self) -> std::process::Command {
        command(
            &["serve", "--backend", "fake", "--listen", "127.0.0.1:0"],
            &self.pairs(),
        )
    }

    fn pairs(&self) -> Vec<(&str, &str)> {
        self.settings
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect()
    }
}

fn provenance(settings: &[(&str, &str)]) -> Provenance {
    let env = settings.iter().map(|(k, v)| {
        let name = format!("CADENCED__{}", k.replace('.', "__").to_uppercase());
        (name, (*v).to_owned())
    });
    let flags = Flags {
        backend: Some(Backend::Fake),
        ..Flags::default()
    };
    // A mode that asks for no file: what it is made for does not depend on the mode.
    let env = env.chain([("CADENCED__ADMISSION__MODE".to_owned(), "off".to_owned())]);
    let config = Config::load(None, env, &flags).unwrap();
    let effective: EffectiveSettings = FakeBackend::new(&config).effective();
    let model = promises::model_sha256(&config).unwrap();
    promises::provenance(&config, &effective, model)
}

fn artifact(said: Said, provenance: Provenance) -> Artifact {
    let mut dice = Dice(7);
    let mut unit = || dice.below(1 << 20) as f64 / f64::from(1 << 20);
    // Everything that a test comes to was seen.
    let seen: Support = (0..2000)
        .map(|_| Features([(); COUNT].map(|()| (unit() * 30_000.0 - 3_000.0) as f32)))
        .collect::<Vec<_>>()
        .iter()
        .collect();
    let point = |i: u32| Point {
        max_tokens: 100,
        load: 0,
        estimate: Estimate { hi: 1e6, lo: 0.0 },
        latency: Latency::Exact(1e6 * (said.spread * (f64::from(i) / 300.0 - 0.5)).exp()),
    };
    Artifact {
        provenance,
        features: NAMES.map(String::from).to_vec(),
        model: Model {
            hi: Predictor::Throughput(Throughput {
                weights: [said.own, said.others, 0.0],
            }),
            lo: None,
        },
        points: (0..300).map(point).collect(),
        support: seen,
        idle: Pace {
            step_ms: STEP_MS.into(),
            tokens_per_s: 1000.0 / f64::from(STEP_MS),
        },
    }
}
