//! The order of a sweep's cells, and whose a folder is.

use super::*;

pub fn plan(rungs: usize, rates: &[f64], seeds: u64) -> Plan {
    let step = |i: usize| Step {
        rung: format!("r{i}"),
        file: format!("r{i}.toml").into(),
        config: String::new(),
        settings: Vec::new(),
    };
    Plan {
        engine_fingerprint: Some("f".into()),
        model_sha256: None,
        machine: Value::Null,
        rungs: (0..rungs).map(step).collect(),
        settings: Vec::new(),
        offer: Offer {
            rates_per_s: rates.to_vec(),
            seeds,
            arrivals: 10,
            mix: Mix::Short,
            slo_ms: Some(1000),
            timeout_s: 9.0,
            percentile: 90.0,
        },
    }
}

#[test]
fn rates_come_one_after_the_other_and_the_first_rung_rotates() {
    let plan = plan(3, &[0.5, 2.0], 2);
    let cells = plan.cells();
    let names: Vec<String> = cells.iter().map(CellId::name).collect();
    assert_eq!(
        names,
        [
            "r0-0.5-0", "r1-0.5-0", "r2-0.5-0", "r1-0.5-1", "r2-0.5-1", "r0-0.5-1", "r2-2-0",
            "r0-2-0", "r1-2-0", "r0-2-1", "r1-2-1", "r2-2-1"
        ]
    );
}

#[test]
fn of_many_rungs_in_few_rounds_each_is_early_once_and_late_once() {
    let plan = plan(9, &[1.0], 3);
    let cells = plan.cells();
    let third = |rung: &str, round: usize| {
        let its = &cells[9 * round..9 * (round + 1)];
        its.iter().position(|c| c.step.rung == rung).unwrap() / 3
    };
    for step in &plan.rungs {
        let mut thirds = [0, 1, 2].map(|round| third(&step.rung, round));
        thirds.sort_unstable();
        assert_eq!(thirds, [0, 1, 2], "{}", step.rung);
    }
}

#[test]
fn plans_of_before_there_were_variants_are_still_theirs() {
    let old = serde_json::json!({
        "engine_fingerprint": "f", "model_sha256": null, "machine": null,
        "rungs": [{ "rung": "r0", "file": "r0.toml", "config": "" }],
        "settings": [], "rates_per_s": [2.0], "seeds": 1, "arrivals": 10, "mix": "short",
        "slo_ms": 1000, "timeout_s": 9.0, "percentile": 90.0,
    });
    let plan = plan(1, &[2.0], 1);
    assert_eq!(serde_json::to_value(&plan).unwrap(), old);
    assert_eq!(serde_json::from_value::<Plan>(old).unwrap(), plan);
}

#[test]
fn a_folder_holds_one_sweep_and_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("ladder");
    let first = plan(3, &[1.0], 2);
    first.settle(&folder).unwrap();
    first.settle(&folder).unwrap();
    let mut other = first.clone();
    (other.offer.seeds, other.offer.slo_ms) = (3, Some(900));
    let error = format!("{:#}", other.settle(&folder).unwrap_err());
    assert!(error.contains("other seeds, slo_ms"), "{error}");
    // Whose cells these are nobody knows; they were taken for this sweep's.
    let cell = folder.join("r0-1-0.parquet");
    std::fs::write(&cell, "").unwrap();
    first.settle(&folder).unwrap();
    let plan = folder.join(FILE);
    let kept = std::fs::read_to_string(&plan).unwrap();
    std::fs::remove_file(&plan).unwrap();
    let error = first.settle(&folder).unwrap_err().to_string();
    assert!(
        error.contains("r0-1-0.parquet") && error.contains("--out"),
        "{error}"
    );
    assert!(!plan.exists());
    std::fs::write(&plan, kept).unwrap();
    let changed = Plan {
        engine_fingerprint: Some("g".into()),
        ..first
    };
    let error = changed.settle(&folder).unwrap_err();
    assert!(error.is::<MeasurementUnsound>(), "{error:#}");
}
