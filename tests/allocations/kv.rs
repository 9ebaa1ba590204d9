//! The KV books allocate nothing for a decode step.

use cadenced::ids::SeqId;
use cadenced::logic::kv::{Demand, KvPool, Reservation};

use crate::counting::allocations;

const BATCH: u32 = 24;
const PROMPT: u32 = 100;
const TOTAL: u32 = 1000;

/// Admits a batch and decodes it to its end, token by token.
fn decode(pool: &mut KvPool, running: &mut Vec<SeqId>) {
    let demand = Demand {
        prefix: None,
        prompt_tokens: PROMPT,
        total_max: TOTAL,
    };
    for _ in 0..BATCH {
        running.push(pool.admit(&demand).unwrap().seq);
    }
    for tokens in PROMPT..=TOTAL {
        for seq in &*running {
            pool.grow(*seq, tokens).unwrap();
        }
    }
    for seq in &*running {
        pool.retire(*seq);
    }
    for seq in running.drain(..) {
        pool.reusable(seq);
    }
}

#[test]
fn a_warm_pool_allocates_nothing() {
    let reservation = Reservation::Paged {
        reserve_growth: true,
        watermark_blocks: 8,
    };
    let mut pool = KvPool::unified(BATCH * 1024, BATCH, reservation);
    let mut running = Vec::with_capacity(BATCH as usize);
    let before = allocations();
    decode(&mut pool, &mut running);
    assert!(allocations() > before, "tables grow the first time");
    let before = allocations();
    for _ in 0..3 {
        decode(&mut pool, &mut running);
    }
    assert_eq!(allocations() - before, 0);
}
