//! What was disturbed is marked wherever it is shown.

use super::super::tests::{meta, write};
use super::super::{Ladder, TABLES, again, latency};
use crate::ladder::journal::{Attempt, Journal, Part};
use crate::load::occupancy::tests::run;
use crate::load::parquet;
use std::path::Path;

/// An attempt of the sweep in `folder`, whose cells are all finished within the same minute.
fn attempted(folder: &Path, cell: &str, part: Part, finished: &str, disturbed: Option<&str>) {
    let mut journal = Journal::open(folder).unwrap();
    let attempt = Attempt {
        cell: cell.into(),
        rung: cell[..7].into(),
        part,
        finished: finished.into(),
        took_s: 1.0,
        weather: Default::default(),
        disturbed: disturbed.map(str::to_owned),
        unsound: Vec::new(),
        anchor: None,
    };
    journal.add(attempt).unwrap();
}

/// They were in the journal alone, and every table showed them as any other.
#[test]
fn every_table_marks_what_was_disturbed_to_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder);
    let all = || {
        let ladder = Ladder::read(folder, None).unwrap();
        let elsewhere = [
            "knobs", "verdicts", "figures", "speed", "again", "promises", "twin", "canaries",
        ];
        let tables = TABLES.iter().filter(|(name, ..)| !elsewhere.contains(name));
        tables
            .map(|(name, _, render)| (*name, render(&ladder)))
            .collect::<Vec<_>>()
    };
    // The records were whole at 00:01:00. What was set aside before, or was run again later, is not them.
    let (early, late) = ("2026-01-01T00:00:30Z", "2026-01-01T00:01:02Z");
    for rung in ["rung1-a", "rung2-b"] {
        attempted(
            folder,
            &format!("{rung}-10-1"),
            Part::Cell,
            early,
            Some("x"),
        );
        attempted(folder, &format!("{rung}-10-1"), Part::Cell, late, None);
        attempted(
            folder,
            &format!("{rung}-10-0"),
            Part::Anchor,
            late,
            Some("x"),
        );
    }
    for (name, table) in all() {
        assert!(!table.contains('‡'), "{name}: {table}");
    }
    for rung in ["rung1-a", "rung2-b"] {
        for rate in [10, 100] {
            attempted(
                folder,
                &format!("{rung}-{rate}-0"),
                Part::Cell,
                late,
                Some("x"),
            );
        }
    }
    for (name, table) in all() {
        assert!(
            table.contains("10 ‡ |") || table.contains("100 ‡ |") || table.contains("10 ‡,"),
            "{name}: {table}"
        );
        assert!(
            table.contains("\n‡ ") && table.contains("4 of 8 were"),
            "{name}: {table}"
        );
    }
    let ladder = Ladder::read(folder, None).unwrap();
    let latency = latency::table(&ladder);
    assert!(latency.contains("| rung1-a | 100 † ‡ |"), "{latency}");
}

/// The run that is repeated and the repeat each have their own.
#[test]
fn a_cell_that_was_run_again_is_marked_on_the_side_that_was_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder);
    let anchors = folder.join("anchors");
    std::fs::create_dir(&anchors).unwrap();
    let records = run(200, 10_000, |_| 75_000);
    let path = anchors.join("rung2-b-100-0.1.parquet");
    parquet::write(&path, &records).unwrap();
    meta(100.0, 0, &records).write(&path).unwrap();
    let table = || again::table(&Ladder::read(folder, None).unwrap());
    let (cell, late) = ("rung2-b-100-0", "2026-01-01T00:01:02Z");
    assert!(
        table().contains("| rung2-b-100-0 | aaaa | the same |"),
        "{}",
        table()
    );
    attempted(folder, cell, Part::Anchor, late, Some("x"));
    let text = table();
    assert!(
        text.contains("| rung2-b-100-0 | aaaa | the same ‡ |") && text.contains("\n‡ "),
        "{text}"
    );
    attempted(folder, cell, Part::Cell, late, Some("x"));
    assert!(
        table().contains("| rung2-b-100-0 | aaaa ‡ | the same ‡ |"),
        "{}",
        table()
    );
}
