//! Sweeps on daemons that compute nothing. They need the daemon's binary beside the test's, as a build of the whole
//! workspace leaves it.

use super::*;
use crate::ladder;
use crate::ladder::LadderArgs;
use crate::load::parquet;
use crate::twin::rung::Rung;

/// A sweep of two rungs over two rates, which takes a few seconds.
fn args(out: &Path) -> LadderArgs {
    let mut args: LadderArgs = all::given(
        "ladder",
        &[
            "--rates",
            "30,100",
            "--slo-ms",
            "500",
            "--mix",
            "short",
            "--seeds",
            "1",
            "--arrivals",
            "20",
            "--percentile",
            "90",
        ],
    )
    .unwrap();
    args.rungs = [&Rung::files()[0], &Rung::files()[2]]
        .map(Clone::clone)
        .to_vec();
    args.out = out.to_owned();
    args.serving = serving();
    args
}

/// A daemon whose model computes nothing and costs little.
pub fn serving() -> Serving {
    let set = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let settings = [
        ("model.backend", "fake"),
        ("fake.step_us", "200.0"),
        ("fake.prefill_token_us", "5.0"),
        ("fake.decode_seq_us", "50.0"),
        ("fake.length_log_mean", "2.5"),
    ];
    // The test's own binary is one folder below the daemon's.
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    Serving {
        model: "none.gguf".into(),
        daemon: Some(folder.join("cadenced")),
        settings: settings.map(set).to_vec(),
    }
}

fn sweep(args: &LadderArgs) {
    may_be_unsound(ladder::run(args));
}

/// All that a sweep may end with here: the machine that runs the tests may be slow.
pub fn may_be_unsound(done: Result<()>) {
    if let Err(error) = done {
        assert!(error.is::<soundness::MeasurementUnsound>(), "{error:#}");
    }
}

pub fn names(folder: &Path, ending: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let name =
        |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(name).filter(|n| n.ends_with(ending)).collect();
    names.sort();
    names
}

#[test]
fn a_sweep_keeps_each_cell_goes_on_after_a_kill_and_repeats_one() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    sweep(&args);
    let all = [
        "rung1-fifo-100-0.parquet",
        "rung1-fifo-30-0.parquet",
        "rung3-continuous-100-0.parquet",
        "rung3-continuous-30-0.parquet",
    ];
    assert_eq!(names(folder.path(), ".parquet"), all);
    for file in all {
        let records = parquet::read(&folder.path().join(file)).unwrap();
        let meta = Meta::read(&folder.path().join(file)).unwrap();
        assert_eq!((records.len(), meta.summary.requests), (20, 20));
        assert!(file.starts_with(meta.server.rung.as_deref().unwrap()));
    }
    let of = |part: Part| {
        let attempts = Journal::open(folder.path()).unwrap().attempts;
        attempts
            .into_iter()
            .filter(|a| a.part == part)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Part::Anchor), []);

    // Killed in its last cell: there are records, and no metadata that says that they are whole.
    let last = args_plan_last(&args);
    std::fs::remove_file(folder.path().join(last.clone() + ".json")).unwrap();
    let before = of(Part::Cell).len();
    sweep(&args);
    assert_eq!(names(folder.path(), ".parquet"), all);
    let cells = of(Part::Cell);
    assert!(cells[before..].iter().all(|a| a.cell == last) && cells.len() > before);
    let anchors = of(Part::Anchor);
    assert_eq!(anchors.len(), 1);
    assert_eq!(names(&folder.path().join("anchors"), ".parquet").len(), 1);
    assert!(anchors[0].anchor.unwrap().e2e_p50.is_some());

    // Nothing is left to do, so nothing is repeated.
    let attempts = of(Part::Cell).len();
    sweep(&args);
    assert_eq!(
        (of(Part::Cell).len(), of(Part::Anchor).len()),
        (attempts, 1)
    );

    // The engine has changed since: nothing is added to the sweep, but one cell can be run again, by its name.
    let plan = folder.path().join("plan.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    let now = ladder::plan(&args).unwrap().engine_fingerprint.unwrap();
    std::fs::write(&plan, text.replace(&now, "another")).unwrap();
    let error = ladder::run(&args).unwrap_err();
    assert!(error.is::<soundness::MeasurementUnsound>(), "{error:#}");
    let again = |cell: &str| LadderArgs {
        again: Some(cell.into()),
        ..args.clone()
    };
    // With the sweep's settings, which need not be given again, and no others.
    let mut plain = again("rung1-fifo-30-0");
    plain.serving.settings.clear();
    ladder::run(&plain).unwrap();
    let mut others = plain.clone();
    let other = ("scheduler.max_running".into(), "3".into());
    others.serving.settings.push(other);
    let error = format!("{:#}", ladder::run(&others).unwrap_err());
    assert!(
        error.contains("--set") && error.contains("fake.step_us"),
        "{error}"
    );
    assert_eq!(of(Part::Anchor).last().unwrap().cell, "rung1-fifo-30-0");
    assert_eq!(names(&folder.path().join("anchors"), ".parquet").len(), 2);
    let error = format!("{:#}", ladder::run(&again("rung9-30-0")).unwrap_err());
    assert!(error.contains("no cell is rung9-30-0"), "{error}");
    std::fs::write(&plan, text).unwrap();

    // Another sweep does not mix with it.
    let other = LadderArgs {
        arrivals: 30,
        ..args
    };
    let error = format!("{:#}", ladder::run(&other).unwrap_err());
    assert!(error.contains("other arrivals"), "{error}");
}

fn args_plan_last(args: &LadderArgs) -> String {
    ladder::plan(args).unwrap().cells().last().unwrap().name()
}

/// A resumed sweep gave a disturbed cell two more chances each time.
#[test]
fn chances_that_were_used_before_a_kill_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let args = LadderArgs {
        rates: vec![100.0],
        rungs: vec![Rung::files()[0].clone()],
        ..args(folder)
    };
    let plan = ladder::plan(&args).unwrap();
    plan.settle(folder).unwrap();
    // Songs a thousand times slower than any here: whatever comes is disturbed.
    let mut journal = Journal::open(folder).unwrap();
    let mut attempt = |cell: &str, disturbed: Option<&str>| {
        let weather = Weather {
            before_ms: 1e4,
            after_ms: 1e4,
            ..Weather::default()
        };
        let attempt = Attempt {
            cell: cell.into(),
            rung: "rung1-fifo".into(),
            part: Part::Cell,
            finished: "2026-01-01T00:00:00Z".into(),
            took_s: 1.0,
            weather,
            disturbed: disturbed.map(str::to_owned),
            unsound: Vec::new(),
            anchor: None,
        };
        journal.add(attempt).unwrap();
    };
    for _ in 0..8 {
        attempt("another-100-0", Some("others used 2 of 2 cores"));
    }
    attempt("rung1-fifo-100-0", Some("others used 2 of 2 cores"));
    sweep(&args);
    assert_eq!(names(&folder.join("disturbed"), ".parquet").len(), 1);
    assert_eq!(names(folder, ".parquet"), ["rung1-fifo-100-0.parquet"]);
    let attempts = Journal::open(folder).unwrap().attempts;
    assert_eq!(attempts.len(), 8 + 1 + 2);
    assert!(attempts.iter().all(|a| a.disturbed.is_some()));
}
