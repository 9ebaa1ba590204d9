//! The naive model that the tree is tested against: a list of the paths at which nodes end, a list of the
//! paths that own an id, a list of the locks, and the tokens that each sequence's cells hold. Too simple to
//! be wrong, it predicts every answer exactly, the order of eviction too.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::ids::TokenId;
use crate::logic::kv::BLOCK_TOKENS;

pub const BLOCK: usize = BLOCK_TOKENS as usize;
pub const IDS: u32 = 6;

/// A path, one bit a block.
pub type Path = Vec<bool>;

pub fn tokens(path: &[bool], tail: usize) -> Vec<TokenId> {
    let blocks = path.iter().flat_map(|&b| [TokenId(b.into()); BLOCK]);
    blocks
        .chain(std::iter::repeat_n(TokenId(0), tail))
        .collect()
}

/// What is known of a node.
#[derive(Clone, Copy, Default)]
pub struct Facts {
    pub hits: u64,
    /// Priority, then last use.
    pub rank: (u64, u64),
}

#[derive(Default)]
pub struct Model {
    pub order: EvictionOrder,
    pub clock: u64,
    pub age: u64,
    /// Where nodes end.
    pub ends: BTreeMap<Path, Facts>,
    /// Who owns which id.
    pub leaves: Vec<(Path, SeqId)>,
    pub locks: Vec<(NodeHandle, Path)>,
    pub free: Vec<SeqId>,
    /// What the cells of a sequence in use hold.
    pub cells: BTreeMap<SeqId, Vec<TokenId>>,
    /// Handles that must be refused.
    pub stale: Vec<NodeHandle>,
    /// Every node that a handle was ever given for.
    pub handles: BTreeMap<Path, NodeHandle>,
    /// Where the last insertion or match ended.
    pub last: Option<(NodeHandle, Path)>,
}

impl Model {
    /// How many blocks of `path` are cached.
    pub fn cached(&self, path: &[bool]) -> usize {
        let held = |len: &usize| {
            self.leaves
                .iter()
                .any(|(l, _)| l.starts_with(&path[..*len]))
        };
        (1..=path.len()).rev().find(held).unwrap_or(0)
    }

    /// A node ends at `path`; if an edge is cut there, both halves know what it knew. True if one is.
    pub fn end_at(&mut self, path: &[bool]) -> bool {
        if path.is_empty() || self.ends.contains_key(path) {
            return false;
        }
        let below = self
            .ends
            .iter()
            .filter(|(p, _)| p.starts_with(path))
            .min_by_key(|(p, _)| p.len());
        let facts = below.map(|(_, f)| *f);
        self.ends.insert(path.to_vec(), facts.unwrap_or_default());
        facts.is_some()
    }

    pub fn touch(&mut self, path: &[bool], hits: u64) {
        self.clock += 1;
        for (p, f) in &mut self.ends {
            if path.starts_with(p) {
                f.hits += hits;
                let worth = self.age + (f.hits + 1) * (f.hits + 1);
                let by_worth = self.order == EvictionOrder::Worth;
                f.rank = (if by_worth { worth } else { 0 }, self.clock);
            }
        }
    }

    /// One handle for a node as long as it lives.
    pub fn remember(&mut self, path: &[bool], node: NodeHandle) {
        let known = *self.handles.entry(path.to_vec()).or_insert(node);
        assert_eq!(known, node, "a node changed its handle");
        self.last = Some((node, path.to_vec()));
    }

    fn forget(&mut self, path: &[bool]) {
        self.stale.extend(self.handles.remove(path));
        if self.last.as_ref().is_some_and(|(_, p)| p == path) {
            self.last = None;
        }
    }

    /// What the tree must evict, and how much comes free.
    pub fn evict(&mut self, want: Want) -> (Want, Vec<Evicted>) {
        let (mut freed, mut out) = (Want::default(), Vec::<Evicted>::new());
        while freed.blocks < want.blocks || freed.sequences < want.sequences {
            let unlocked =
                |l: &&(Path, SeqId)| !self.locks.iter().any(|(_, p)| p.starts_with(&l.0));
            let victim = self
                .leaves
                .iter()
                .filter(unlocked)
                .min_by_key(|l| self.ends[&l.0].rank);
            let Some((path, seq)) = victim.cloned() else {
                break;
            };
            let rank = self.ends.remove(&path).unwrap().rank;
            self.age = self.age.max(rank.0);
            self.forget(&path);
            self.leaves.retain(|(_, s)| *s != seq);
            let parent = (0..path.len())
                .rev()
                .find(|&n| n == 0 || self.ends.contains_key(&path[..n]));
            let kept = &path[..parent.unwrap()];
            freed.blocks += (path.len() - kept.len()) as u32;
            let keep_tokens =
                if kept.is_empty() || self.ends.keys().any(|p| p != kept && p.starts_with(kept)) {
                    freed.sequences += 1;
                    0
                } else {
                    self.leaves.push((kept.to_vec(), seq));
                    (kept.len() * BLOCK) as u32
                };
            if out.last().is_some_and(|e| e.seq == seq) {
                out.pop();
            }
            out.push(Evicted { seq, keep_tokens });
        }
        (freed, out)
    }

    /// The id's cells are gone from llama.cpp.
    pub fn retire(&mut self, seq: SeqId) {
        assert!(self.cells.remove(&seq).is_some(), "an id returned twice");
        self.free.push(seq);
    }

    pub fn check(&self, cache: &PrefixCache) {
        cache.assert_invariants();
        let usage = cache.usage();
        let blocks: BTreeSet<_> = self
            .leaves
            .iter()
            .flat_map(|(p, _)| (1..=p.len()).map(|n| &p[..n]))
            .collect();
        let locked = blocks
            .iter()
            .filter(|b| self.locks.iter().any(|(_, p)| p.starts_with(b)));
        assert_eq!(usage.tokens_held as usize, blocks.len() * BLOCK);
        assert_eq!(usage.tokens_locked as usize, locked.count() * BLOCK);
        assert_eq!(
            (usage.nodes as usize, usage.leaves as usize),
            (self.ends.len(), self.leaves.len())
        );
        assert_eq!(
            self.free.len() + self.leaves.len(),
            IDS as usize,
            "an id leaked"
        );
        for (_, path) in &self.locks {
            assert_eq!(self.cached(path), path.len(), "a locked path was evicted");
        }
        let owned = self.leaves.iter().map(|(path, seq)| (path, *seq));
        let named = self
            .handles
            .iter()
            .map(|(path, node)| (path, cache.seq(*node).unwrap()));
        for (path, seq) in owned.chain(named) {
            let held = self.cells[&seq].starts_with(&tokens(path, 0));
            assert!(held, "{seq:?} does not hold {path:?}");
        }
    }
}
