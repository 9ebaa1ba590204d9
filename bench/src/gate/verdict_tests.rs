//! The gate seen open and seen shut.

use super::*;
use crate::load::quantile::Quantiles;
use crate::twin::cell::Promises;

/// Two seeds alike.
fn cells(ttft: f64, e2e: f64, goodput_per_s: f64) -> Vec<Cell> {
    let of = |p99: f64| Quantiles {
        n: 200,
        p99: Some(p99),
        ..Quantiles::default()
    };
    let cell = Cell {
        rung: "rung".into(),
        load: 1.0,
        rate_per_s: 2.0,
        seed: 0,
        offered: 200,
        finished: 150,
        shed: 30,
        shed_by_reason: Default::default(),
        gave_up: 20,
        in_flight_at_end: 0,
        within_slo: 100,
        goodput_per_s,
        mean_in_flight: 5.0,
        queue_grows: false,
        ttft_s: of(ttft),
        e2e_s: of(e2e),
        cached_share: None,
        promises: None,
    };
    vec![cell.clone(), cell]
}

fn budget() -> Figures {
    Figures::of(&cells(0.5, 2.0, 1.8), 2.0).unwrap()
}

fn judged(ttft: f64, e2e: f64, goodput: f64, word: fn(&Line) -> bool) -> Vec<&'static str> {
    let lines = judge("rung", &budget(), None, &cells(ttft, e2e, goodput)).unwrap();
    lines.iter().filter(|l| word(l)).map(|l| l.name).collect()
}

fn regressions(ttft: f64, e2e: f64, goodput: f64) -> Vec<&'static str> {
    judged(ttft, e2e, goodput, Line::is_regression)
}

#[test]
fn what_is_as_it_was_passes_and_so_does_an_improvement_and_a_little_less() {
    assert!(regressions(0.5, 2.0, 1.8).is_empty());
    assert!(regressions(0.1, 0.5, 2.0).is_empty());
    assert!(regressions(0.57, 2.29, 1.63).is_empty());
}

#[test]
fn an_improvement_is_told_when_it_is_as_large_as_a_regression() {
    let improved = |ttft, e2e, goodput| judged(ttft, e2e, goodput, Line::is_improvement);
    assert!(improved(0.45, 1.8, 1.9).is_empty());
    assert_eq!(improved(0.43, 1.8, 2.01), ["TTFT p99, s", "goodput, 1/s"]);
    // A little is no improvement on nothing.
    let nothing = Figures {
        goodput_per_s: 0.0,
        ..budget()
    };
    for (goodput, is_improved) in [(0.0, false), (0.019, false), (0.021, true)] {
        let lines = judge("rung", &nothing, None, &cells(0.5, 2.0, goodput)).unwrap();
        assert_eq!(lines[2].is_improvement(), is_improved);
        assert!(!lines[2].is_regression());
    }
}

#[test]
fn each_figure_alone_shuts_it() {
    assert_eq!(regressions(0.58, 2.0, 1.8), ["TTFT p99, s"]);
    assert_eq!(regressions(0.5, 2.31, 1.8), ["E2E p99, s"]);
    assert_eq!(regressions(0.5, 2.0, 1.61), ["goodput, 1/s"]);
}

#[test]
fn promises_are_held_against_their_level_not_against_the_budget() {
    let told = |kept| {
        let mut cells = cells(0.5, 2.0, 1.8);
        cells[0].promises = Some(Promises {
            kept,
            missed: 100 - kept,
            ..Promises::default()
        });
        cells
    };
    let budget = Figures::of(&told(99), 2.0).unwrap();
    for (kept, is_regression) in [(94, true), (96, false), (100, false)] {
        let lines = judge("rung", &budget, Some(0.95), &told(kept)).unwrap();
        assert_eq!(lines[3].is_regression(), is_regression, "{}", lines[3]);
        assert!(!lines[3].is_improvement());
        assert!(lines[..3].iter().all(|l| !l.is_regression()));
    }
}

#[test]
fn what_says_nothing_is_unsound_and_never_a_pass() {
    let changed = |change: &dyn Fn(&mut Vec<Cell>)| {
        let mut cells = cells(0.5, 2.0, 1.8);
        change(&mut cells);
        judge("rung", &budget(), None, &cells).unwrap_err()
    };
    let missing = changed(&|c| c.clear());
    assert_eq!(missing, [Unsound::RateMissing { rate: 2.0 }]);
    let few = changed(&|c| c[0].offered = 99);
    assert!(matches!(
        few[..],
        [Unsound::TooFewArrivals { arrivals: 99, .. }]
    ));
    let lost = changed(&|c| c[1].shed -= 1);
    assert!(matches!(lost[..], [Unsound::NotAccounted { .. }]));
    let none = changed(&|c| {
        (c[1].finished, c[1].gave_up) = (0, 170);
    });
    assert!(matches!(none[..], [Unsound::NothingCompleted { .. }]));
    let without = changed(&|c| c[1].ttft_s = Quantiles::default());
    assert!(matches!(without[..], [Unsound::NothingCompleted { .. }]));
}
