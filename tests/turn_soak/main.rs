//! A soak in virtual time: requests that share beginnings go through a pool too small for them, their clients
//! leave at any moment, rows fail; and nothing is left of them.
//!
//! Every step is carried out on a memory of cells as llama.cpp has them, in which each row must find its own
//! context and no other, and which must never be fuller than it is large.

#[path = "../common/dice.rs"]
mod dice;
mod ends;
mod memory;
mod rest;
#[path = "../turn_driver/mod.rs"]
mod turn_driver;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::kv::{KvPool, Reservation};
use cadenced::logic::request::{Lane, Outcome, Terms};
use cadenced::logic::scheduler::step::{RowResult, Work};
use cadenced::logic::scheduler::{Sequence, StepLimits};
use cadenced::logic::time::Timestamp;
use dice::Dice;
use ends::Ends;
use memory::Memory;
use turn_driver::{Driver, Talk, next_token};

const SEATS: usize = 6;
const IDS: u32 = 12;
/// Cells: of the whole pool, or of each stream.
const CELLS: u32 = 24 * 16;
const SLAB: u32 = 8 * 16;
const MAX_TOKENS: u32 = 64;

struct Soak {
    driver: Driver,
    memory: Memory,
    dice: Dice,
    ends: Ends,
    /// Of the last requests: how their clients leave.
    clients: Vec<(RequestId, Rc<Cell<bool>>)>,
    results: Vec<RowResult>,
    memory_only: u64,
    /// Steps without a row for one of the best-effort lane that could have had one.
    paused: u64,
    /// What was cancelled where.
    waiting: u64,
    deferred: u64,
    running: u64,
}

impl Soak {
    fn new(pool: KvPool, memory: Memory, seed: u64) -> Self {
        let limits = StepLimits {
            prefill_budget: 8,
            n_batch: 16,
            lane_slowdown: 0.05,
        };
        Self {
            driver: Driver::new(SEATS, limits, pool, true),
            memory,
            dice: Dice(seed),
            ends: Ends::default(),
            clients: Vec::new(),
            results: Vec::new(),
            memory_only: 0,
            paused: 0,
            waiting: 0,
            deferred: 0,
            running: 0,
        }
    }

    /// One of four beginnings, as much of it as the dice say, then one of three endings.
    fn submit(&mut self) {
        let dice = &mut self.dice;
        let (system, ending) = (
            1000 * dice.below(4) as i32,
            9000 + 100 * dice.below(3) as i32,
        );
        let shared = [0, 15, 16, 17, 32, 47, 48][dice.below(7) as usize];
        let own = i32::from(shared == 0) + dice.below(12) as i32;
        let tokens = (0..shared)
            .map(|i| system + i)
            .chain((0..own).map(|i| ending + i));
        let prompt: Arc<[TokenId]> = tokens.map(TokenId).collect();
        let talk = Talk::new(prompt, 1 + dice.below(MAX_TOKENS.into()) as u32);
        let deadline = match dice.below(3) == 0 {
            true => Timestamp::NEVER,
            false => Timestamp(self.driver.now.0 + dice.below(200_000)),
        };
        let id = RequestId(self.ends.ended.len() as u64);
        self.ends.ended.push(false);
        if self.clients.len() == 12 {
            self.clients.remove(0);
        }
        self.clients.push((id, Rc::clone(&talk.left)));
        // Every third in the best-effort lane; some with a promise too tight to spare anything, some to be given up.
        let now = self.driver.now.0;
        let mut soon = |one_in: u64| match self.dice.below(one_in) {
            0 => Timestamp(now + self.dice.below(300_000)),
            _ => Timestamp::NEVER,
        };
        let (due, drop_at) = (soon(2), soon(6));
        let lane = Lane::ALL[usize::from(self.dice.below(3) == 0)];
        let terms = Terms {
            lane,
            due,
            drop_at,
            ..Terms::default()
        };
        self.driver.submit(id.0, talk, MAX_TOKENS, deadline, terms);
    }

    /// A client leaves, wherever its request is; whether the engine is told or must notice is chance.
    fn leave(&mut self) {
        let (id, left) = &self.clients[self.dice.below(self.clients.len() as u64) as usize];
        left.set(true);
        if self.dice.below(2) == 0 {
            return;
        }
        if let Some((_, talk)) = self.driver.engine.queue.remove(*id) {
            self.waiting += 1;
            self.ends.take(*id, Outcome::Cancelled, &talk);
            return;
        }
        let deferred = self.driver.engine.turn.deferred();
        let here = self.driver.engine.turn.cancel(*id);
        let was_deferred = self.driver.engine.turn.deferred() < deferred;
        self.deferred += u64::from(was_deferred);
        self.running += u64::from(here && !was_deferred);
    }

    /// One step, if there is anything to do.
    fn step(&mut self) -> bool {
        let (driver, ends) = (&mut self.driver, &mut self.ends);
        if !driver.begin(&mut |id, outcome, talk| ends.take(id, outcome, &talk)) {
            return false;
        }
        // Clients that leave while the model computes.
        if self.dice.below(20) == 0 {
            self.leave();
        }
        let driver = &mut self.driver;
        for op in &driver.engine.plan.ops {
            self.memory.carry_out(*op);
        }
        self.memory_only += u64::from(driver.engine.plan.rows.is_empty());
        self.results.clear();
        for row in &driver.engine.plan.rows {
            let s = &driver.engine.turn.scheduler().running()[row.index];
            let (hashes, at) = (&s.payload.hashes, row.work.position() as usize);
            self.memory.assert_holds(row.seq, hashes, at);
            if self.dice.below(2000) == 0 {
                self.results.push(RowResult::Failed(-1));
                continue;
            }
            for hash in &hashes[at..at + row.work.tokens() as usize] {
                self.memory.write(row.seq, *hash);
            }
            let samples = row.work.samples();
            self.results
                .push(samples.map_or(RowResult::Advanced, |index| {
                    // Who was cancelled has not heard the last token.
                    let heard = index as usize == s.payload.generated.len();
                    assert!(heard || driver.engine.turn.is_due());
                    let last = self.memory.sequences[row.seq.0 as usize].last();
                    RowResult::Sampled(next_token(self.memory.hashes[last.copied().unwrap_or(0)]))
                }));
        }
        let prefills = |w: Work| matches!(w, Work::Prefill { .. });
        let cost = 1000
            + 100
                * driver
                    .engine
                    .plan
                    .rows
                    .iter()
                    .filter(|r| prefills(r.work))
                    .count() as u64;
        let engine = &driver.engine;
        let pauses = |s: &Sequence<Talk>| {
            let has_row = engine.plan.rows.iter().any(|r| r.request == s.spec.id);
            !s.prefilling() && !has_row
        };
        let paused = engine.turn.scheduler().of(Lane::BestEffort).any(pauses);
        self.paused += u64::from(paused);
        driver.finish(&self.results);
        driver.step_us = cost as f64;
        driver.now = Timestamp(driver.now.0 + cost);
        if driver.steps.is_multiple_of(64) {
            driver.engine.pool.assert_conserved();
            driver.engine.tree.assert_invariants();
        }
        true
    }

    /// Submits requests until there have been `n`, with a rest after every `rest`.
    fn run(&mut self, n: usize, rest: usize) {
        while self.ends.ended.len() < n {
            if self.driver.engine.queue.len() < 12 && self.dice.below(3) == 0 {
                for _ in 0..self.dice.below(5) {
                    self.submit();
                }
            }
            if !self.clients.is_empty() && self.dice.below(20) == 0 {
                self.leave();
            }
            self.step();
            if self.ends.ended.len() % rest < 4 {
                self.come_to_rest();
            }
        }
        self.come_to_rest();
    }

    /// Lets all that is there end, and asserts that all memory is free or cached.
    fn come_to_rest(&mut self) {
        // Far more steps than what is there can need.
        for _ in 0..100_000 {
            if !self.step() && self.driver.engine.queue.is_empty() {
                return self.assert_at_rest();
            }
        }
        panic!(
            "work is left that nothing advances: {} wait",
            self.driver.engine.queue.len()
        );
    }
}

/// Half of `n` requests in a pool that is shared, half in streams.
fn soak(n: usize) {
    let paged = Reservation::Paged {
        reserve_growth: false,
        watermark_blocks: 1,
    };
    for (pool, memory) in [
        (
            KvPool::unified(CELLS, IDS, paged),
            Memory::new(IDS, CELLS, None),
        ),
        (
            KvPool::streams(IDS * SLAB, IDS),
            Memory::new(IDS, IDS * SLAB, Some(SLAB)),
        ),
    ] {
        let streams = memory.is_in_streams();
        let mut soak = Soak::new(pool, memory, 4);
        soak.run(n / 2, 5000);
        soak.assert_nothing_leaked();
        let (seen, ends) = (soak.driver.engine.seen, &soak.ends);
        println!(
            "streams: {streams}: {seen:?}, {} of memory alone, {} that followed; finished {}, cancelled {} (waiting {}, deferred {}, \
             running {}, the rest noticed), failed {}, given up {} and {}; {} with a pause; {} copies on write",
            soak.memory_only,
            soak.driver.followed,
            ends.finished,
            ends.cancelled,
            soak.waiting,
            soak.deferred,
            soak.running,
            ends.failed,
            ends.cut,
            ends.expired,
            soak.paused,
            soak.driver.engine.pool.usage().copies,
        );
        let at_all = [
            seen.hits,
            seen.deferred,
            seen.evicted,
            seen.starved,
            soak.memory_only,
            soak.driver.followed,
            soak.paused,
        ];
        let ended = [
            ends.finished,
            ends.failed,
            ends.cut,
            ends.expired,
            soak.waiting,
            soak.deferred,
            soak.running,
        ];
        assert!(at_all.iter().chain(&ended).all(|n| *n > 0), "{seen:?}");
        let noticed = soak.waiting + soak.deferred + soak.running;
        assert!(ends.cancelled > noticed, "who leaves in silence is noticed");
        assert!(seen.preempted > 0, "{seen:?}");
    }
}

#[test]
fn fifty_thousand_requests_leave_nothing_behind() {
    soak(50_000);
}

#[test]
#[ignore = "the same at length"]
fn a_million_requests_leave_nothing_behind() {
    soak(1_000_000);
}
