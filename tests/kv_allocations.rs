//! The KV books allocate nothing for a decode step.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cadenced::ids::SeqId;
use cadenced::logic::kv::{Demand, KvPool, Reservation};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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

// The only test of this file: another one's thread would be counted, too.
#[test]
fn a_warm_pool_allocates_nothing() {
    let reservation = Reservation::Paged {
        reserve_growth: true,
        watermark_blocks: 8,
    };
    let mut pool = KvPool::unified(BATCH * 1024, BATCH, reservation);
    let mut running = Vec::with_capacity(BATCH as usize);
    let before = ALLOCATIONS.load(Relaxed);
    decode(&mut pool, &mut running);
    assert!(
        ALLOCATIONS.load(Relaxed) > before,
        "tables grow the first time"
    );
    let before = ALLOCATIONS.load(Relaxed);
    for _ in 0..3 {
        decode(&mut pool, &mut running);
    }
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0);
}
