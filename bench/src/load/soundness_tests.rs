//! Each check refuses what it is there for, and a sound run passes all of them.

use super::*;
use crate::load::metrics::summarize;
use crate::load::occupancy::{Span, tests::run};
use crate::load::record::Record;

fn refused(records: &[Record]) -> Vec<Unsound> {
    complaints(
        &summarize(records, Span::of_arrivals(records), Some(1.0)),
        &Limits::default(),
    )
}

fn sound() -> Vec<Record> {
    run(200, 10_000, |_| 30_000)
}

#[test]
fn a_sound_run_is_not_refused() {
    assert_eq!(refused(&sound()), []);
    assert!(refuse(Vec::new()).is_ok());
}

#[test]
fn a_schedule_that_was_not_kept_is_refused() {
    let mut once = sound();
    once[50].dispatched_us = Some(once[50].intended_us + 251_000);
    assert!(
        matches!(refused(&once)[..], [Unsound::ScheduleNotKept { max_ms, .. }] if max_ms == 251.0)
    );
    let mut often = sound();
    often
        .iter_mut()
        .take(3)
        .for_each(|r| r.dispatched_us = Some(r.intended_us + 51_000));
    assert!(
        matches!(refused(&often)[..], [Unsound::ScheduleNotKept { p99_ms, .. }] if p99_ms == 51.0)
    );
}

#[test]
fn a_server_that_is_slow_to_accept_is_not_the_generators_fault() {
    let mut records = sound();
    records
        .iter_mut()
        .for_each(|r| r.sent_us = Some(r.intended_us + 900_000));
    assert_eq!(refused(&records), []);
}

#[test]
fn too_little_load_is_refused() {
    let reasons = refused(&run(200, 10_000, |_| 9_000));
    assert!(
        matches!(reasons[..], [Unsound::TooLittleLoad { mean_in_flight, .. }] if mean_in_flight < 0.91)
    );
}

#[test]
fn too_few_arrivals_for_the_percentile_are_refused() {
    let few = &sound()[..99];
    assert!(matches!(
        refused(few)[..],
        [Unsound::TooFewArrivals {
            arrivals: 99,
            fewest: 100,
            ..
        }]
    ));
    let summary = summarize(few, Span::of_arrivals(few), None);
    let limits = Limits {
        percentile: 90.0,
        ..Limits::default()
    };
    assert_eq!(complaints(&summary, &limits), []);
}

#[test]
fn a_run_in_which_nothing_was_completed_is_refused() {
    let mut records = sound();
    records.iter_mut().for_each(|r| r.status = Some(500));
    assert_eq!(
        refused(&records),
        [Unsound::NothingCompleted { arrivals: 200 }]
    );
}

#[test]
fn a_missing_rate_and_a_second_engine_are_refused() {
    assert_eq!(missing_rates(&[0.3, 0.6], &[0.6, 0.1 + 0.2]), []);
    assert_eq!(
        missing_rates(&[0.3, 0.6], &[0.3]),
        [Unsound::RateMissing { rate: 0.6 }]
    );
    let [a, b] = ["a", "b"].map(|f| Some(f.to_owned()));
    let mixed = |engines: [&Option<String>; 2]| {
        let [x, y] = engines.map(Clone::clone);
        mixed_fingerprints(&[("x".into(), x), ("y".into(), y)])
    };
    assert_eq!(mixed([&a, &a]), None);
    assert_eq!(
        mixed([&a, &b]).unwrap().to_string(),
        "y: two engines in one report: a and b"
    );
    assert!(mixed([&a, &None]).is_some());
}

#[test]
fn a_refusal_says_all_of_its_reasons() {
    let error = refuse(refused(&[])).unwrap_err().to_string();
    assert!(
        error.contains("too few arrivals for p99: 0") && error.contains("none of 0"),
        "{error}"
    );
}

#[test]
fn the_speed_self_check_says_when_it_cannot() {
    let check = |ms: f64| self_check(&Quantiles::of((0..100).map(|_| ms * 1e-3)));
    let (good, text) = check(4.9);
    assert!(
        good && text.contains("kept up") && text.contains("n=100"),
        "{text}"
    );
    let (good, text) = check(5.1);
    assert!(
        !good && text.contains("NOT keep up") && text.contains("p99 5.10"),
        "{text}"
    );
    // One in a hundred may be late.
    assert!(
        self_check(&Quantiles::of((0..100).map(|i| if i == 0 {
            1.0
        } else {
            0.001
        })))
        .0
    );
}

/// The reasons of several runs were one list.
#[test]
fn a_verdict_has_its_reasons_and_each_its_run() {
    assert_eq!(verdict(&[]), "verdict      sound");
    let late = Unsound::RateMissing { rate: 2.0 };
    let text = verdict(std::slice::from_ref(&late));
    assert!(
        text.contains("UNSOUND") && text.contains("rate of 2/s"),
        "{text}"
    );
    let runs = refuse(vec![
        late.clone().of_run("a.parquet"),
        late.of_run("b.parquet"),
    ]);
    let text = runs.unwrap_err().to_string();
    assert!(
        text.contains("a.parquet: the rate") && text.contains("b.parquet: the rate"),
        "{text}"
    );
}
