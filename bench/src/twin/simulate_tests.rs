//! The grid as a whole.

use super::*;

fn args() -> SimulateArgs {
    SimulateArgs {
        calibration: None,
        rungs: Rung::files().to_vec(),
        soak: None,
        loads: vec![0.5, 1.0, 2.0],
        seeds: 2,
        duration: 120.0,
        rates: Vec::new(),
        mix: None,
        capped: false,
        actors: false,
        slo_ms: None,
        timeout_s: 60.0,
        self_calibrating: false,
        out: None,
    }
}

#[test]
fn two_runs_are_equal_to_the_last_byte() {
    let bytes = || serde_json::to_string(&simulate(&args()).unwrap()).unwrap();
    let first = bytes();
    assert_eq!(first, bytes());
}

#[test]
fn the_actors_make_the_same_grid_of_the_same_cells() {
    let by = |actors: bool| {
        let args = SimulateArgs {
            actors,
            rungs: Rung::files()[2..].to_vec(),
            ..args()
        };
        simulate(&args).unwrap()
    };
    let (logic, actors) = (by(false), by(true));
    assert_eq!(actors.mode, Mode::Actors);
    assert_eq!(logic.cells, actors.cells);
    assert_eq!(logic.ceilings, actors.ceilings);
}

#[test]
fn what_is_offered_is_accounted_for_and_no_rung_beats_the_clairvoyant() {
    let grid = simulate(&args()).unwrap();
    assert_eq!((grid.cells.len(), grid.ceilings.len()), (42, 6));
    for c in &grid.cells {
        assert_eq!(c.offered, c.finished + c.shed + c.gave_up, "{c:?}");
        assert!(c.within_slo <= c.finished && c.e2e_s.n == c.finished + c.gave_up);
        let is_its = |x: &&Ceiling| x.load == c.load && x.seed == c.seed;
        let ceiling = grid.ceilings.iter().find(is_its).unwrap();
        assert!(
            c.goodput_per_s <= ceiling.at_least_per_s,
            "{c:?} {ceiling:?}"
        );
        assert!(
            ceiling.at_least_per_s <= ceiling.at_most_per_s,
            "{ceiling:?}"
        );
    }
    let overloaded = |c: &&Cell| c.load == 2.0;
    for c in grid.cells.iter().filter(overloaded) {
        assert!(c.queue_grows || c.shed > 0, "{c:?}");
    }
    // An honest bound need not be tight, but one that is far off says nothing.
    for x in &grid.ceilings {
        assert!(x.at_least_per_s > 0.6 * x.at_most_per_s, "{x:?}");
    }
}

#[test]
fn rates_are_offered_as_they_are_given() {
    let grid = simulate(&SimulateArgs {
        rates: vec![0.2, 0.4],
        ..args()
    })
    .unwrap();
    let rates: Vec<f64> = grid.cells.iter().map(|c| c.rate_per_s).collect();
    assert_eq!(rates.len(), 28);
    assert!(rates[..14].iter().all(|r| *r == 0.2) && rates[14..].iter().all(|r| *r == 0.4));
}

#[test]
fn a_soak_is_of_the_continuous_scheduler_unless_another_rung_is_named() {
    let rungs = |args: &[&str]| {
        let args: SimulateArgs = crate::all::given("simulate", args).unwrap();
        args.rungs
    };
    assert_eq!(
        rungs(&["--soak", "10"]),
        ["config/rung3-continuous.toml"].map(PathBuf::from)
    );
    let named = ["--soak", "10", "--rungs", "config/rung6-best-effort.toml"];
    assert_eq!(rungs(&named), [RUNGS[6]].map(PathBuf::from));
    assert_eq!(rungs(&[]), RUNGS.map(PathBuf::from));
}

#[test]
fn the_table_names_every_cell() {
    let grid = simulate(&args()).unwrap();
    let text = table::markdown(&grid);
    // A sentence, an empty line, two of header, seven rungs and the clairvoyant at three loads.
    assert_eq!(text.lines().count(), 4 + 21 + 3, "{text}");
    for line in text.lines().skip(2) {
        assert_eq!(line.matches('|').count(), 15, "{line}");
    }
}
