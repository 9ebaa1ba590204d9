//! Sequence ids: free → running → (cached →) retiring → free.
//!
//! An id retires while llama.cpp still has cells under it, and is free again when the step that removed them
//! is done. The one freed last is taken first: its block table has room already. O(1), nothing is allocated.

use super::block_pool::BlockId;
use crate::ids::SeqId;

/// A request that runs under an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running {
    /// The most tokens that it can come to hold.
    pub total_max: u32,
    /// The block in which it left the prefix that it was admitted with. The prefix cache's lock covers all of
    /// it, so it can't be evicted while the request runs, though the request itself has a copy.
    pub pinned: Option<BlockId>,
}

/// What an id is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    Running(Running),
    /// The prefix cache keeps it.
    Cached,
    Retiring,
}

/// See the module's text.
#[derive(Debug)]
pub struct SequenceIds {
    states: Vec<State>,
    free: Vec<SeqId>,
    cached: u32,
    retiring: u32,
}

impl SequenceIds {
    /// Ids 0 to `total` - 1, all free.
    #[must_use]
    pub fn new(total: u32) -> Self {
        Self {
            states: vec![State::Free; total as usize],
            free: (0..total).rev().map(SeqId).collect(),
            cached: 0,
            retiring: 0,
        }
    }

    /// The id that is taken next.
    #[must_use]
    pub fn next_free(&self) -> Option<SeqId> {
        self.free.last().copied()
    }

    /// Moves an id on to another state; of the free ones, only that which is taken next.
    pub fn set(&mut self, seq: SeqId, state: State) {
        let old = std::mem::replace(&mut self.states[seq.0 as usize], state);
        self.cached += u32::from(state == State::Cached);
        self.cached -= u32::from(old == State::Cached);
        self.retiring += u32::from(state == State::Retiring);
        self.retiring -= u32::from(old == State::Retiring);
        if old == State::Free {
            let taken = self.free.pop();
            assert_eq!(taken, Some(seq), "the free ids are taken in order");
        }
        if state == State::Free {
            self.free.push(seq);
        }
    }

    /// What an id is used for; one that does not exist is never used.
    #[must_use]
    pub fn get(&self, seq: SeqId) -> State {
        self.states
            .get(seq.0 as usize)
            .copied()
            .unwrap_or(State::Free)
    }

    /// Every id with its state.
    pub fn iter(&self) -> impl Iterator<Item = (SeqId, State)> + '_ {
        (0..).map(SeqId).zip(self.states.iter().copied())
    }

    /// The requests that run.
    pub fn running(&self) -> impl Iterator<Item = (SeqId, Running)> + '_ {
        self.iter().filter_map(|(seq, state)| match state {
            State::Running(running) => Some((seq, running)),
            _ => None,
        })
    }

    /// Ids altogether.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.states.len() as u32
    }

    /// Ids that can be taken.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Ids that the prefix cache keeps.
    #[must_use]
    pub fn cached(&self) -> u32 {
        self.cached
    }

    /// Ids that will be free.
    #[must_use]
    pub fn retiring(&self) -> u32 {
        self.retiring
    }

    /// Whether any request runs.
    #[must_use]
    pub fn any_running(&self) -> bool {
        self.free() + self.cached + self.retiring < self.total()
    }

    /// Invariant: the free list is the free ids, each once; the counts are right.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn assert_conserved(&self) {
        let count = |state| self.states.iter().filter(|s| **s == state).count() as u32;
        assert_eq!(count(State::Free), self.free(), "a sequence id leaked");
        assert_eq!(count(State::Cached), self.cached, "cached ids miscounted");
        assert_eq!(
            count(State::Retiring),
            self.retiring,
            "retiring ids miscounted"
        );
        for (i, seq) in self.free.iter().enumerate() {
            assert_eq!(
                self.get(*seq),
                State::Free,
                "{seq:?} is in use and on the free list"
            );
            assert!(
                !self.free[..i].contains(seq),
                "{seq:?} is on the free list twice"
            );
        }
    }
}
