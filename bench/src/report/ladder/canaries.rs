//! The machine's pace while a sweep ran: the same generation before and after each cell. How far it moved over the sweep,
//! and between the rungs, where it could favour one.

use super::Ladder;
use crate::report::markdown::Table;

pub fn table(ladder: &Ladder) -> String {
    let Some(songs) = &ladder.songs else {
        return String::new();
    };
    let all = &songs.over_the_sweep_ms;
    let mut t = Table::new(&["canary", "ms a token"]);
    t.row([
        "over the sweep".into(),
        format!("{:.2} ({:.2}–{:.2})", all.median, all.min, all.max),
    ]);
    for (rung, mean_ms) in &songs.mean_by_rung_ms {
        t.row([format!("{rung}, mean"), format!("{mean_ms:.2}")]);
    }
    t.text
        + &format!(
            "\n{} songs; the highest mean of a rung is {:.0}% above the lowest.\n",
            songs.n,
            100.0 * songs.range_between_rungs
        )
}

#[cfg(test)]
mod tests {
    use super::super::tests::small;
    use super::*;
    use crate::ladder::journal::Songs;

    #[test]
    fn it_says_how_far_the_machine_moved_and_whom_it_favoured() {
        let mut ladder = small();
        assert_eq!(table(&ladder), "", "not a sweep");
        let songs = r#"{"n": 4, "over_the_sweep_ms": {"median": 6.0, "min": 5.5, "max": 8.25}, "range": 0.5,
            "mean_by_rung_ms": {"rung1": 6.0, "rung2": 6.6}, "range_between_rungs": 0.1}"#;
        ladder.songs = Some(serde_json::from_str::<Songs>(songs).unwrap());
        let text = table(&ladder);
        assert!(
            text.contains("| over the sweep | 6.00 (5.50–8.25) |"),
            "{text}"
        );
        assert!(text.contains("| rung2, mean | 6.60 |"), "{text}");
        assert!(
            text.contains("4 songs; the highest mean of a rung is 10% above the lowest."),
            "{text}"
        );
    }
}
