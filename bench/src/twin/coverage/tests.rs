//! The study in small.

use super::*;

fn small() -> CoverageArgs {
    CoverageArgs {
        calibration: None,
        rungs: Rung::files()[4..6].to_vec(),
        alphas: vec![0.2, 0.05],
        loads: vec![0.5, 3.0],
        shifted: vec![1.0],
        seeds: 2,
        requests: 800,
        out: PathBuf::new(),
    }
}

#[test]
fn promises_are_kept_at_their_level() {
    let study = study(&small()).unwrap();
    assert_eq!(study.cells.len(), 3 * 2 * 2 * 3);
    for c in study.criteria.iter().filter(|c| c.arm == Arm::Conformal) {
        assert!(c.holds, "{c:?}\n{}", table::all(&study));
    }
    for c in &study.cells {
        let refused = c.infeasible + c.overloaded + c.unsupported + c.full;
        let admitted = c.promised.n + c.in_window.n + c.explored + c.observed;
        assert!(c.offered >= refused + admitted, "{c:?}");
        assert!(c.within_slo <= c.most_within, "{c:?}");
    }
}
