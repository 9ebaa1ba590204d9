use super::super::tests::{row, write_promising};
use super::*;
use crate::load::meta::Meta;
use crate::load::soundness::MeasurementUnsound;

/// Ladders of one rung that promises, each at a level; and one more that is none of them.
fn ladders(levels: &[(&str, f64)], change: impl Fn(&Path)) -> BTreeMap<String, Ladder> {
    let parent = tempfile::tempdir().unwrap();
    let all = levels.iter().copied().chain([("other", 0.5)]);
    all.map(|(name, level)| {
        let folder = write_promising(parent.path(), name, level);
        change(&folder);
        (name.to_owned(), Ladder::read(&folder, None).unwrap())
    })
    .collect()
}

const BOTH: [(&str, f64); 2] = [("ladder", 0.95), ("ladder-80", 0.8)];

#[test]
fn the_frontier_has_a_row_for_each_rate_and_level_of_one_rung() {
    let all = ladders(&BOTH, |_| ());
    let text = Joint::of(&all).unwrap().table("frontier").unwrap();
    let beginnings: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("| rung5"))
        .map(|l| l.split_at("| rung5-b | 100 | 0.95".len()).0)
        .collect();
    assert_eq!(
        beginnings,
        [
            "| rung5-b | 10 | 0.8 |",
            "| rung5-b | 10 | 0.95 ",
            "| rung5-b | 100 | 0.8 ",
            "| rung5-b | 100 | 0.95",
        ]
    );
    let row = row(&text, "| rung5-b | 100 | 0.8 |");
    assert_eq!((row[4], row[5]), ("200", "120 = 60.0%"));
    // 40 of 200 were refused.
    assert_eq!((row[10], row[11]), ("73.9", "20.0"));
    assert!(
        text.contains("<sub>ladder: ") && text.contains("<sub>ladder-80: "),
        "{text}"
    );
}

#[test]
fn one_level_is_no_frontier_and_no_promise_no_curve() {
    let one = ladders(&BOTH[..1], |_| ());
    let one = Joint::of(&one).unwrap();
    assert_eq!(one.table("frontier").unwrap(), MISSING);
    assert!(
        one.table("figures")
            .unwrap()
            .contains("ladders/figures/calibration.svg")
    );
    assert!(one.table("other").is_err());
    let none = BTreeMap::new();
    let none = Joint::of(&none).unwrap();
    assert_eq!(none.table("figures").unwrap(), MISSING);
}

#[test]
fn the_curve_has_a_point_for_each_rung_and_level_over_all_loads() {
    let all = ladders(&BOTH, |_| ());
    let arms = Joint::of(&all).unwrap().arms();
    let levels: Vec<_> = arms.iter().map(|a| (a.rung, a.level)).collect();
    assert_eq!(levels, [("rung5-b", 0.8), ("rung5-b", 0.95)]);
    let point = share(&arms[..1]).unwrap();
    // 97 of 119 at each of two loads.
    assert!((point.kept - 194.0 / 238.0).abs() < 1e-12);
    assert!((point.interval.0 - 0.7609).abs() < 1e-4 && (point.interval.1 - 0.8593).abs() < 1e-4);
    let results = tempfile::tempdir().unwrap();
    let file = ["ladders/figures/calibration.svg"];
    for (check, stale) in [(true, &file[..]), (false, &file), (true, &[])] {
        assert_eq!(figures(results.path(), &all, check).unwrap(), stale);
    }
    assert!(
        results
            .path()
            .join("ladders/figures/calibration.png")
            .exists()
    );
}

#[test]
fn ladders_of_several_engines_or_slos_are_refused() {
    let changed = |change: &dyn Fn(&mut Meta)| {
        let all = ladders(&BOTH, |folder| {
            for path in super::super::cell_files(folder).unwrap() {
                if folder.ends_with("ladder-80") {
                    let mut meta = Meta::read(&path).unwrap();
                    change(&mut meta);
                    meta.write(&path).unwrap();
                }
            }
        });
        Joint::of(&all).err().unwrap()
    };
    let mixed = changed(&|m| m.engine_fingerprint = Some("bbbb".into()));
    assert!(mixed.is::<MeasurementUnsound>(), "{mixed}");
    let other = changed(&|m| m.cell.slo_ms = Some(50));
    assert!(other.to_string().contains("differ in mix, SLO"), "{other}");
}
