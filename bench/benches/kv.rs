//! What the KV books cost a decode step of 24 sequences, beside the same done with hash maps.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use cadenced::ids::SeqId;
use cadenced::logic::kv::block_pool::BlockId;
use cadenced::logic::kv::{BLOCK_TOKENS, Demand, KvPool, Reservation, SharedPrefix, blocks_for};
use criterion::{Criterion, criterion_group, criterion_main};

const BATCH: u32 = 24;
const PROMPT: u32 = 256;
const TOTAL: u32 = 1024;

/// The books as one would write them first.
#[derive(Default)]
struct Naive {
    tables: HashMap<SeqId, Vec<BlockId>>,
    references: HashMap<BlockId, u32>,
    free: Vec<BlockId>,
}

impl Naive {
    fn grow(&mut self, seq: SeqId, from: u32, to: u32) {
        let table = self.tables.entry(seq).or_default();
        if let Some(last) = table
            .last_mut()
            .filter(|_| !from.is_multiple_of(BLOCK_TOKENS))
            && self.references[last] > 1
        {
            *self.references.entry(*last).or_default() -= 1;
            *last = self.free.pop().unwrap();
            self.references.insert(*last, 1);
        }
        while (table.len() as u32) < blocks_for(to) {
            let block = self.free.pop().unwrap();
            self.references.insert(block, 1);
            table.push(block);
        }
    }

    fn retire(&mut self, seq: SeqId) {
        for block in self.tables.remove(&seq).unwrap_or_default() {
            let left = self.references.get_mut(&block).unwrap();
            *left -= 1;
            if *left == 0 {
                self.references.remove(&block);
                self.free.push(block);
            }
        }
    }
}

fn pool() -> KvPool {
    let reservation = Reservation::Paged {
        reserve_growth: true,
        watermark_blocks: 8,
    };
    KvPool::unified((BATCH + 8) * TOTAL, 256, reservation)
}

const DEMAND: Demand = Demand {
    prefix: None,
    prompt_tokens: PROMPT,
    total_max: TOTAL,
};

/// Times `steps` decode steps; the batch starts anew, untimed, when its replies are complete.
fn timed(steps: u64, mut start: impl FnMut(), mut step: impl FnMut(u32)) -> Duration {
    let (mut left, mut spent) = (steps, Duration::ZERO);
    while left > 0 {
        start();
        let some = left.min(u64::from(TOTAL - PROMPT)) as u32;
        let now = Instant::now();
        for tokens in PROMPT..PROMPT + some {
            step(tokens);
        }
        spent += now.elapsed();
        left -= u64::from(some);
    }
    spent
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("kv_step_of_24");
    group.bench_function("pool", |b| {
        b.iter_custom(|steps| {
            let books = std::cell::RefCell::new((pool(), Vec::new()));
            let start = || {
                let (pool, running) = &mut *books.borrow_mut();
                for seq in running.drain(..) {
                    pool.retire(seq);
                    pool.reusable(seq);
                }
                for _ in 0..BATCH {
                    let seq = pool.admit(&DEMAND).unwrap().seq;
                    pool.grow(seq, PROMPT).unwrap();
                    running.push(seq);
                }
            };
            timed(steps, start, |tokens| {
                let (pool, running) = &mut *books.borrow_mut();
                for seq in &*running {
                    pool.grow(*seq, tokens + 1).unwrap();
                }
                black_box(pool.usage());
            })
        });
    });
    group.bench_function("hash_maps", |b| {
        b.iter_custom(|steps| {
            let free = (0..(BATCH + 8) * blocks_for(TOTAL)).map(BlockId).collect();
            let books = std::cell::RefCell::new(Naive {
                free,
                ..Naive::default()
            });
            let start = || {
                let naive = &mut *books.borrow_mut();
                for seq in (0..BATCH).map(SeqId) {
                    naive.retire(seq);
                    naive.grow(seq, 0, PROMPT);
                }
            };
            timed(steps, start, |tokens| {
                let naive = &mut *books.borrow_mut();
                for seq in (0..BATCH).map(SeqId) {
                    naive.grow(seq, tokens, tokens + 1);
                }
                black_box(naive.free.len());
            })
        });
    });
    group.finish();
}

/// A request that finds most of its prompt cached is admitted beside 23 others, and ends.
fn admission(c: &mut Criterion) {
    let mut pool = pool();
    for _ in 1..BATCH {
        let seq = pool.admit(&DEMAND).unwrap().seq;
        pool.grow(seq, PROMPT).unwrap();
    }
    let cached = pool.admit(&DEMAND).unwrap().seq;
    pool.grow(cached, PROMPT).unwrap();
    pool.cache(cached, PROMPT);
    let prefix = Some(SharedPrefix {
        seq: cached,
        tokens: PROMPT - 1,
    });
    let demand = Demand { prefix, ..DEMAND };
    c.bench_function("kv_admit_with_prefix_and_retire", |b| {
        b.iter(|| {
            let lease = pool.admit(black_box(&demand)).unwrap();
            pool.retire(lease.seq);
            pool.reusable(lease.seq);
        });
    });
}

criterion_group!(benches, step, admission);
criterion_main!(benches);
