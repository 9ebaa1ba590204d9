use super::super::features::COUNT;
use super::super::testing::{IDLE, rows};
use super::*;
use crate::logic::rng::SplitMix64;

fn provenance() -> Provenance {
    Provenance {
        backend: "llama.cpp".into(),
        model_sha256: "ab".repeat(32),
        quantisation: "Q4_0".into(),
        threads: 2,
        device: "cpu".into(),
        kv_cells: 8192,
        traces_sha256: vec!["cd".repeat(32)],
    }
}

fn artifact(n: usize) -> Artifact {
    let mut rng = SplitMix64::new(9);
    let (train, calibrate) = (rows(&mut rng, n), rows(&mut rng, n));
    let params = BoostParams::default();
    Artifact::fit(
        PredictorKind::Trees,
        &params,
        &train,
        &calibrate,
        IDLE,
        provenance(),
    )
    .unwrap()
}

#[test]
fn comes_back_from_its_bytes() {
    let a = artifact(3000);
    let bytes = a.encode().unwrap();
    assert!(bytes.len() < 400_000, "{}", bytes.len());
    assert_eq!(Artifact::decode(&bytes).unwrap(), a);
}

#[test]
fn other_bytes_are_refused_and_never_panic() {
    let a = artifact(200);
    let bytes = a.encode().unwrap();
    assert!(matches!(
        Artifact::decode(b"GGUF"),
        Err(DecodeError::NotAnArtifact)
    ));
    for end in (0..bytes.len()).step_by(7) {
        assert!(Artifact::decode(&bytes[..end]).is_err());
    }
    let mut newer = bytes.clone();
    newer[MAGIC.len()] = 5;
    assert!(matches!(
        Artifact::decode(&newer),
        Err(DecodeError::Version(5))
    ));
    let mut other = a.clone();
    other.features[3] = "arrival_rate".into();
    let other = Artifact::decode(&other.encode().unwrap());
    assert!(matches!(other, Err(DecodeError::Features(names)) if names[3] == "arrival_rate"));
    // No bit may be another, and nothing may follow.
    let mut rng = SplitMix64::new(1);
    for _ in 0..2000 {
        let mut damaged = bytes.clone();
        damaged[rng.below(bytes.len())] ^= 1 << rng.below(8);
        assert!(Artifact::decode(&damaged).is_err());
    }
    let longer = [bytes.as_slice(), &[0; 40]].concat();
    assert!(matches!(
        Artifact::decode(&longer),
        Err(DecodeError::Digest)
    ));
}

/// A digest says that the bytes are those that were written, not that what was written makes sense.
#[test]
fn a_model_that_cannot_be_evaluated_is_refused() {
    let bytes = artifact(200).encode().unwrap();
    let x = super::super::features::Features([f32::MAX; COUNT]);
    let mut rng = SplitMix64::new(1);
    let mut refused = 0;
    for _ in 0..2000 {
        let mut written = bytes[..bytes.len() - DIGEST].to_vec();
        let at = MAGIC.len() + 2 + rng.below(written.len() - MAGIC.len() - 2);
        written[at] ^= 1 << rng.below(8);
        let digest = Sha256::digest(&written);
        written.extend(digest);
        match Artifact::decode(&written) {
            Ok(a) => assert!(!a.model.estimate(&x).hi.is_nan()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn a_mismatch_names_what_differs() {
    let a = artifact(100);
    let elsewhere = Provenance {
        traces_sha256: vec![],
        ..provenance()
    };
    assert_eq!(a.check(&elsewhere), Ok(()));
    let elsewhere = Provenance {
        backend: "fake".into(),
        threads: 8,
        ..elsewhere
    };
    assert_eq!(
        a.check(&elsewhere).unwrap_err().to_string(),
        "calibrated for another engine: backend llama.cpp, here fake, threads 2, here 8",
    );
}
