use super::super::tests::{meta, row};
use super::*;
use crate::load::occupancy::tests::run;
use crate::load::soundness::MeasurementUnsound;

/// Keeps a run of eight requests of ten tokens. The i-th is sent and has its first text at `times(i)`, microseconds
/// since the run began, and ends a second later.
fn keep(
    ladder: &Path,
    (name, mode): (&str, Loop),
    times: impl Fn(u64) -> (u64, u64),
    change: impl Fn(&mut Meta),
) {
    let mut records = run(8, 0, |_| 10);
    for (i, r) in (0..).zip(&mut records) {
        let (sent_us, first_us) = times(i);
        r.intended_us = sent_us;
        (r.dispatched_us, r.sent_us) = (Some(sent_us), Some(sent_us));
        r.first_frame_us = Some(first_us);
        r.finish_us = first_us + 1_000_000;
    }
    let folder = ladder.join(FOLDER);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.parquet"));
    parquet::write(&path, &records).unwrap();
    let mut meta = meta(1.0, 0, &records);
    meta.cell.mode = mode;
    meta.server.rung = Some("rung4-cache".into());
    change(&mut meta);
    meta.write(&path).unwrap();
}

/// Two slots, 1 s a request to its first token and one to its end: eight take 8 s. Open, all come at once and the last
/// pair has its first tokens after 7 s; closed, each client sends its next when it has its answer, and waits 1 s.
fn pair(ladder: &Path, round: u32, change: impl Fn(&mut Meta)) {
    let begins_us = |i: u64| i / 2 * 2_000_000;
    let first_us = |i: u64| begins_us(i) + 1_000_000 + u64::from(round) * 10_000;
    let open = format!("open-{round}");
    keep(ladder, (&open, Loop::Open), |i| (0, first_us(i)), &change);
    let closed = format!("closed-{round}");
    let times = |i| (begins_us(i), first_us(i));
    keep(ladder, (&closed, Loop::Closed(2)), times, &change);
}

#[test]
fn both_loops_stand_side_by_side_with_what_lies_between_them() {
    let ladder = tempfile::tempdir().unwrap();
    assert_eq!(table(ladder.path()).unwrap(), MISSING);
    for round in 0..3 {
        pair(ladder.path(), round, |_| ());
    }
    let text = table(ladder.path()).unwrap();
    assert!(
        text.contains("The same 8 requests at 2 slots, median (min–max) of 3 runs"),
        "{text}"
    );
    let closed = row(&text, "| closed, 2 clients |");
    assert_eq!(
        closed[2..6],
        [
            "10.0 (10.0–10.0)",
            "1.01 (1.00–1.02)",
            "1.01 (1.00–1.02)",
            "8"
        ]
    );
    let open = row(&text, "| open, all at once |");
    assert_eq!(
        open[2..6],
        [
            "10.0 (10.0–10.0)",
            "3.01 (3.00–3.02)",
            "7.01 (7.00–7.02)",
            "8"
        ]
    );
    assert!(
        text.contains(
            "Open over closed: 1.00 times the throughput, 6.9 times the TTFT at p99, 6.00 s more."
        ),
        "{text}"
    );
    assert!(
        text.contains("<sub>contrast: 6 runs of rung4-cache, standard mix; c, 2 cores"),
        "{text}"
    );
}

#[test]
fn what_can_not_be_compared_is_refused() {
    let refused = |break_it: &dyn Fn(&Path)| {
        let ladder = tempfile::tempdir().unwrap();
        pair(ladder.path(), 0, |_| ());
        break_it(ladder.path());
        table(ladder.path()).unwrap_err()
    };
    let half = refused(&|f| std::fs::remove_file(f.join("contrast/open-0.parquet")).unwrap());
    assert!(
        half.to_string().contains("0 open loops and 1 closed"),
        "{half}"
    );
    let other = refused(&|f| pair(f, 1, |m| m.cell.schedule.seed = 7));
    assert!(other.to_string().contains("same requests"), "{other}");
    let mixed = refused(&|f| pair(f, 1, |m| m.engine_fingerprint = Some("bbbb".into())));
    assert!(mixed.is::<MeasurementUnsound>(), "{mixed}");
}
