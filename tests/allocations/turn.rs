//! A decode step allocates nothing in the logic: not to decide, not in the memory's books.

use cadenced::ids::TokenId;
use cadenced::logic::kv::{KvPool, Reservation};
use cadenced::logic::request::{Lane, Terms};
use cadenced::logic::scheduler::StepLimits;
use cadenced::logic::scheduler::step::{RowResult, Work};
use cadenced::logic::time::Timestamp;

use crate::counting::allocations;
use crate::turn_driver::{Driver, Talk};

const BATCH: u64 = 24;
const TOTAL: u32 = 1000;

/// A step in which every prompt or reply goes on; false when there is none.
fn step(d: &mut Driver, results: &mut Vec<RowResult>) -> bool {
    if !d.begin(&mut |id, _, _| panic!("{id} has ended")) {
        return false;
    }
    results.clear();
    results.extend(
        d.engine
            .plan
            .rows
            .iter()
            .map(|row| match row.work.samples() {
                Some(index) => RowResult::Sampled(TokenId(index as i32)),
                None => RowResult::Advanced,
            }),
    );
    d.finish(results);
    true
}

/// Counts what `steps` steps of a batch allocate that has decoded for a while.
fn allocated(seats: usize, caching: bool, yielding: u64, steps: u32) -> u64 {
    let reservation = Reservation::Paged {
        reserve_growth: true,
        watermark_blocks: 8,
    };
    let pool = KvPool::unified(BATCH as u32 * 1024, 2 * BATCH as u32, reservation);
    let limits = StepLimits {
        prefill_budget: 256,
        n_batch: 512,
        lane_slowdown: 0.05,
    };
    let mut d = Driver::new(seats, limits, pool, caching);
    for id in 0..BATCH {
        // Lengths of which no two reach the end of a block together, but for a few.
        let prompt = (0..100 + id).map(|i| TokenId((1000 * id + i) as i32));
        let says = TOTAL - 100 - id as u32;
        d.submit(
            id,
            Talk::new(prompt.collect(), says),
            says,
            Timestamp::NEVER,
            // Beside promises that are looked at in every step and can spare enough.
            match id < yielding {
                true => Terms {
                    lane: Lane::BestEffort,
                    ..Terms::default()
                },
                false => Terms {
                    due: Timestamp(1_000_000_000),
                    ..Terms::default()
                },
            },
        );
    }
    let mut results = Vec::new();
    // Beyond 32 blocks, so that no table grows between 33 and 64.
    let warm = |d: &Driver| {
        let running = d.engine.turn.scheduler().running();
        running.len() == BATCH as usize && running.iter().all(|s| s.num_computed > 33 * 16)
    };
    while !warm(&d) {
        assert!(step(&mut d, &mut results));
    }
    let free = d.engine.pool.usage().blocks_free;
    let before = allocations();
    for _ in 0..steps {
        assert!(step(&mut d, &mut results));
        let decodes = |w: Work| matches!(w, Work::Decode { .. });
        assert_eq!(
            d.engine
                .plan
                .rows
                .iter()
                .filter(|r| decodes(r.work))
                .count() as u64,
            BATCH
        );
    }
    let allocated = allocations() - before;
    assert_eq!(
        free - d.engine.pool.usage().blocks_free,
        BATCH as u32 * steps / 16,
        "every reply has grown"
    );
    allocated
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    for (seats, caching, yielding) in [
        (24, true, 0),
        (24, false, 0),
        (32, true, 0),
        (24, true, 9),
        (24, false, 24),
    ] {
        let allocated = allocated(seats, caching, yielding, 320);
        let case = format!("{seats} seats, caching: {caching}, {yielding} yield");
        assert_eq!(allocated, 0, "{case}");
    }
}
