//! A ladder that can be counted by hand, and what its tables say of it.

use super::*;
use crate::load::arrivals::{Extent, Process, Schedule};
use crate::load::driver::Loop;
use crate::load::meta::{FORMAT, Server};
use crate::load::mix::Mix;
use crate::load::occupancy::tests::run;
use crate::load::soundness::{Limits, Unsound};

const SLO_S: f64 = 0.1;

pub fn meta(rate: f64, seed: u64, records: &[Record]) -> Meta {
    let window = Span::of_arrivals(records);
    Meta {
        format: FORMAT,
        started: "2026-01-01T00:00:00Z".into(),
        finished: "2026-01-01T00:01:00Z".into(),
        command: "cadenced-bench run".into(),
        revision: "0123456789abcdef".into(),
        engine_fingerprint: Some("aaaa".into()),
        model_sha256: None,
        machine: serde_json::json!({ "cpu": "c", "cores": 2, "memory_bytes": 1_u64 << 30 }),
        server: Server::default(),
        cell: crate::load::meta::Cell {
            mode: Loop::Open,
            mix: Mix::Standard,
            schedule: Schedule {
                process: Process::Fixed,
                rate,
                extent: Extent::Requests(records.len()),
                seed,
                burst: None,
            },
            trace: None,
            slo_ms: Some((SLO_S * 1e3) as u64),
            slo_sent: false,
            timeout_s: 300.0,
            warm_up_s: 0.0,
            cool_down_s: 0.0,
            temperature: 0.0,
            ignore_eos: false,
            limits: Limits::default(),
        },
        generator_cores: 0.1,
        gaps: None,
        summary: metrics::summarize(records, window, Some(SLO_S)),
        unsound: Vec::new(),
    }
}

/// Writes a cell of 200 requests whose i-th takes `e2e_us(i)`.
fn cell(folder: &Path, (rung, rate, seed): (&str, u32, u64), e2e_us: impl Fn(u64) -> u64) {
    let records = run(200, 1_000_000 / u64::from(rate), e2e_us);
    keep(folder, (rung, rate, seed), &records);
}

fn keep(folder: &Path, (rung, rate, seed): (&str, u32, u64), records: &[Record]) {
    let path = folder.join(format!("{rung}-{rate}-{seed}.parquet"));
    parquet::write(&path, records).unwrap();
    meta(f64::from(rate), seed, records).write(&path).unwrap();
}

/// Rung 1 takes 30 ms at 10/s and its queue grows at 100/s; rung 2 takes 40 ms at 10/s and 50 ms at 100/s, 52 ms
/// under the other seed.
pub fn write(folder: &Path) {
    for seed in [0, 1] {
        cell(folder, ("rung1-a", 10, seed), |_| 30_000);
        cell(folder, ("rung1-a", 100, seed), |i| {
            20_000 * (i + 1) - 10_000 * i
        });
        cell(folder, ("rung2-b", 10, seed), |_| 40_000);
        cell(folder, ("rung2-b", 100, seed), move |_| {
            50_000 + 2000 * seed
        });
    }
}

#[test]
fn a_cell_that_was_run_again_stands_beside_what_it_was() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let read = || Ladder::read(folder.path(), None).unwrap();
    assert_eq!(again::table(&read()), "None.\n");
    // 50 ms became 75 under another engine, which the cells of the sweep must not have.
    let anchors = folder.path().join("anchors");
    std::fs::create_dir(&anchors).unwrap();
    let records = run(200, 10_000, |_| 75_000);
    let path = anchors.join("rung2-b-100-0.1.parquet");
    parquet::write(&path, &records).unwrap();
    let mut of = meta(100.0, 0, &records);
    of.engine_fingerprint = Some("bbbbbbbbbbbb".into());
    of.write(&path).unwrap();
    let table = again::table(&read());
    let row = "| rung2-b-100-0 | aaaa | bbbbbbbb | 0.050 → 0.075 (+50.0%) | 0.050 → 0.075 (+50.0%) | 101 → 101 (+0.0%) |";
    assert!(table.contains(row), "{table}");
}

pub fn small() -> Ladder {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    Ladder::read(folder.path(), None).unwrap()
}

/// Writes, below `parent`, a ladder of one rung that promises nothing, 30 ms a request, and one that promises 60 ms at
/// `level`. What that does to each ten of its 200 requests, in their order:
///
/// - 1 promise missed, after 70 ms
/// - 5 promises kept, after 50 ms; but of these, one's client leaves after 30 ms, one's after 100 ms, one fails, and
///   one takes 61 ms by the client's clock
/// - 1 explored, 80 ms
/// - 1 in the best-effort lane: in turn done after 40 ms and dropped after 100 ms
/// - 1 refused, `slo_overloaded`
/// - 1 refused, in turn `queue_full` without being looked at and `slo_infeasible`
pub fn write_promising(parent: &Path, name: &str, level: f64) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir(&folder).unwrap();
    for rate in [10, 100] {
        cell(&folder, ("rung4-a", rate, 0), |_| 30_000);
        let mut records = run(200, 1_000_000 / u64::from(rate), e2e_us);
        for (i, r) in (0..).zip(&mut records) {
            decide(i, r, level);
        }
        keep(&folder, ("rung5-b", rate, 0), &records);
    }
    folder
}

fn e2e_us(i: u64) -> u64 {
    match (i, i % 10, i % 20) {
        (1, ..) => 30_000,
        (2, ..) => 100_000,
        (4, ..) => 61_000,
        (_, 0, _) => 70_000,
        (_, 1..=5, _) => 50_000,
        (_, 6, _) => 80_000,
        (.., 7) => 40_000,
        (.., 17) => 100_000,
        _ => 1000,
    }
}

fn decide(i: u64, r: &mut Record, level: f64) {
    (r.prompt_tokens, r.cached_tokens) = (Some(100), Some(64));
    r.level = Some(level);
    let mut refuse = |status, code: &str| {
        (r.status, r.code, r.first_frame_us) = (Some(status), Some(code.into()), None);
    };
    let verdict = match (i % 10, i % 20) {
        (..=5, _) => {
            (r.bound_ms, r.kept) = (Some(60.0), Some(!i.is_multiple_of(10)));
            "promised"
        }
        (6, _) => {
            (r.bound_ms, r.kept) = (Some(120.0), None);
            "explored"
        }
        (7, 7) => "best_effort",
        (7, _) => {
            (r.code, r.error) = (Some("slo_expired".into()), Some("too late".into()));
            "best_effort"
        }
        (8, _) => {
            refuse(503, "slo_overloaded");
            "overloaded"
        }
        (_, 9) => {
            refuse(503, "queue_full");
            r.level = None;
            return;
        }
        _ => {
            refuse(422, "slo_infeasible");
            "infeasible"
        }
    };
    r.verdict = Some(verdict.into());
    if i == 1 || i == 2 {
        (r.censored, r.kept) = (true, None);
    }
    if i == 3 {
        (r.error, r.kept) = (Some("cut off".into()), None);
    }
}

pub fn promising() -> Ladder {
    let parent = tempfile::tempdir().unwrap();
    Ladder::read(&write_promising(parent.path(), "ladder", 0.95), None).unwrap()
}

pub fn row<'a>(table: &'a str, beginning: &str) -> Vec<&'a str> {
    let line = table.lines().find(|l| l.starts_with(beginning));
    line.unwrap_or_else(|| panic!("no {beginning} in\n{table}"))
        .split('|')
        .map(str::trim)
        .collect()
}

#[test]
fn cells_are_found_by_name_and_ordered() {
    let ladder = small();
    assert_eq!(
        (ladder.rungs(), ladder.rates()),
        (vec!["rung1-a", "rung2-b"], vec![10.0, 100.0])
    );
    let points: Vec<_> = ladder
        .points()
        .map(|p| (p.rung, p.rate, p.cells.len(), p.grows()))
        .collect();
    assert_eq!(
        points,
        [
            ("rung1-a", 10.0, 2, false),
            ("rung1-a", 100.0, 2, true),
            ("rung2-b", 10.0, 2, false),
            ("rung2-b", 100.0, 2, false),
        ]
    );
}

#[test]
fn latencies_have_their_n_and_their_spread_and_a_growing_queue_its_dagger() {
    let table = latency::table(&small());
    assert_eq!(row(&table, "| rung2-b | 100 |")[3], "400");
    assert_eq!(row(&table, "| rung2-b | 100 |")[7], "0.051 (0.050–0.052)");
    assert!(table.contains("| rung1-a | 100 † |"), "{table}");
}

#[test]
fn a_growing_queue_is_never_quoted_as_capacity() {
    let table = capacity::table(&small());
    let first = row(&table, "| rung1-a |");
    // Ten tokens each: 100 a second at 10/s. The 500 that came out at 100/s are of a growing queue.
    assert!(number(first[2]) < 105.0, "{table}");
    assert_eq!((first[5], first[6]), ("10", "100"));
    let second = row(&table, "| rung2-b |");
    assert!(number(second[2]) > 950.0, "{table}");
    assert_eq!((second[5], second[6]), ("100", "never"));
}

/// The median of `median (lowest–highest)`.
fn number(cell: &str) -> f64 {
    cell.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn goodput_is_of_what_was_offered_and_can_be_asked_for_at_any_target() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let good = |slo_s| {
        let ladder = Ladder::read(folder.path(), slo_s).unwrap();
        row(&goodput::table(&ladder), "| rung2-b | 100 |")[5].to_owned()
    };
    assert_eq!(good(None), "100 (100–100)");
    assert_eq!(good(Some(0.051)), "50.0 (0.0–100.0)");
    let sensitivity = sensitivity::table(&small());
    let rung2 = row(&sensitivity, "| rung2-b |");
    // At half the SLO one seed is just within and one beyond it; at three quarters both are within.
    assert!(
        rung2[2].ends_with("at 100") && rung2[3].starts_with("100.5"),
        "{sensitivity}"
    );
}

#[test]
fn what_got_worse_is_listed_with_its_worst_load_and_what_got_better_is_not() {
    let table = worse::table(&small());
    let e2e = row(&table, "| rung1-a → rung2-b | E2E p50");
    assert_eq!(
        (e2e[3], e2e[6], e2e[7], e2e[8]),
        ("10", "+33%", "yes", "10")
    );
    assert!(!table.contains("goodput"), "{table}");
    // One seed has no spread to be beyond.
    let mut single = small();
    single.cells.retain(|c| c.seed == 0);
    let table = worse::table(&single);
    let e2e = row(&table, "| rung1-a → rung2-b | E2E p50");
    assert_eq!((e2e[6], e2e[7]), ("+33%", "–"));
}

#[test]
fn unsound_cells_mixed_engines_and_missing_rates_are_refused() {
    let refused = |change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        change(folder.path());
        let error = Ladder::read(folder.path(), None).err().expect("refused");
        error
            .downcast_ref::<MeasurementUnsound>()
            .expect("unsound")
            .0
            .clone()
    };
    let edit = |folder: &Path, change: &dyn Fn(&mut Meta)| {
        let path = folder.join("rung1-a-10-0.parquet");
        let mut meta = Meta::read(&path).unwrap();
        change(&mut meta);
        meta.write(&path).unwrap();
    };
    let mixed = refused(&|f| edit(f, &|m| m.engine_fingerprint = Some("bbbb".into())));
    let [mixed] = &mixed[..] else {
        panic!("{mixed:?}");
    };
    assert!(mixed.to_string().contains("two engines"), "{mixed}");
    let nothing = Unsound::NothingCompleted { arrivals: 9 };
    assert_eq!(
        refused(&|f| edit(f, &|m| m.unsound = vec![nothing.clone()])),
        [nothing.clone().of_run("rung1-a-10-0")]
    );
    let missing = refused(&|f| {
        for seed in [0, 1] {
            std::fs::remove_file(f.join(format!("rung2-b-100-{seed}.parquet"))).unwrap();
        }
    });
    assert_eq!(
        missing,
        [Unsound::RateMissing { rate: 100.0 }.of_run("rung2-b")]
    );
}

#[test]
fn a_file_with_another_name_is_no_cell() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    std::fs::write(folder.path().join("cell.parquet"), "").unwrap();
    let error = Ladder::read(folder.path(), None).err().unwrap();
    assert!(
        format!("{error:#}").contains("<rung>-<rate>-<seed>"),
        "{error:#}"
    );
}

#[test]
fn half_a_sweep_is_said_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let plan = crate::ladder::plan::tests::plan(2, &[10.0, 100.0], 3);
    plan.settle(folder.path()).unwrap();
    write(folder.path());
    let origin = Ladder::read(folder.path(), None).unwrap().origin();
    assert!(origin.contains("8 cells of 12, **unfinished**"), "{origin}");
    assert!(!small().origin().contains("unfinished"));
}
