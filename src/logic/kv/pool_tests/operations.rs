//! Random operations, and what must hold after each.

use super::super::*;
use super::world::World;

impl World<'_> {
    /// One random operation.
    pub fn apply(&mut self, (op, a, b, c): (u8, u8, u8, u8)) {
        let (a, b, c) = (u32::from(a), u32::from(b), u32::from(c));
        let pick = |n: usize| (n > 0).then(|| a as usize % n.max(1));
        match op {
            0..=2 => {
                // Of a cached sequence, or the whole blocks that one which runs has computed.
                let running = self.running.iter().map(|r| (r.seq, BLOCK_TOKENS));
                let cached = self.cached.iter().map(|seq| (*seq, 1));
                let sources: Vec<_> = running.chain(cached).collect();
                let source = pick(sources.len() + 1).and_then(|i| sources.get(i).copied());
                let prefix = source.and_then(|(seq, grain)| {
                    let tokens = self.cells.tokens(seq) / grain * grain;
                    (tokens > 0).then(|| SharedPrefix {
                        seq,
                        tokens: tokens - b % 20 % tokens,
                    })
                });
                let shared = prefix.map_or(0, |p| p.tokens);
                let prompt_tokens = shared + 1 + c % 30;
                let total_max = prompt_tokens + 1 + b % 60;
                let before = self.running.len();
                self.admit(Demand {
                    prefix,
                    prompt_tokens,
                    total_max,
                });
                if c % 4 > 0 && self.running.len() > before {
                    // Its whole prompt in one step.
                    self.grow(before, prompt_tokens);
                }
            }
            3..=5 => {
                if let Some(i) = pick(self.running.len()) {
                    self.grow(i, 1 + b % 40);
                }
            }
            6 => {
                if let Some(i) = pick(self.running.len()) {
                    let seq = self.running.remove(i).seq;
                    let tokens = self.cells.tokens(seq);
                    // What others have locked of it stays.
                    let locked = self.locked_blocks(seq) * BLOCK_TOKENS;
                    let tokens = (tokens - (b % 20).min(tokens)).max(locked);
                    assert!(self.pool.cache(seq, tokens));
                    self.cells.seq_rm(seq, tokens);
                    self.cached.push(seq);
                }
            }
            7 => {
                if let Some(seq) = pick(self.cached.len()).map(|i| self.cached[i]) {
                    self.truncate(seq, b.max(self.locked_blocks(seq) * BLOCK_TOKENS));
                }
            }
            8 => {
                if let Some(i) = pick(self.running.len()) {
                    let seq = self.running.remove(i).seq;
                    self.retire(seq);
                }
            }
            9 if b % 8 == 0 => {
                self.evict(u32::MAX, u32::MAX);
                if self.shares_blocks() {
                    assert_eq!(
                        self.pool.usage().blocks_cached,
                        0,
                        "evictable, and not evicted"
                    );
                }
            }
            _ => self.step_done(),
        }
    }

    /// All that runs can end, the oldest first; then nothing is left.
    pub fn finish(mut self) {
        while let Some(r) = self.running.first().copied() {
            while self.cells.tokens(r.seq) < r.demand.total_max && self.grow(0, 1) {}
            self.check();
            self.running.remove(0);
            self.retire(r.seq);
        }
        self.evict(u32::MAX, u32::MAX);
        self.step_done();
        self.check();
        let u = self.pool.usage();
        assert_eq!(
            (u.blocks_free, u.sequences_free),
            (u.blocks_total, u.sequences_total)
        );
        assert_eq!((u.blocks_cached, u.sequences_cached, u.tokens), (0, 0, 0));
        self.reached
            .copies
            .set(self.reached.copies.get() + u.copies);
    }

    pub fn check(&self) {
        self.pool.assert_conserved();
        let u = self.pool.usage();
        let held = u64::from(u.blocks_total - u.blocks_free) * u64::from(BLOCK_TOKENS);
        assert!(
            u64::from(self.cells.used()) <= u.tokens,
            "the books hold less than the cells do"
        );
        assert!(u.tokens <= held && (0.0..=1.0).contains(&u.fragmentation()));
        let in_use: Vec<_> = self
            .running
            .iter()
            .map(|r| r.seq)
            .chain(self.cached.iter().copied())
            .collect();
        for &a in &in_use {
            assert_eq!(
                self.pool.tables[a.0 as usize].tokens(),
                self.cells.tokens(a)
            );
            for &b in &in_use {
                self.shared_blocks_are_shared_cells(a, b);
            }
        }
    }

    /// Whoever shares a block shares the cells in it, as far as both go.
    pub fn shared_blocks_are_shared_cells(&self, a: SeqId, b: SeqId) {
        for (i, (x, y)) in self.blocks(a).iter().zip(self.blocks(b)).enumerate() {
            let cells = |s| self.cells.of(s).iter().skip(i * BLOCK_TOKENS as usize);
            let both = cells(a).zip(cells(b)).take(BLOCK_TOKENS as usize);
            if x == y {
                assert!(both.into_iter().all(|(c, d)| c == d), "{x:?} is two blocks");
            }
        }
    }
}
