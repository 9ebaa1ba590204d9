//! Plans from arguments, and whole runs against the stub.

use super::*;
use crate::load::again::{self, SummaryArgs};
use crate::load::stub::{self, StubArgs};
use clap::Parser;

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    run: RunArgs,
}

fn args(text: &str) -> RunArgs {
    let words = ["run", "--url", "http://127.0.0.1:1"]
        .into_iter()
        .chain(text.split_whitespace());
    Cli::try_parse_from(words).unwrap().run
}

const TRACE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,5\n1,20,6\n3,30,7\n";

#[test]
fn one_seed_asks_the_same_in_an_open_and_in_a_closed_loop() {
    let (_, open, _) = args("--rate 4 --requests 8").plan(None).unwrap();
    let (cell, closed, _) = args("--arrivals burst --requests 8 --closed 2")
        .plan(None)
        .unwrap();
    let asks = |plan: &[Due]| plan.iter().map(|d| d.ask).collect::<Vec<_>>();
    assert_eq!(asks(&open), asks(&closed));
    assert_eq!(cell.mode, Loop::Closed(2));
}

/// A burst and a closed loop were said to be of 1/s.
#[test]
fn what_was_asked_for_is_a_rate_only_where_there_is_one() {
    for (text, asked) in [
        ("--rate 4 --requests 8", "4/s"),
        ("--requests 8 --closed 2", "2 clients in a closed loop"),
        (
            "--requests 8 --arrivals burst --closed 2",
            "2 clients in a closed loop",
        ),
        ("--requests 8 --arrivals burst", "all at once"),
        (
            "--rate 4 --requests 8 --arrivals burst --burst-size 2",
            "4/s in bursts of 2",
        ),
    ] {
        assert_eq!(args(text).plan(None).unwrap().0.asked(), asked);
    }
}

#[test]
fn warm_up_and_cool_down_are_flags() {
    let (_, plan, span) = args("--rate 20 --duration 10 --warm-up-s 2 --cool-down-s 1")
        .plan(None)
        .unwrap();
    assert_eq!(
        span,
        Span {
            from_us: 2_000_000,
            to_us: 9_000_000
        }
    );
    for due in &plan {
        assert_eq!(due.measured, (2_000_000..=9_000_000).contains(&due.at_us));
    }
    assert!(
        args("--rate 1 --duration 3 --warm-up-s 2 --cool-down-s 1")
            .plan(None)
            .is_err()
    );
}

#[test]
fn a_trace_gives_arrivals_and_lengths_at_its_own_pace_or_another() {
    let trace = Trace::parse(TRACE).unwrap();
    let (_, plan, _) = args("--arrivals trace --mix trace --trace x")
        .plan(Some(&trace))
        .unwrap();
    let rows: Vec<(u64, u32)> = plan.iter().map(|d| (d.at_us, d.ask.max_tokens)).collect();
    assert_eq!(rows, [(0, 5), (1_000_000, 6), (3_000_000, 7)]);
    let (cell, plan, _) = args("--arrivals trace --mix trace --trace x --rate 2")
        .plan(Some(&trace))
        .unwrap();
    assert_eq!((cell.schedule.rate, plan[2].at_us), (2.0, 1_000_000));
    assert!(
        args("--mix trace --rate 1 --requests 1")
            .read_trace()
            .is_err()
    );
}

#[test]
fn what_is_missing_is_asked_for() {
    assert!(args("--duration 3").plan(None).is_err());
    assert!(args("--rate 1").plan(None).is_err());
    assert!(has_admission("rung5-conformal") && has_admission("rung6-best-effort"));
    assert!(!has_admission("rung3-continuous") && !has_admission("vllm"));
}

#[test]
fn a_run_leaves_its_records_and_its_metadata_sound_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("cell.parquet");
    let addr = stub::spawn(StubArgs {
        sleep_ms: 60.0,
        tokens: 4,
        ..StubArgs::default()
    })
    .unwrap();
    let mut args =
        args("--rate 100 --requests 100 --slo-ms 4000 --lag-p99-ms-max 9e9 --lag-ms-max 9e9");
    args.url = format!("http://{addr}");
    args.out = Some(out.clone());
    run(&args).unwrap();
    let meta = Meta::read(&out).unwrap();
    assert_eq!((meta.summary.completed, meta.unsound.len()), (100, 0));
    assert_eq!(meta.gaps.map(|g| g.n), Some(100));
    assert_eq!(
        (&meta.engine_fingerprint, &meta.server.rung),
        (&None, &None)
    );
    let records = parquet::read(&out).unwrap();
    assert_eq!(records.len(), 100);
    // Every figure can be made again from the records alone.
    let window = metrics::window(meta.arrivals_s(), 0.0, 0.0);
    let again = metrics::summarize(&records, window, Some(4.0));
    let (ours, theirs) = (again.e2e, meta.summary.e2e);
    assert_eq!((ours.n, ours.censored), (theirs.n, theirs.censored));
    // Metadata is JSON, which serde_json reads to the last digit but one.
    for (ours, theirs) in [
        (ours.p50, theirs.p50),
        (ours.p90, theirs.p90),
        (ours.max, theirs.max),
    ] {
        assert!(
            (ours.unwrap() - theirs.unwrap()).abs() < 1e-12,
            "{ours:?} {theirs:?}"
        );
    }
    assert_eq!(
        again.slo.map(|s| s.within),
        meta.summary.slo.map(|s| s.within)
    );
    let again = |rates: &[f64]| {
        let (files, rates) = (vec![out.clone()], rates.to_vec());
        again::run(&SummaryArgs {
            files,
            slo_ms: Some(50),
            rates,
        })
    };
    assert!(again(&[100.0]).is_ok());
    assert!(
        again(&[100.0, 200.0])
            .unwrap_err()
            .is::<soundness::MeasurementUnsound>()
    );

    args.requests = Some(20);
    let error = run(&args).unwrap_err();
    assert!(error.is::<soundness::MeasurementUnsound>(), "{error:#}");
    assert_eq!(Meta::read(&out).unwrap().unsound.len(), 1);
    assert_eq!(parquet::read(&out).unwrap().len(), 20);
}

/// What is measured for an hour must not be lost at its end.
#[test]
fn where_records_go_is_seen_to_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a/b/cell.parquet");
    make_room(&deep).unwrap();
    assert!(deep.parent().unwrap().is_dir());
    let error = make_room(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is a folder"), "{error}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = make_room(&file.join("cell.parquet"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("making the folder of"), "{error}");
    make_room(Path::new("cell.parquet")).unwrap();
}

/// Each was accepted, and ran or divided by nothing.
#[test]
fn what_makes_no_sense_is_refused_by_the_option_s_name() {
    let refused = |text: &str| {
        let words = ["run", "--url", "http://127.0.0.1:1"].into_iter();
        let parsed = Cli::try_parse_from(words.chain(text.split_whitespace()));
        match parsed {
            Err(error) => error.to_string(),
            Ok(cli) => format!("{:#}", cli.run.plan(None).unwrap_err()),
        }
    };
    for (text, option) in [
        ("--rate 1 --requests 9 --percentile 100", "--percentile"),
        ("--rate 1 --requests 9 --percentile 0", "--percentile"),
        ("--rate 1 --requests 9 --percentile NaN", "--percentile"),
        ("--rate 0 --requests 9", "--rate"),
        ("--rate inf --requests 9", "--rate"),
        ("--rate 1 --requests 0", "--requests"),
        ("--rate 1 --duration 0", "--duration"),
        ("--rate 1 --requests 9 --slo-ms 0", "--slo-ms"),
        ("--rate 1 --requests 9 --timeout-s 0", "--timeout-s"),
        ("--rate 1 --requests 9 --warm-up-s=-1", "--warm-up-s"),
        ("--requests 9 --closed 0", "--closed"),
        ("--rate 1 --requests 9 --closed 2", "--rate"),
        (
            "--rate 1 --requests 9 --arrivals burst --burst-size 0",
            "--burst-size",
        ),
        ("--rate 1 --requests 9 --burst-size 3", "--arrivals burst"),
    ] {
        let error = refused(text);
        assert!(error.contains(option), "{text}: {error}");
    }
    assert!(
        args("--rate 1 --requests 9 --arrivals burst --burst-size 3")
            .plan(None)
            .is_ok()
    );
}

/// Of each it was said what failed, but neither where nor what to do about it; or the whole schedule was run first.
#[test]
fn what_cannot_be_run_is_said_at_once_and_by_its_name() {
    let said = |text: &str, url: &str| {
        let mut args = args(text);
        args.url = url.into();
        format!("{:#}", measure(&args).unwrap_err())
    };
    // A port that nothing listens on any more.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    drop(taken);
    let hour = "--rate 1 --duration 3600";
    let error = said(hour, &format!("http://{addr}"));
    assert!(
        error.contains(&format!("--url: nothing listens at {addr}")),
        "{error}"
    );
    let error = said(hour, "127.0.0.1:9000");
    assert!(error.contains("--url: no http:// before"), "{error}");
    let error = said(
        &format!("{hour} --api-key-env NO_SUCH_KEY"),
        "http://127.0.0.1:1",
    );
    assert!(error.contains("--api-key-env NO_SUCH_KEY"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.parquet");
    let summary = |file: &Path| {
        let args = SummaryArgs {
            files: vec![file.to_owned()],
            slo_ms: None,
            rates: Vec::new(),
        };
        format!("{:#}", again::run(&args).unwrap_err())
    };
    assert!(summary(&file).contains("x.parquet"), "{}", summary(&file));
    std::fs::write(&file, "no parquet").unwrap();
    assert!(
        summary(&file).contains("x.parquet has no records"),
        "{}",
        summary(&file)
    );
    parquet::write(&file, &[]).unwrap();
    assert!(
        summary(&file).contains("x.parquet has no metadata beside it"),
        "{}",
        summary(&file)
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let stub = stub::spawn(StubArgs {
        listen,
        ..StubArgs::default()
    });
    let error = format!("{:#}", stub.unwrap_err());
    assert!(error.contains(&format!("--listen {listen}")), "{error}");
}

/// The metadata took the place of the records.
#[test]
fn records_go_to_a_parquet_file_or_nowhere() {
    use super::parquet::records_file;
    for name in ["x.json", "x", "x.parquet.json", ".parquet", ""] {
        assert!(
            records_file(name).unwrap_err().contains(".parquet"),
            "{name}"
        );
    }
    assert!(records_file("a.b/x.1.parquet").is_ok());
}
