//! The gate seen open and seen shut.

use super::*;
use crate::gate::Cell;
use crate::load::quantile::Quantiles;

/// Two rates, two seeds: p99s in seconds and goodput of the second rate are the arguments.
fn measured(ttft: f64, e2e: f64, goodput_per_s: f64) -> Measured {
    let of = |p99: f64| Quantiles {
        n: 200,
        p99: Some(p99),
        ..Quantiles::default()
    };
    let cell = |rate_per_s: f64, ttft: f64, e2e: f64, goodput_per_s: f64| Cell {
        rung: "rung".into(),
        rate_per_s,
        offered: 200,
        finished: 200,
        goodput_per_s,
        ttft_s: of(ttft),
        e2e_s: of(e2e),
    };
    let second = cell(2.0, ttft, e2e, goodput_per_s);
    let cells = vec![
        cell(1.0, 0.1, 1.0, 1.0),
        cell(1.0, 0.1, 1.0, 1.0),
        second.clone(),
        second,
    ];
    Measured { slo_s: 4.0, cells }
}

fn budget() -> Budget {
    Budget::of(&measured(0.5, 2.0, 1.8), "rung").unwrap()
}

fn regressions(measured: &Measured) -> Vec<&'static str> {
    let lines = judge(&budget(), measured).unwrap();
    assert_eq!(lines.len(), 6);
    lines
        .iter()
        .filter(|l| l.is_regression())
        .map(|l| l.name)
        .collect()
}

#[test]
fn what_is_as_it_was_passes_and_so_does_an_improvement_and_a_little_less() {
    assert!(regressions(&measured(0.5, 2.0, 1.8)).is_empty());
    assert!(regressions(&measured(0.1, 0.5, 2.0)).is_empty());
    assert!(regressions(&measured(0.57, 2.29, 1.63)).is_empty());
}

#[test]
fn each_figure_alone_shuts_it() {
    assert_eq!(regressions(&measured(0.58, 2.0, 1.8)), ["TTFT p99, s"]);
    assert_eq!(regressions(&measured(0.5, 2.31, 1.8)), ["E2E p99, s"]);
    assert_eq!(regressions(&measured(0.5, 2.0, 1.61)), ["goodput, 1/s"]);
}

#[test]
fn what_says_nothing_is_unsound_and_never_a_pass() {
    let changed = |change: &dyn Fn(&mut Measured)| {
        let mut m = measured(0.5, 2.0, 1.8);
        change(&mut m);
        judge(&budget(), &m).unwrap_err()
    };
    let missing = changed(&|m| m.cells.truncate(2));
    assert_eq!(missing, [Unsound::RateMissing { rate: 2.0 }]);
    let few = changed(&|m| m.cells[0].offered = 99);
    assert!(matches!(
        few[..],
        [Unsound::TooFewArrivals { arrivals: 99, .. }]
    ));
    let none = changed(&|m| m.cells[3].finished = 0);
    assert!(matches!(none[..], [Unsound::NothingCompleted { .. }]));
    let without = changed(&|m| m.cells[3].ttft_s = Quantiles::default());
    assert!(matches!(without[..], [Unsound::NothingCompleted { .. }]));
    let slo = changed(&|m| m.slo_s = 8.0);
    assert!(matches!(slo[..], [Unsound::AnotherSlo { .. }]));
    let rung = changed(&|m| m.cells.iter_mut().for_each(|c| c.rung = "other".into()));
    assert_eq!(rung.len(), 2);
    assert!(Budget::of(&measured(0.5, 2.0, 1.8), "other").is_err());
}
