//! The best-effort lane: behind the others in everything, and nobody's loss.

use proptest::prelude::*;

use super::world::World;
use super::*;
use crate::logic::kv::{KvPool, Reservation};
use crate::logic::request::{FinishReason, Terms};
use crate::logic::scheduler::policy::{Policy, StepOrder};
use crate::logic::wait_queue::QueueOrder;

const LANE: Terms = Terms {
    lane: Lane::BestEffort,
    work: 0,
    due: Timestamp::NEVER,
    drop_at: Timestamp::NEVER,
    alone: false,
};
const FAR: u64 = u64::MAX;

fn world(max_running: usize, blocks: u32, reserve_growth: bool) -> World {
    let reservation = Reservation::Paged {
        reserve_growth,
        watermark_blocks: 0,
    };
    let pool = KvPool::unified(blocks * 16, 4 * max_running as u32, reservation);
    let policy = Policy::Continuous {
        max_running,
        order: StepOrder::DecodeFirst,
    };
    World::new(policy, QueueOrder::Deadline, pool, true)
}

fn text(seed: i32, n: usize) -> Vec<i32> {
    (0..n as i32).map(|i| seed * 1000 + i).collect()
}

fn runs(w: &World, id: RequestId) -> bool {
    let mut running = w.engine.turn.scheduler().running().iter();
    running.any(|s| s.spec.id == id)
}

fn has_row(w: &World, id: RequestId) -> bool {
    w.engine.plan.rows.iter().any(|r| r.request == id)
}

#[test]
fn a_promised_newcomer_takes_a_seat_of_the_lane_in_the_next_step() {
    let mut w = world(2, 40, true);
    let lane = [1, 2].map(|seed| w.submit_on(LANE, &text(seed, 4), 30, 30, FAR));
    for _ in 0..5 {
        w.step();
    }
    let promised = w.submit(&text(3, 4), 5, 5, FAR);
    assert!(w.begin());
    assert!(runs(&w, promised) && has_row(&w, promised));
    assert!(
        runs(&w, lane[0]) && !runs(&w, lane[1]),
        "the last one yields"
    );
    w.finish(None);
    w.run_dry();
    assert_eq!(w.engine.seen.preempted, 1);
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn a_promised_newcomer_takes_the_memory_of_the_lane() {
    for reserve_growth in [true, false] {
        let mut w = world(4, 8, reserve_growth);
        let lane = [1, 2].map(|seed| w.submit_on(LANE, &text(seed, 40), 20, 20, FAR));
        for _ in 0..20 {
            w.step();
        }
        assert!(lane.iter().all(|id| runs(&w, *id)));
        let promised = w.submit(&text(3, 90), 5, 5, FAR);
        assert!(w.begin());
        assert!(has_row(&w, promised), "growth reserved: {reserve_growth}");
        w.finish(None);
        w.run_dry();
        assert!(w.engine.seen.preempted > 0);
        assert_eq!(w.ended.len(), 3);
        w.assert_texts();
        w.assert_nothing_leaked();
    }
}

/// The oldest request never yields, except to one that goes before it.
#[test]
fn under_pressure_the_lane_yields_first_though_it_was_first() {
    let mut w = world(2, 8, false);
    let lane = w.submit_on(LANE, &text(1, 16), 90, 90, FAR);
    for _ in 0..30 {
        w.step();
    }
    let promised = w.submit(&text(2, 16), 90, 90, FAR);
    while w.engine.seen.preempted == 0 {
        assert!(w.step(), "memory runs out");
    }
    assert!(runs(&w, promised) && !runs(&w, lane));
    w.run_dry();
    assert!(w.ended[&promised].1.len() == 90 && w.ended[&lane].1.len() == 90);
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn the_lane_never_preempts_and_never_starves_on_an_idle_engine() {
    let mut w = world(2, 8, true);
    for seed in 0..2 {
        w.submit(&text(seed, 16), 40, 40, FAR);
    }
    w.step();
    let urgent = w.submit_on(LANE, &text(5, 16), 40, 40, 0);
    while w.ended.is_empty() {
        assert!(!runs(&w, urgent), "there is no seat");
        w.step();
    }
    w.run_dry();
    assert_eq!(w.engine.seen.preempted, 0);
    assert_eq!(w.ended[&urgent].1.len(), 40);
}

#[test]
fn nobody_waits_for_a_prompt_that_the_lane_computes() {
    let mut w = world(3, 40, true);
    let prompt = text(1, 60);
    w.submit_on(LANE, &prompt, 3, 3, FAR);
    w.step();
    let promised = w.submit(&prompt, 3, 3, FAR);
    let follows = w.submit_on(LANE, &prompt, 3, 3, FAR);
    assert!(w.begin());
    assert!(has_row(&w, promised) && !runs(&w, follows));
    w.finish(None);
    w.run_dry();
    assert!(w.ended[&promised].1.len() == 3 && w.ended[&follows].1.len() == 3);
    w.assert_texts();
    w.assert_nothing_leaked();
}

/// A token of the world takes a microsecond, and a promised step may get a tenth longer.
#[test]
fn rows_of_the_lane_pause_until_promised_steps_have_earned_one() {
    let mut w = world(2, 40, true);
    let lane = w.submit_on(LANE, &text(1, 4), 90, 90, FAR);
    w.step();
    w.step();
    let promised = w.submit(&text(2, 4), 42, 42, FAR);
    w.step();
    let (mut steps, mut rows) = (0, 0);
    while w.begin() && runs(&w, promised) {
        steps += 1;
        rows += usize::from(has_row(&w, lane));
        assert!(runs(&w, lane), "it keeps its seat");
        w.finish(None);
    }
    assert!(steps > 40 && (2..=4).contains(&rows), "{rows} of {steps}");
    w.finish(None);
    assert!(has_row(&w, lane));
    w.run_dry();
    assert_eq!(w.engine.seen.preempted, 0);
    w.assert_texts();
}

/// A paused request writes nothing, and others may share all that it has computed.
#[test]
fn what_a_paused_request_has_computed_can_be_shared() {
    let mut w = world(3, 40, true);
    w.submit(&text(1, 4), 500, 500, FAR);
    for _ in 0..50 {
        w.step();
    }
    let paused = w.submit_on(LANE, &text(2, 32), 30, 30, FAR);
    while !w.started.contains(&paused) || w.prefills(paused) {
        assert!(w.step());
    }
    assert!(w.begin());
    assert!(!has_row(&w, paused), "nothing was earned for it yet");
    w.finish(None);
    let follows = w.submit(&text(2, 40), 3, 3, FAR);
    w.run_dry();
    assert_eq!(w.engine.seen.hits, 1);
    assert_eq!(w.ended[&follows].1.len(), 3);
    w.assert_texts();
    w.assert_nothing_leaked();
}

#[test]
fn who_is_to_be_given_up_ends_then_wherever_it_is() {
    let mut w = world(1, 40, true);
    let at = |us| Terms {
        drop_at: Timestamp(us),
        ..LANE
    };
    let running = w.submit_on(at(10), &text(1, 4), 50, 50, 10);
    let waiting = w.submit_on(at(5), &text(2, 4), 50, 50, 20);
    w.run_dry();
    let (outcome, said) = &w.ended[&running];
    assert_eq!(*outcome, Outcome::Finished(FinishReason::Slo));
    assert!((5..50).contains(&said.len()), "{said:?}");
    assert_eq!(w.ended[&waiting], (Outcome::Expired, vec![]));
    w.assert_texts();
    w.assert_nothing_leaked();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// With memory for all: at no step does a promised request wait while one of the lane has a seat, whatever is
    /// submitted and cancelled; and everything ends.
    #[test]
    fn nobody_waits_behind_the_lane_for_a_seat(
        max_running in 1usize..4,
        fifo: bool,
        decode_first: bool,
        ops in prop::collection::vec((0u8..4, any::<bool>(), 1u32..6, 0u64..9), 1..40),
    ) {
        let order = if decode_first { StepOrder::DecodeFirst } else { StepOrder::PrefillFirst };
        let policy = if fifo { Policy::Fifo } else { Policy::Continuous { max_running, order } };
        let pool = KvPool::unified(400 * 16, 40, Reservation::Request);
        let mut w = World::new(policy, QueueOrder::Deadline, pool, true);
        let mut submitted = 0;
        for (op, yields, n, x) in ops {
            match op {
                0 | 1 => {
                    let due = if x < 4 { Timestamp(w.now.0 + x) } else { Timestamp::NEVER };
                    let lane = if yields { Lane::BestEffort } else { Lane::Promised };
                    let terms = Terms { lane, due, ..Terms::default() };
                    w.submit_on(terms, &text(submitted as i32, 1 + n as usize), n, 5, x);
                    submitted += 1;
                }
                2 => w.cancel(RequestId(x)),
                _ => {}
            }
            for _ in 0..n {
                if !w.begin() {
                    break;
                }
                let waiting = w.engine.queue.waiting(Lane::Promised);
                let yielding = w.engine.turn.scheduler().of(Lane::BestEffort).count();
                prop_assert!(waiting == 0 || yielding == 0, "{} wait, {} have seats", waiting, yielding);
                w.finish(None);
            }
        }
        w.run_dry();
        prop_assert_eq!(w.ended.len(), submitted);
        w.assert_texts();
        w.assert_nothing_leaked();
    }
}
