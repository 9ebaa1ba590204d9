//! A calibration as a file: model, calibration points, the support they span, and where all of it comes from.
//!
//! A bound is valid for data like its calibration set's. Carried to another machine, model or thread count it
//! isn't conservative but arbitrary, so the file names what it was made on, and [`Artifact::check`] compares.
//!
//! Format: a magic string, the version as u16 little endian, the artifact in postcard, and the SHA-256 of all that: a
//! model with a flipped bit would still compute bounds, and they would be promised.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::boosting::{BoostParams, FitError};
use super::features::NAMES;
use super::online::Point;
use super::predictor::{Model, PredictorKind, Row};
use super::snapshot::Pace;
use super::support::Support;

const MAGIC: &[u8] = b"cadenced.conformal\0";

/// Counted up whenever the layout of [`Artifact`] changes.
const VERSION: u16 = 4;

/// Bytes of a SHA-256.
const DIGEST: usize = 32;

/// What a calibration holds for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Provenance {
    pub backend: String,
    pub model_sha256: String,
    pub quantisation: String,
    pub threads: u32,
    pub device: String,
    pub kv_cells: u32,
    /// SHA-256 of the traces it was made from; not compared, since nothing that runs has any.
    pub traces_sha256: Vec<String>,
}

/// Everything in the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Artifact {
    pub provenance: Provenance,
    /// [`NAMES`] as they were.
    pub features: Vec<String>,
    pub model: Model,
    pub points: Vec<Point>,
    pub support: Support,
    /// The pace of the idle engine.
    pub idle: Pace,
}

/// The artifact and the running engine differ.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("calibrated for another engine: {}", .0.join(", "))]
pub struct Mismatch(pub Vec<String>);

/// The bytes are not an artifact that can be used.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("not a calibration file")]
    NotAnArtifact,
    #[error("version {0} of the calibration file, only {VERSION} is known")]
    Version(u16),
    #[error("damaged calibration file: {0}")]
    Damaged(#[from] postcard::Error),
    #[error("damaged calibration file: its digest is another")]
    Digest,
    #[error("damaged calibration file: its model can't be evaluated")]
    Unsound,
    #[error("calibrated on other features: {}", .0.join(", "))]
    Features(Vec<String>),
}

impl Artifact {
    /// Fits a model on some rows and calibrates it on others: they must come from other runs.
    ///
    /// # Errors
    /// As [`Model::fit`].
    pub fn fit(
        kind: PredictorKind,
        params: &BoostParams,
        train: &[Row],
        calibrate: &[Row],
        idle: Pace,
        provenance: Provenance,
    ) -> Result<Self, FitError> {
        let model = Model::fit(kind, train, params, None)?;
        let exact = calibrate.iter().filter(|row| !row.latency.is_censored());
        Ok(Self {
            provenance,
            features: NAMES.map(String::from).to_vec(),
            points: calibrate.iter().map(|r| Point::of(&model, r)).collect(),
            support: exact.map(|row| &row.features).collect(),
            idle,
            model,
        })
    }

    /// The file's content.
    ///
    /// # Errors
    /// None that postcard is known to have for these types.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        let mut bytes = postcard::to_extend(self, bytes)?;
        bytes.extend(Sha256::digest(&bytes));
        Ok(bytes)
    }

    /// The artifact in `bytes`.
    ///
    /// # Errors
    /// When they are of another format, version or set of features, or not those that were written.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(DecodeError::NotAnArtifact)?;
        let (version, body) = rest.split_first_chunk().ok_or(DecodeError::NotAnArtifact)?;
        match u16::from_le_bytes(*version) {
            VERSION => {}
            other => return Err(DecodeError::Version(other)),
        }
        let (body, digest) = body
            .split_last_chunk::<DIGEST>()
            .ok_or(DecodeError::Digest)?;
        if Sha256::digest(&bytes[..bytes.len() - DIGEST]).as_slice() != digest {
            return Err(DecodeError::Digest);
        }
        let artifact: Self = postcard::from_bytes(body)?;
        if artifact.features != NAMES {
            return Err(DecodeError::Features(artifact.features));
        }
        let finite = artifact.points.iter().all(|p| {
            p.latency.ms().is_finite() && p.estimate.hi.is_finite() && p.estimate.lo.is_finite()
        });
        if !finite || !artifact.model.is_sound() {
            return Err(DecodeError::Unsound);
        }
        Ok(artifact)
    }

    /// Whether it was made for what is running.
    ///
    /// # Errors
    /// Names each difference, with both sides.
    pub fn check(&self, running: &Provenance) -> Result<(), Mismatch> {
        match self.provenance.differences(running) {
            none if none.is_empty() => Ok(()),
            differences => Err(Mismatch(differences)),
        }
    }
}

impl Provenance {
    /// What differs in what is `running`, traces apart: each with both sides.
    #[must_use]
    pub fn differences(&self, running: &Self) -> Vec<String> {
        let Self {
            backend,
            model_sha256,
            quantisation,
            threads,
            device,
            kv_cells,
            traces_sha256: _,
        } = self;
        let (threads, cells) = (threads.to_string(), kv_cells.to_string());
        [
            ("backend", backend, &running.backend),
            ("model", model_sha256, &running.model_sha256),
            ("quantisation", quantisation, &running.quantisation),
            ("threads", &threads, &running.threads.to_string()),
            ("device", device, &running.device),
            ("KV cells", &cells, &running.kv_cells.to_string()),
        ]
        .into_iter()
        .filter(|(_, calibrated, running)| calibrated != running)
        .map(|(name, calibrated, running)| format!("{name} {calibrated}, here {running}"))
        .collect()
    }
}

#[cfg(test)]
#[path = "artifact_tests.rs"]
mod tests;
