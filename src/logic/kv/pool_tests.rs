//! The policies by example; then the books, at random, against llama.cpp's cells as they are.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use world::{Reached, World, hit};

#[path = "pool_tests/cells.rs"]
mod cells;
#[path = "pool_tests/expected.rs"]
mod expected;
#[path = "pool_tests/operations.rs"]
mod operations;
#[path = "pool_tests/world.rs"]
mod world;

fn paged(reserve_growth: bool, watermark_blocks: u32) -> Reservation {
    Reservation::Paged {
        reserve_growth,
        watermark_blocks,
    }
}

fn unified(blocks: u32, reservation: Reservation) -> KvPool {
    KvPool::unified(blocks * BLOCK_TOKENS, 4, reservation)
}

fn demand(prompt_tokens: u32, total_max: u32) -> Demand {
    Demand {
        prefix: None,
        prompt_tokens,
        total_max,
    }
}

fn never(blocks: u32) -> Shortfall {
    Shortfall {
        blocks,
        sequences: 0,
        attainable: false,
    }
}

fn evict(blocks: u32) -> Shortfall {
    Shortfall {
        blocks,
        sequences: 0,
        attainable: true,
    }
}

/// A cached sequence of `tokens` tokens.
fn cached(pool: &mut KvPool, tokens: u32) -> SeqId {
    let seq = pool.admit(&demand(tokens, tokens)).unwrap().seq;
    pool.grow(seq, tokens).unwrap();
    assert!(pool.cache(seq, tokens));
    seq
}

/// A running sequence whose prompt of `tokens` + 1 begins with the first `tokens` tokens of `seq`.
fn hit_of(pool: &mut KvPool, seq: SeqId, tokens: u32, total_max: u32) -> SeqId {
    let hit = Demand {
        prefix: Some(SharedPrefix { seq, tokens }),
        ..demand(tokens + 1, total_max)
    };
    pool.admit(&hit).unwrap().seq
}

#[test]
fn a_slab_has_room_for_the_longest_reply_and_a_request_for_its_own() {
    let mut pool = unified(16, Reservation::Contiguous { output_tokens: 100 });
    let held = pool.admit(&demand(20, 30)).map(|l| l.blocks);
    assert_eq!(held, Ok(blocks_for(120)));
    let seq = pool.admit(&demand(20, 30)).unwrap().seq;
    assert_eq!(pool.admit(&demand(20, 30)), Err(never(8)));
    pool.grow(seq, 24).unwrap();
    assert!(pool.usage().fragmentation() > 0.9);

    let mut pool = unified(
        16,
        Reservation::Contiguous {
            output_tokens: 1000,
        },
    );
    assert_eq!(
        pool.admit(&demand(20, 30)).map(|l| l.blocks),
        Ok(16),
        "the pool bounds it"
    );
    let mut pool = unified(16, Reservation::Request);
    assert_eq!(pool.admit(&demand(20, 30)).map(|l| l.blocks), Ok(2));
    assert_eq!(
        pool.admit(&demand(20, 257)),
        Err(never(3)),
        "more than the pool"
    );
}

#[test]
fn the_watermark_is_kept_for_those_that_run() {
    let mut pool = unified(10, paged(false, 4));
    let first = pool.admit(&demand(112, 113)).unwrap();
    assert_eq!((first.blocks, pool.usage().blocks_free), (7, 3));
    assert_eq!(pool.admit(&demand(16, 17)), Err(never(2)));
    pool.retire(first.seq);
    assert_eq!(pool.admit(&demand(16, 17)).map(|l| l.blocks), Ok(1));
}

#[test]
fn promised_growth_may_rely_on_what_is_cached() {
    let mut pool = unified(4, paged(true, 0));
    let prefix = cached(&mut pool, 32);
    let seq = pool.admit(&demand(16, 64)).unwrap().seq;
    assert_eq!(
        pool.admit(&demand(16, 17)),
        Err(never(2)),
        "nothing is left to promise"
    );
    pool.grow(seq, 32).unwrap();
    assert_eq!(pool.grow(seq, 33), Err(evict(1)));
    assert!(pool.truncate(prefix, 16));
    pool.grow(seq, 33).unwrap();
    assert_eq!(pool.grow(seq, 49), Err(evict(1)));
    assert!(pool.retire(prefix));
    pool.grow(seq, 64).unwrap();
    pool.assert_conserved();
}

#[test]
fn a_request_that_grows_without_a_promise_may_need_another_preempted() {
    let mut pool = unified(3, paged(false, 0));
    let oldest = pool.admit(&demand(16, 48)).unwrap().seq;
    let youngest = pool.admit(&demand(32, 48)).unwrap().seq;
    assert_eq!(pool.grow(oldest, 48), Err(never(2)));
    assert!(pool.retire(youngest), "preempted");
    pool.grow(oldest, 48).unwrap();
}

#[test]
fn a_full_hit_copies_its_last_block_and_pins_the_one_it_left() {
    let mut pool = unified(5, paged(true, 0));
    let seq = cached(&mut pool, 32);
    let hit = Demand {
        prefix: Some(SharedPrefix { seq, tokens: 31 }),
        ..demand(32, 48)
    };
    let lease = pool.admit(&hit).unwrap();
    assert_eq!(lease.blocks, 2);
    let usage = pool.usage();
    assert_eq!((usage.blocks_free, usage.copies), (2, 1));
    assert_eq!(
        usage.blocks_cached, 0,
        "its lock covers the second block to the end"
    );
    pool.retire(lease.seq);
    assert_eq!(pool.usage().blocks_cached, 2);
}

#[test]
fn a_prefix_that_stands_in_its_own_way_can_be_evicted() {
    let mut pool = unified(3, paged(true, 0));
    let seq = cached(&mut pool, 32);
    let hit = Demand {
        prefix: Some(SharedPrefix { seq, tokens: 31 }),
        ..demand(32, 48)
    };
    assert_eq!(
        pool.admit(&hit),
        Err(never(1)),
        "the block it leaves, and three of its own"
    );
    let alone = Demand {
        prefix: None,
        ..hit
    };
    assert_eq!(pool.admit(&alone), Err(evict(1)));
    assert!(pool.truncate(seq, 16));
    pool.admit(&alone).unwrap();
}

#[test]
fn who_shares_with_what_runs_keeps_its_part_when_that_leaves() {
    let mut pool = unified(8, paged(true, 0));
    let source = pool.admit(&demand(32, 64)).unwrap().seq;
    pool.grow(source, 40).unwrap();
    let hit = hit_of(&mut pool, source, 31, 48);
    let usage = pool.usage();
    assert_eq!((usage.blocks_free, usage.copies), (4, 1));
    assert!(pool.retire(source));
    assert_eq!(
        (pool.usage().blocks_free, pool.usage().blocks_cached),
        (5, 0),
        "the block it copied is locked to the end"
    );
    pool.grow(hit, 48).unwrap();
    pool.retire(hit);
    assert_eq!(pool.usage().blocks_free, 8);
}

#[test]
fn a_stream_holds_its_slab_and_its_id_comes_back_after_a_step() {
    let mut pool = KvPool::streams(8 * BLOCK_TOKENS, 2);
    let seq = pool.admit(&demand(20, 64)).unwrap().seq;
    pool.grow(seq, 20).unwrap();
    let copy = hit_of(&mut pool, seq, 16, 20);
    assert!(pool.cache(copy, 20));
    assert_eq!(
        (pool.usage().blocks_free, pool.usage().blocks_cached),
        (0, 4)
    );
    let first = Shortfall {
        blocks: 0,
        sequences: 1,
        attainable: true,
    };
    assert_eq!(pool.admit(&demand(20, 64)), Err(first));
    assert!(pool.retire(copy));
    assert_eq!(
        pool.admit(&demand(20, 64)),
        Err(evict(0)),
        "only the step must end"
    );
    assert!(pool.reusable(copy));
    assert_eq!(
        pool.admit(&demand(20, 65)),
        Err(never(1)),
        "more than a slab"
    );
    assert_eq!(pool.admit(&demand(20, 64)).map(|l| l.seq), Ok(copy));
}

fn pool_of(policy: u8, blocks: u32, sequences: u32) -> KvPool {
    let cells = blocks * BLOCK_TOKENS + 5;
    let reservation = match policy {
        0 => return KvPool::streams(cells * 2, sequences),
        1 => Reservation::Contiguous { output_tokens: 41 },
        2 => Reservation::Request,
        3 => paged(false, 0),
        4 => paged(false, 2),
        5 => paged(true, 0),
        _ => paged(true, 2),
    };
    KvPool::unified(cells, sequences, reservation)
}

#[test]
fn the_books_are_never_behind_the_cells() {
    let mut config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // Proptest's own default: nobody asked for another number.
    if config.cases == 256 {
        config.cases = 20_000;
    }
    let reached = Reached::default();
    let ops = prop::collection::vec((0u8..11, any::<u8>(), any::<u8>(), any::<u8>()), 0..100);
    TestRunner::new(config)
        .run(
            &(0u8..7, 2u32..14, 2u32..8, ops),
            |(policy, blocks, sequences, ops)| {
                let pool = pool_of(policy, blocks, sequences);
                let mut world = World::new(pool, sequences, &reached);
                hit(&reached.cases);
                for op in ops {
                    hit(&reached.operations);
                    world.apply(op);
                    world.check();
                }
                world.finish();
                Ok(())
            },
        )
        .unwrap();
    for (what, count) in [
        ("cases", &reached.cases),
        ("operations", &reached.operations),
        ("admitted", &reached.admitted),
        ("a hit", &reached.hits),
        ("a hit on what runs", &reached.hits_on_running),
        ("its source left first", &reached.sources_left),
        ("evicted for an admission", &reached.evicted_for_admission),
        ("exhausted", &reached.exhausted),
        ("no id was free", &reached.no_id),
        ("truncated", &reached.truncated),
        ("copied on write", &reached.copies),
        ("grown after evicting", &reached.grown_after_evicting),
        (
            "promised growth only after evicting",
            &reached.promised_after_evicting,
        ),
        ("preempted", &reached.preempted),
    ] {
        println!("{what}: {}", count.get());
        assert!(count.get() > 0, "the run never came to: {what}");
    }
}

/// What runs is not what eviction could free: a prefix of it takes nothing away from that.
#[test]
fn a_prefix_may_be_that_of_a_running_sequence() {
    let shares = |seq| Demand {
        prefix: Some(SharedPrefix { seq, tokens: 16 }),
        ..demand(20, 64)
    };
    let mut pool = KvPool::streams(8 * BLOCK_TOKENS, 2);
    let runs = pool.admit(&demand(20, 64)).unwrap().seq;
    pool.grow(runs, 20).unwrap();
    assert!(pool.admit(&shares(runs)).is_ok(), "into the other slab");

    let mut pool = KvPool::unified(20 * BLOCK_TOKENS, 2, Reservation::Request);
    let [runs, kept] = [0, 1].map(|_| {
        let seq = pool.admit(&demand(20, 64)).unwrap().seq;
        pool.grow(seq, 20).unwrap();
        seq
    });
    assert!(pool.cache(kept, 16));
    let short = pool.admit(&shares(runs)).unwrap_err();
    assert!(short.attainable && short.sequences == 1, "{short:?}");
}
