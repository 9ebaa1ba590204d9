//! Variants that can be counted by hand.

use std::path::Path;

use super::super::tests::{meta, row};
use super::*;
use crate::load::occupancy::tests::run;
use crate::load::parquet;

/// A cell of `n` requests with ten frames each, which are `gap_us` apart and take `e2e_us`.
fn cell(folder: &Path, name: &str, seed: u64, (n, gap_us, e2e_us): (u64, u32, u64)) {
    let mut records = run(n, 100_000, |_| e2e_us);
    for r in &mut records {
        r.frame_gaps_us = vec![gap_us; 9];
    }
    let path = folder.join(format!("{name}-10-{seed}.parquet"));
    parquet::write(&path, &records).unwrap();
    meta(10.0, seed, &records).write(&path).unwrap();
}

/// The gap is twice the default's with a budget of 512 and anything with one of 64; a budget of 128 has few requests.
fn ladder(change: impl Fn(&Path)) -> Ladder {
    let folder = tempfile::tempdir().unwrap();
    let key = "scheduler.prefill_budget";
    for seed in [0, 1, 2] {
        let gap_us = 1000 * (seed as u32 + 1);
        let put = |name: &str, n, gap_us| {
            cell(folder.path(), name, seed, (n, gap_us, 50_000));
        };
        put(DEFAULT, 200, gap_us);
        put(&format!("{key}=512"), 200, 2 * gap_us);
        put(&format!("{key}=64"), 200, [900, 2600, 3000][seed as usize]);
        put(&format!("{key}=128"), 50, gap_us);
    }
    change(folder.path());
    Ladder::read(folder.path(), None).unwrap()
}

#[test]
fn variants_stand_in_the_order_of_their_values_with_what_was_measured() {
    let table = table(&ladder(|_| ()));
    let settings: Vec<&str> = table
        .lines()
        .skip(2)
        .take(4)
        .map(|l| l.split('|').nth(1).unwrap().trim())
        .collect();
    assert_eq!(
        settings,
        [
            "default",
            "scheduler.prefill_budget=64",
            "scheduler.prefill_budget=128",
            "scheduler.prefill_budget=512"
        ]
    );
    let default = row(&table, "| default |");
    assert_eq!(
        default[2..9],
        [
            "10",
            "200",
            "1800",
            "2.00 (1.00–3.00)",
            "2.00 (1.00–3.00)",
            "2.00 (1.00–3.00)",
            "2.00 (1.00–3.00)"
        ]
    );
}

#[test]
fn a_percentile_of_too_few_values_says_so() {
    let few = table(&ladder(|_| ()));
    let few = row(&few, "| scheduler.prefill_budget=128 |");
    assert_eq!(few[3..5], ["50", "450"]);
    // Gaps enough for a p99 and not for a p99.9; requests not enough for either.
    assert!(!few[6].contains('*') && few[7].ends_with("\\*"), "{few:?}");
    assert!(
        few[10].ends_with("\\*") && few[11].ends_with("\\*"),
        "{few:?}"
    );
    assert!(!few[5].contains('*') && !few[8].contains('*'), "{few:?}");
}

#[test]
fn verdicts_are_of_pairs_and_a_difference_inside_the_spread_is_none() {
    let table = verdicts(&ladder(|_| ()));
    assert!(!table.contains("| default |"), "{table}");
    let twice = row(&table, "| scheduler.prefill_budget=512 |");
    assert_eq!(twice[3..7], ["× 2.00"; 4]);
    assert_eq!(twice[7..10], ["none"; 3]);
    let anything = row(&table, "| scheduler.prefill_budget=64 |");
    assert_eq!(anything[3], "none");
}

#[test]
fn what_a_client_gave_up_on_is_no_ratio() {
    let table = verdicts(&ladder(|folder| {
        let path = folder.join("scheduler.prefill_budget=512-10-1.parquet");
        let mut records = parquet::read(&path).unwrap();
        for r in &mut records[..9] {
            r.censored = true;
        }
        parquet::write(&path, &records).unwrap();
    }));
    let row = row(&table, "| scheduler.prefill_budget=512 |");
    assert_eq!((row[3], row[9]), ("× 2.00", "–"));
}

#[test]
fn goodput_is_there_where_there_is_an_slo() {
    let with = ladder(|_| ());
    assert!(table(&with).contains(GOODPUT.name));
    let without = Ladder {
        slo_s: None,
        ..with
    };
    assert!(!table(&without).contains(GOODPUT.name));
    assert!(!verdicts(&without).contains(GOODPUT.name));
}
