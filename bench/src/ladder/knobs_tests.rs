//! A sweep of variants on daemons that compute nothing; see `sweep_tests`.

use std::path::Path;

use super::*;
use crate::all;
use crate::ladder::sweep::tests::{may_be_unsound, names, serving};
use crate::load::meta::Meta;
use crate::load::parquet;
use crate::load::record::Record;
use crate::twin::rung::Rung;

fn args(out: &Path, options: &str) -> SchedulerKnobsArgs {
    let options: Vec<&str> = options.split_whitespace().collect();
    let mut args: SchedulerKnobsArgs = all::given("scheduler-knobs", &options).unwrap();
    args.serving = serving();
    args.config = Rung::files()[3].clone();
    args.calibration = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/calibration.json");
    args.out = out.join("knobs");
    args
}

#[test]
fn variants_are_run_as_they_are_set_on_the_same_arrivals_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    // A variant that is another rung shows that a setting reaches the daemon.
    let args = args(
        folder.path(),
        "--vary prefix.reuse=auto,off --rate 60 --arrivals 20 --replicates 2",
    );
    may_be_unsound(run(&args));
    let cells = ["default", "prefix.reuse=off"];
    let file = |cell: &str, seed: u64| args.out.join(format!("{cell}-60-{seed}.parquet"));
    let asked = |records: Vec<Record>| -> Vec<_> {
        let one = |r: &Record| (r.intended_us, r.group, r.max_tokens);
        records.iter().map(one).collect()
    };
    for seed in [0, 1] {
        let [default, variant] = cells.map(|cell| parquet::read(&file(cell, seed)).unwrap());
        assert_eq!(default.len(), 20);
        assert_eq!(asked(default), asked(variant));
        let rungs = cells.map(|cell| Meta::read(&file(cell, seed)).unwrap().server.rung.unwrap());
        assert_eq!(rungs, ["rung4-cache", "rung3-continuous"]);
    }
    assert_eq!(names(&args.out, ".parquet").len(), 4);
    let started = || Meta::read(&file("default", 0)).unwrap().started;
    let before = started();
    may_be_unsound(run(&args));
    assert_eq!(started(), before, "what is there is not run again");
}

#[test]
fn three_quarters_of_the_capacity_are_offered_unless_a_rate_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let planned = |options: &str| plan(&args(folder.path(), options));
    let best = Calibration::read(&args(folder.path(), "").calibration)
        .unwrap()
        .best;
    let offer = planned("").unwrap().offer;
    let share = offer.rates_per_s[0] / best.requests_per_s;
    assert!((share - 0.75).abs() < 0.04, "{share}");
    assert_eq!(planned("--rate 2.5").unwrap().offer.rates_per_s, [2.5]);
    let refused = |options: &str| format!("{:#}", planned(options).unwrap_err());
    assert!(refused("--mix standard").contains("another mix"));
    assert!(planned("--mix standard --rate 1").is_ok());
    assert!(refused("--replicates 1").contains("no spread"));
    assert!(refused("--vary scheduler.max_running=16").contains("no variant"));
}

#[test]
fn the_default_sweep_has_every_knob_once() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&args(folder.path(), "")).unwrap();
    assert_eq!(plan.rungs.len(), 1 + 5 + 1 + 4);
    assert_eq!(plan.cells().len(), 3 * plan.rungs.len());
}
