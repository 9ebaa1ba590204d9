//! From a configuration to the controller that makes promises: with a calibration file or without, and armed
//! only if the file was made for the engine that runs.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::actors::admission::Promises;
use crate::config::{AdmissionConfig, AdmissionMode, Backend, Config};
use crate::hub;
use crate::logic::conformal::artifact::{Artifact, Mismatch, Provenance};
use crate::logic::conformal::calibration::Alpha;
use crate::logic::conformal::classes::Edges;
use crate::logic::conformal::controller::Controller;
use crate::logic::conformal::evaluation;
use crate::logic::conformal::online::{Adaptation, CalibratorConfig};
use crate::logic::conformal::policy::{Mode, Settings};
use crate::logic::conformal::snapshot::Pace;
use crate::model::EffectiveSettings;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// A calibration file, and the hash of the model that it is to be used with.
pub struct Calibration {
    artifact: Artifact,
    model_sha256: String,
}

/// The files that admission works with.
#[derive(Default)]
pub struct Files {
    pub calibration: Option<Calibration>,
    pub traces: Option<Traces>,
}

/// Opens what `config` names. Hashes the model if there is a calibration, which takes a while.
///
/// # Errors
/// When a file can't be used; the text names the key.
pub fn open(config: &Config, metrics: &Metrics) -> Result<Files, String> {
    let AdmissionConfig {
        traces,
        trace_bytes_max,
        ..
    } = &config.admission;
    let traces = (!traces.as_os_str().is_empty()).then(|| {
        Traces::start(traces, *trace_bytes_max, metrics.trace_rows_dropped.clone())
            .map_err(|e| format!("admission.traces: {}: {e}", traces.display()))
    });
    Ok(Files {
        calibration: load(config)?,
        traces: traces.transpose()?,
    })
}

/// The calibration that `config` names, and the hash of its model.
fn load(config: &Config) -> Result<Option<Calibration>, String> {
    let Some(artifact) = artifact(config)? else {
        return Ok(None);
    };
    let model_sha256 = model_sha256(config).map_err(|why| named(config, &why))?;
    Ok(Some(Calibration {
        artifact,
        model_sha256,
    }))
}

/// Reads the calibration that `config` names; `None` if it names none, or admission is off.
///
/// # Errors
/// When it can't be used; the text names the key.
pub fn artifact(config: &Config) -> Result<Option<Artifact>, String> {
    let path = &config.admission.artifact;
    if config.admission.mode == AdmissionMode::Off || path.as_os_str().is_empty() {
        return Ok(None);
    }
    read(path).map(Some).map_err(|why| named(config, &why))
}

fn read(path: &Path) -> Result<Artifact, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    Artifact::decode(&bytes).map_err(|e| e.to_string())
}

fn named(config: &Config, why: &str) -> String {
    format!(
        "admission.artifact: {}: {why}",
        config.admission.artifact.display()
    )
}

/// The hash of what computes: the model's file, or the fake's costs.
///
/// # Errors
/// When the file can't be read.
pub fn model_sha256(config: &Config) -> Result<String, String> {
    match config.model.backend {
        Backend::Llama => hub::sha256(&config.model.path).map_err(|e| e.to_string()),
        Backend::Fake => {
            let costs = toml::to_string(&config.fake).map_err(|e| e.to_string())?;
            Ok(hub::hex(&Sha256::digest(costs)))
        }
    }
}

/// What a calibration made here and now holds for.
#[must_use]
pub fn provenance(
    config: &Config,
    effective: &EffectiveSettings,
    model_sha256: String,
) -> Provenance {
    Provenance {
        backend: backend(config).into(),
        model_sha256,
        quantisation: format!("KV {}/{}", effective.kv_type_k, effective.kv_type_v),
        threads: effective.threads.unsigned_abs(),
        device: device(),
        kv_cells: effective.kv_cells,
        traces_sha256: Vec::new(),
    }
}

fn backend(config: &Config) -> &'static str {
    match config.model.backend {
        Backend::Llama => "llama",
        Backend::Fake => "fake",
    }
}

/// The processor's name and how many of it there are.
fn device() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or(std::env::consts::ARCH, |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    format!("{cores} × {name}")
}

/// The controller that the configuration asks for.
#[must_use]
pub fn controller(
    config: &Config,
    calibration: Option<&Calibration>,
    effective: &EffectiveSettings,
) -> Promises {
    let admission = &config.admission;
    let told = admission.mode != AdmissionMode::Off;
    let Some(Calibration {
        artifact,
        model_sha256,
    }) = calibration
    else {
        return Promises {
            controller: deployed(config, None),
            told,
            calibrated: false,
            mismatch: false,
        };
    };
    let running = provenance(config, effective, model_sha256.clone());
    let mismatch = artifact.check(&running).err();
    let mut controller = deployed(config, Some(artifact));
    if let Some(why) = &mismatch {
        warn(&admission.artifact, why, admission.trust_artifact);
        if !admission.trust_artifact {
            controller.observe_only();
        }
    }
    Promises {
        controller,
        told,
        calibrated: true,
        mismatch: mismatch.is_some(),
    }
}

/// What the calibration that `config` names is good for, a line each; nothing if it names none. What only a
/// running engine knows is not compared.
#[must_use]
pub fn describe(config: &Config) -> Vec<String> {
    let path = &config.admission.artifact;
    if path.as_os_str().is_empty() {
        return Vec::new();
    }
    let here = |artifact: &Artifact| {
        let made_for = &artifact.provenance;
        Ok::<_, String>(Provenance {
            backend: backend(config).into(),
            model_sha256: model_sha256(config)?,
            threads: config.runner.threads.or(made_for.threads),
            device: device(),
            kv_cells: config.kv.cells.or(made_for.kv_cells),
            ..made_for.clone()
        })
    };
    let lines = read(path).and_then(|artifact| {
        let levels = evaluation::supported(&evaluation::calibrator(&artifact, Edges::default()));
        let levels = levels.last().map_or("no promise".into(), |alpha| {
            format!("promises up to a confidence of {}", 1.0 - alpha.get())
        });
        let differences = artifact.provenance.differences(&here(&artifact)?);
        Ok(vec![
            format!("{} scores support {levels}", artifact.points.len()),
            if differences.is_empty() {
                "made for this engine, as far as can be told before it runs".into()
            } else {
                Mismatch(differences).to_string()
            },
        ])
    });
    lines.unwrap_or_else(|why| vec![format!("{}: {why}", path.display())])
}

/// The same without looking at what `artifact` was made for; without one, a controller that learns from what it
/// admits, and hears of the idle engine's pace when the warm-up has measured it.
#[must_use]
pub fn deployed(config: &Config, artifact: Option<&Artifact>) -> Controller {
    let settings = settings(config);
    let calibrator = calibrator(config.admission.mode);
    let unknown = Pace {
        step_ms: 0.0,
        tokens_per_s: 0.0,
    };
    match artifact {
        Some(artifact) => Controller::calibrated(settings, calibrator, artifact),
        None => Controller::learning(settings, calibrator, unknown),
    }
}

fn warn(path: &Path, why: &dyn std::fmt::Display, trusted: bool) {
    let path = path.display();
    if trusted {
        tracing::warn!("admission.artifact: {path}: {why}; used all the same, as it is trusted");
    } else {
        tracing::error!("admission.artifact: {path}: {why}; NOTHING IS PROMISED OR REFUSED");
    }
}

fn settings(config: &Config) -> Settings {
    let AdmissionConfig {
        mode,
        confidence,
        explore_every,
        learn_completions,
        unfit,
        ..
    } = config.admission;
    let alpha = Alpha::of_confidence(confidence);
    Settings {
        mode: match mode {
            AdmissionMode::Off | AdmissionMode::Observe => Mode::Observe,
            AdmissionMode::Static | AdmissionMode::Conformal => Mode::Enforce,
        },
        explore_every,
        unfit,
        lane_slowdown: config.scheduler.lane_slowdown,
        retry_cap_s: config.limits.retry_after_s_max as u32,
        training_rows: match mode {
            AdmissionMode::Off => 0,
            _ => learn_completions,
        },
        learning_load: 2 * config.scheduler.max_running,
        ..Settings::at(alpha)
    }
}

fn calibrator(mode: AdmissionMode) -> CalibratorConfig {
    let deployed = CalibratorConfig::default();
    CalibratorConfig {
        adaptation: match mode {
            AdmissionMode::Static => Adaptation::Static,
            _ => deployed.adaptation,
        },
        ..deployed
    }
}
