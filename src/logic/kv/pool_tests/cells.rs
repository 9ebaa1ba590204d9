//! llama.cpp's memory.

use std::collections::BTreeSet;

use crate::ids::SeqId;

/// llama.cpp's memory, naively: a cell is free if and only if no sequence's tag is on it.
pub struct Cells {
    pub tags: Vec<BTreeSet<SeqId>>,
    /// The cells of each sequence by position.
    pub at: Vec<Vec<usize>>,
    /// Cells of one stream; all of them are one pool without streams.
    pub slab: Option<u32>,
}

impl Cells {
    pub fn of(&self, seq: SeqId) -> &Vec<usize> {
        &self.at[seq.0 as usize]
    }

    pub fn tokens(&self, seq: SeqId) -> u32 {
        self.of(seq).len() as u32
    }

    pub fn used(&self) -> u32 {
        self.tags.iter().filter(|t| !t.is_empty()).count() as u32
    }

    pub fn tag(&mut self, seq: SeqId, cell: usize) {
        self.tags[cell].insert(seq);
        self.at[seq.0 as usize].push(cell);
    }

    /// Decodes a token.
    pub fn append(&mut self, seq: SeqId) {
        let range = match self.slab {
            Some(n) => seq.0 * n..(seq.0 + 1) * n,
            None => 0..self.tags.len() as u32,
        };
        let free = range
            .into_iter()
            .find(|c| self.tags[*c as usize].is_empty());
        self.tag(
            seq,
            free.expect("the books said that a cell was free") as usize,
        );
    }

    pub fn seq_cp(&mut self, source: SeqId, seq: SeqId, tokens: u32) {
        for position in self.tokens(seq)..tokens {
            match self.slab {
                Some(_) => self.append(seq),
                None => self.tag(seq, self.of(source)[position as usize]),
            }
        }
    }

    pub fn seq_rm(&mut self, seq: SeqId, from: u32) {
        while self.tokens(seq) > from {
            let cell = self.at[seq.0 as usize].pop().unwrap();
            self.tags[cell].remove(&seq);
        }
    }
}
