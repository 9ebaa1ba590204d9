//! What a turn asks, what it is answered, and what it leaves to be done.

use std::sync::Arc;

use crate::ids::{SeqId, TokenId};
use crate::logic::kv::{Demand, KvPool, Lease, Shortfall};
use crate::logic::prefix::{Evicted, Match, NodeHandle, PrefixCache, Want};
use crate::logic::request::{Outcome, RequestSpec};
use crate::logic::scheduler::{Growth, Sequence};
use crate::logic::wait_queue::TakeRule;

/// What the engine must see of what travels with a request.
pub trait Payload {
    /// The prompt, and the reply so far.
    fn context(&self) -> Arc<[TokenId]>;

    /// Tokens of the reply so far.
    fn generated(&self) -> u32;

    /// Whether its client has gone away.
    fn is_abandoned(&self) -> bool;

    /// Whether its tokens may be shared with others.
    fn cacheable(&self) -> bool;

    /// It starts (again), with so many tokens out of the cache.
    fn started(&mut self, cached: u32);
}

/// The next question. `Run` is none: the step can be planned.
#[derive(Debug)]
pub enum Ask {
    /// The prefix cache: take these in. Answered by [`super::Turn::inserted`].
    Insert(Vec<Insertion>),
    /// The wait queue: who shall run? Answered by [`super::Turn::taken`].
    Take(TakeRule),
    /// The prefix cache: what have you of these? Answered by [`super::Turn::matched`].
    Match(Vec<Query>),
    /// The books: room for these. Answered by [`super::Turn::reserved`].
    Reserve(Reserve),
    /// The prefix cache: give up so much. Answered by [`super::Turn::evicted`].
    Evict(Evict),
    Run,
}

/// Computed tokens of a sequence: the first `len` of `tokens`, whole blocks.
#[derive(Clone, Debug)]
pub struct Insertion {
    pub seq: SeqId,
    pub tokens: Arc<[TokenId]>,
    pub len: u32,
    /// Tokens that its cells hold.
    pub computed: u32,
    /// The part of the cache that it has locked.
    pub lock: Option<NodeHandle>,
    /// It has ended or yielded: the lock is released, and the cache owns the id if it names it.
    pub leaves: bool,
}

impl Insertion {
    /// Puts it into the tree; a lock that goes on moves to the end of the path.
    pub fn into_tree(&self, tree: &mut PrefixCache) -> Inserted {
        let inserted = tree.insert(&self.tokens[..self.len as usize], self.seq);
        let owner = inserted.node.filter(|n| tree.seq(*n) == Ok(self.seq));
        let goes_on = owner.filter(|_| !self.leaves);
        let lock = goes_on.filter(|n| tree.lock(*n).is_ok());
        if self.leaves || lock.is_some() {
            let known = self.lock.is_none_or(|old| tree.unlock(old).is_ok());
            assert!(known, "a lock outlived its node");
        }
        Inserted {
            owner: owner.is_some(),
            lock,
            redundant: inserted.redundant.filter(|r| *r != self.seq),
        }
    }
}

/// What became of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inserted {
    /// The cache names this sequence for the path.
    pub owner: bool,
    /// The lock in place of the one before, for one that goes on.
    pub lock: Option<NodeHandle>,
    /// An id that the cache needs no more.
    pub redundant: Option<SeqId>,
}

/// A prompt to look up; all but its last token may come out of the cache.
#[derive(Clone, Debug)]
pub struct Query {
    pub tokens: Arc<[TokenId]>,
    pub cacheable: bool,
}

impl Query {
    /// Looks it up, and locks what is found.
    pub fn ask(&self, tree: &mut PrefixCache) -> Option<Match> {
        let limit = self.tokens.len().saturating_sub(1) as u32;
        let hit = self
            .cacheable
            .then(|| tree.match_prefix(&self.tokens, limit));
        hit.flatten()
    }
}

/// Memory for a step: all of `growth` first, then as many of `demands` as fit, in order.
#[derive(Clone, Debug, Default)]
pub struct Reserve {
    pub growth: Vec<Growth>,
    pub demands: Vec<Demand>,
}

impl Reserve {
    /// Takes it out of the pool. In order, and no further than the first that does not fit: a small request
    /// does not pass a large one for ever.
    pub fn from(self, pool: &mut KvPool) -> Reserved {
        let mut reserved = Reserved {
            growth: self.growth,
            ..Reserved::default()
        };
        for growth in &reserved.growth {
            match pool.grow(growth.seq, growth.tokens) {
                Ok(()) => reserved.grown += 1,
                Err(short) => {
                    reserved.growth_short = Some(short);
                    return reserved;
                }
            }
        }
        for demand in &self.demands {
            match pool.admit(demand) {
                Ok(lease) => reserved.leases.push(lease),
                Err(short) => {
                    reserved.short = Some(short);
                    break;
                }
            }
        }
        reserved
    }
}

/// What was to be had.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    /// What growth was asked for: the list is the asker's to use again, so that a step allocates none.
    pub growth: Vec<Growth>,
    /// So many of it, from the first on.
    pub grown: usize,
    /// Why the others have not happened; no demand was looked at then.
    pub growth_short: Option<Shortfall>,
    /// Of the first demands.
    pub leases: Vec<Lease>,
    /// What the next demand lacks.
    pub short: Option<Shortfall>,
}

/// What the cache shall give up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evict {
    pub blocks: u32,
    pub sequences: u32,
    /// Locked parts whose sequence may be another one afterwards.
    pub held: Vec<NodeHandle>,
}

/// What the cache has given up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// Nothing when all that is cached is in use.
    pub evicted: Vec<Evicted>,
    /// The sequences that now hold what is held, in order.
    pub held: Vec<SeqId>,
}

impl Evict {
    /// Takes it from the tree.
    pub fn from(self, tree: &mut PrefixCache) -> Given {
        let mut given = Given::default();
        let want = Want {
            blocks: self.blocks,
            sequences: self.sequences,
        };
        tree.evict(want, &mut given.evicted);
        given.held = self.held.iter().filter_map(|n| tree.seq(*n).ok()).collect();
        assert_eq!(given.held.len(), self.held.len(), "what is locked stays");
        given
    }
}

/// A change of the books that needs no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BookEntry {
    /// A sequence that ran is kept by the cache, with the first `tokens` of its `computed` tokens.
    Cache {
        seq: SeqId,
        computed: u32,
        tokens: u32,
    },
    /// A cached sequence keeps its first `tokens` tokens.
    Truncate { seq: SeqId, tokens: u32 },
    /// The sequence is emptied by the next step.
    Retire { seq: SeqId },
    /// The step that emptied it is done.
    Reusable { seq: SeqId },
}

impl BookEntry {
    /// Enters it. False if the books know the sequence as something else.
    pub fn enter(self, pool: &mut KvPool) -> bool {
        match self {
            Self::Cache {
                seq,
                computed,
                tokens,
            } => {
                // Within what it has: it could not have computed them otherwise.
                let held = pool.grow(seq, computed).is_ok();
                held && pool.cache(seq, tokens)
            }
            Self::Truncate { seq, tokens } => pool.truncate(seq, tokens),
            Self::Retire { seq } => pool.retire(seq),
            Self::Reusable { seq } => pool.reusable(seq),
        }
    }
}

/// What a turn leaves to be done, before its question is asked.
#[derive(Debug)]
pub struct Effects<P> {
    /// Requests that have ended.
    pub ended: Vec<(Sequence<P>, Outcome)>,
    /// Requests whose client left before they ran.
    pub abandoned: Vec<(RequestSpec, P)>,
    /// Back to the wait queue.
    pub put_back: Vec<(RequestSpec, P)>,
    /// For the books, in order.
    pub books: Vec<BookEntry>,
    /// Parts of the cache that are used no more.
    pub unlock: Vec<NodeHandle>,
    /// Requests preempted, for the account.
    pub preempted: u64,
    /// Prompt tokens of requests that started and may share, and those of them that came out of the cache. Each
    /// request counts once, however often it was looked up, and what a preempted one finds of itself does not.
    pub lookup_tokens: u64,
    pub hit_tokens: u64,
}

impl<P> Default for Effects<P> {
    fn default() -> Self {
        Self {
            ended: Vec::new(),
            abandoned: Vec::new(),
            put_back: Vec::new(),
            books: Vec::new(),
            unlock: Vec::new(),
            preempted: 0,
            lookup_tokens: 0,
            hit_tokens: 0,
        }
    }
}
