//! The settings in force, as the daemon's `/stats` tells them, and the refusal to measure anything else.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// The part of `/stats`' `effective` that a bare loop must copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effective {
    pub threads: i32,
    pub threads_batch: i32,
    /// How the compute threads wait for one another.
    pub wait_policy: String,
    pub n_batch: u32,
    pub n_ubatch: u32,
    pub kv_cells: u32,
    pub kv_type_k: String,
    pub kv_type_v: String,
    pub flash_attention: bool,
    #[serde(default = "unified")]
    pub kv_layout: String,
    #[serde(default)]
    pub model_bytes: u64,
    #[serde(default)]
    pub kv_bytes: u64,
    #[serde(default)]
    pub compute_bytes: u64,
}

/// Of the results that were taken before there was another.
fn unified() -> String {
    "unified".into()
}

/// What was asked for is not in force.
#[derive(Debug)]
pub struct Mismatch(pub String);

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "refusing to measure: {}", self.0)
    }
}

impl std::error::Error for Mismatch {}

/// Compares the settings given as `section.key=value` with what is in force; keys that `/stats` doesn't show
/// can't be compared and pass.
pub fn check_asked(asked: &[(String, String)], effective: &Effective) -> Result<()> {
    for (key, value) in asked {
        let actual = match key.as_str() {
            "runner.threads" => effective.threads.to_string(),
            "runner.threads_batch" => effective.threads_batch.to_string(),
            "runner.n_batch" => effective.n_batch.to_string(),
            "runner.n_ubatch" => effective.n_ubatch.to_string(),
            "kv.cells" => effective.kv_cells.to_string(),
            "kv.layout" => effective.kv_layout.clone(),
            "kv.type_k" => effective.kv_type_k.clone(),
            "kv.type_v" => effective.kv_type_v.clone(),
            "runner.flash_attention" => if effective.flash_attention {
                "on"
            } else {
                "off"
            }
            .to_owned(),
            _ => continue,
        };
        let asked = value.replace('_', "");
        if asked != "auto" && asked != actual.replace('_', "") {
            bail!(Mismatch(format!(
                "{key}: asked for {value}, in force is {actual}"
            )));
        }
    }
    Ok(())
}

/// Compares the bare loop's settings with the daemon's.
pub fn check_same(daemon: &Effective, bare: &Effective) -> Result<()> {
    let facts = |e: &Effective| {
        format!(
            "{} + {} threads (wait: {}), batch {}/{}, {} cells of {}/{} ({}), flash attention {}",
            e.threads,
            e.threads_batch,
            e.wait_policy,
            e.n_batch,
            e.n_ubatch,
            e.kv_cells,
            e.kv_type_k,
            e.kv_type_v,
            e.kv_layout,
            e.flash_attention
        )
    };
    if facts(daemon) != facts(bare) {
        bail!(Mismatch(format!(
            "the daemon has {}, the bare loop has {}",
            facts(daemon),
            facts(bare)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effective() -> Effective {
        Effective {
            threads: 2,
            threads_batch: 2,
            wait_policy: "spins 1000 times".into(),
            n_batch: 512,
            n_ubatch: 512,
            kv_cells: 1024,
            kv_type_k: "q8_0".into(),
            kv_type_v: "f16".into(),
            flash_attention: true,
            kv_layout: "unified".into(),
            model_bytes: 0,
            kv_bytes: 0,
            compute_bytes: 0,
        }
    }

    #[test]
    fn what_differs_from_what_was_asked_is_refused() {
        let ask = |k: &str, v: &str| check_asked(&[(k.into(), v.into())], &effective());
        assert!(ask("runner.threads", "2").is_ok());
        assert!(ask("kv.type_k", "q8_0").is_ok());
        assert!(ask("server.workers", "3").is_ok());
        assert!(ask("kv.type_v", "q8_0").unwrap_err().is::<Mismatch>());
        let other = Effective {
            flash_attention: false,
            ..effective()
        };
        assert!(check_same(&effective(), &effective()).is_ok());
        assert!(
            check_same(&effective(), &other)
                .unwrap_err()
                .is::<Mismatch>()
        );
    }
}
