//! llama.cpp's memory, as far as the logic can tell.

use cadenced::ids::SeqId;
use cadenced::logic::scheduler::step::MemoryOp;

/// The model's memory: which cells each sequence has, and the hash of the context up to each cell.
pub struct Memory {
    pub sequences: Vec<Vec<usize>>,
    pub hashes: Vec<u64>,
    /// How many sequences share each cell.
    shared_by: Vec<u32>,
    free: Vec<usize>,
    /// Where sequences have cells of their own: how many.
    slab: Option<usize>,
}

impl Memory {
    pub fn new(ids: u32, cells: u32, slab: Option<u32>) -> Self {
        Self {
            sequences: vec![Vec::new(); ids as usize],
            hashes: vec![0; cells as usize],
            shared_by: vec![0; cells as usize],
            free: (0..cells as usize).collect(),
            slab: slab.map(|s| s as usize),
        }
    }

    pub fn is_in_streams(&self) -> bool {
        self.slab.is_some()
    }

    pub fn used(&self) -> usize {
        self.hashes.len() - self.free.len()
    }

    pub fn write(&mut self, seq: SeqId, hash: u64) {
        let cell = self
            .free
            .pop()
            .expect("the pool is fuller than it is large");
        self.hashes[cell] = hash;
        self.shared_by[cell] = 1;
        let cells = &mut self.sequences[seq.0 as usize];
        cells.push(cell);
        assert!(
            self.slab.is_none_or(|s| cells.len() <= s),
            "{seq:?} overflows"
        );
    }

    pub fn carry_out(&mut self, op: MemoryOp) {
        match op {
            MemoryOp::Remove { seq, from } => {
                let cells = &mut self.sequences[seq.0 as usize];
                let from = cells.len().min(from as usize);
                for cell in cells.drain(from..) {
                    self.shared_by[cell] -= 1;
                    if self.shared_by[cell] == 0 {
                        self.free.push(cell);
                    }
                }
            }
            MemoryOp::Copy { from, to, tokens } => {
                assert!(self.sequences[to.0 as usize].is_empty(), "{to:?} is in use");
                let cells = self.sequences[from.0 as usize][..tokens as usize].to_vec();
                if self.slab.is_some() {
                    for cell in cells {
                        self.write(to, self.hashes[cell]);
                    }
                } else {
                    cells.iter().for_each(|c| self.shared_by[*c] += 1);
                    self.sequences[to.0 as usize] = cells;
                }
            }
        }
    }

    /// Asserts that a sequence holds the first `at` tokens of this context and nothing else.
    pub fn assert_holds(&self, seq: SeqId, context: &[u64], at: usize) {
        let cells = &self.sequences[seq.0 as usize];
        assert_eq!(cells.len(), at, "{seq:?}'s cells");
        if let Some(last) = cells.last() {
            assert_eq!(
                self.hashes[*last],
                context[at - 1],
                "{seq:?} holds another's tokens"
            );
        }
    }
}
