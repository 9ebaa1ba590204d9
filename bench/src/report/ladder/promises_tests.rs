//! Counted by hand: see `write_promising`.

use super::super::tests::{promising, row, small};
use super::*;

#[test]
fn coverage_is_of_promises_that_were_seen_to_their_end() {
    let text = table(&promising());
    assert!(!text.contains("rung4-a"), "{text}");
    let row = row(&text, "| rung5-b | 0.95 | 100 |");
    // 120 of 200 were promised; one client left in time. Missed: 20 late ones, one whose client left after its bound,
    // one that failed. One more is late by the client's clock alone.
    assert_eq!((row[4], row[5]), ("200", "120 = 60.0%"));
    assert_eq!(row[6], "97 of 119 = 81.5% (73.6–87.5)");
    assert_eq!(row[7], "80.7%");
    // Of the 117 completed: 20 × 70 ms, 96 × 50 ms, 61 ms.
    assert_eq!((row[8], row[9]), ("0.060", "0.054"));
    // Completed within 100 ms: those, the explored and half of the best-effort ones, in 1.99 s.
    assert_eq!((row[10], row[11]), ("73.9", "64.0"));
}

#[test]
fn what_got_no_promise_is_counted_apart_and_once() {
    let ladder = promising();
    let text = table(&ladder);
    let others = text.split_once("The others").unwrap().1;
    let row = row(others, "| rung5-b | 100 |");
    assert_eq!(
        row[3..],
        [
            "1",
            "20",
            "0",
            "10",
            "0",
            "10",
            "0",
            "0",
            "10 × queue_full, 10 × slo_infeasible, 20 × slo_overloaded",
            ""
        ]
    );
    for point in ladder.points_of("rung5-b") {
        let t = ladder.tally(&point);
        let lane = t.lane.in_time + t.lane.late + t.lane.dropped + t.lane.lost;
        let refused: usize = t.refused.values().sum();
        let all = t.promised() + t.explored + t.observed + lane + refused + t.undecided;
        assert_eq!((all, t.offered), (200, 200));
    }
}

#[test]
fn another_slo_moves_the_lane_and_no_promise() {
    let parent = tempfile::tempdir().unwrap();
    let folder = super::super::tests::write_promising(parent.path(), "ladder", 0.95);
    let ladder = Ladder::read(&folder, Some(0.03)).unwrap();
    let point = ladder.points_of("rung5-b").last().unwrap();
    let t = ladder.tally(&point);
    assert_eq!((t.lane.in_time, t.lane.late, t.kept), (0, 10, 97));
}

#[test]
fn rungs_without_promises_have_no_row() {
    assert_eq!(table(&small()), "No rung promises anything.\n");
    assert_eq!(promising().deciding(), ["rung5-b"]);
    assert_eq!(promising().levels_of("rung5-b"), [0.95]);
}
