//! Random histories against the [model](super::model). Blocks are all zeros or all ones, so that everything
//! collides with everything.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::model::{BLOCK, IDS, Model, Path, tokens};
use super::*;
use crate::logic::kv::BLOCK_TOKENS;

#[derive(Clone, Debug)]
enum Op {
    /// Computes a path and a tail shorter than a block, and gives it to the cache.
    Insert {
        path: Path,
        tail: usize,
    },
    /// Looks a prompt up; `short` tokens of it may not come from the cache.
    Match {
        path: Path,
        tail: usize,
        short: u32,
    },
    Unlock(usize),
    /// Locks where the last insertion or match ended once more.
    Lock,
    /// Uses a handle that must be refused.
    Stale(usize),
    Evict(Want),
}

fn op() -> impl Strategy<Value = Op> {
    let path = || prop::collection::vec(any::<bool>(), 0..7);
    let tail = 0..BLOCK;
    let short = prop_oneof![Just(0u32), Just(1), 0u32..64];
    let want = (0u32..5, 0u32..3).prop_map(|(blocks, sequences)| Want { blocks, sequences });
    prop_oneof![
        30 => (path(), tail.clone()).prop_map(|(path, tail)| Op::Insert { path, tail }),
        30 => (path(), tail, short).prop_map(|(path, tail, short)| Op::Match { path, tail, short }),
        20 => any::<usize>().prop_map(Op::Unlock),
        10 => Just(Op::Lock),
        8 => any::<usize>().prop_map(Op::Stale),
        20 => want.prop_map(Op::Evict),
    ]
}

/// How often the run came to what it is there to test.
#[derive(Default, Debug)]
struct Reached {
    hits: u64,
    misses: u64,
    splits: u64,
    redundant: u64,
    already_there: u64,
    handed_down: u64,
    removed_whole: u64,
    exhausted: u64,
    /// Evictions after which a locked path has another name.
    renamed: u64,
    locked_again: u64,
    stale: u64,
}

fn run(order: EvictionOrder, ops: Vec<Op>, reached: &mut Reached) {
    let mut cache = PrefixCache::new(order);
    let mut m = Model {
        order,
        free: (0..IDS).map(SeqId).collect(),
        ..Model::default()
    };
    for op in ops {
        apply(op, &mut cache, &mut m, reached);
        m.check(&cache);
    }
    reached.splits += cache.usage().splits;
}

fn apply(op: Op, cache: &mut PrefixCache, m: &mut Model, reached: &mut Reached) {
    match op {
        Op::Insert { path, tail } => insert(&path, tail, cache, m, reached),
        Op::Match { path, tail, short } => look_up(&path, tail, short, cache, m, reached),
        Op::Unlock(i) => {
            if !m.locks.is_empty() {
                let (node, path) = m.locks.swap_remove(i % m.locks.len());
                assert_eq!(cache.unlock(node), Ok(()));
                if !m.locks.iter().any(|(_, p)| *p == path) {
                    assert_eq!(cache.unlock(node), Err(StaleHandle), "not locked any more");
                }
            }
        }
        Op::Lock => {
            if let Some((node, path)) = m.last.clone() {
                assert_eq!(cache.lock(node), Ok(()));
                m.locks.push((node, path));
                reached.locked_again += 1;
            }
        }
        Op::Stale(i) => {
            if !m.stale.is_empty() {
                let stale = m.stale[i % m.stale.len()];
                assert_eq!(cache.seq(stale), Err(StaleHandle));
                assert_eq!(cache.lock(stale), Err(StaleHandle));
                assert_eq!(cache.unlock(stale), Err(StaleHandle));
                reached.stale += 1;
            }
        }
        Op::Evict(want) => evict(want, cache, m, reached),
    }
}

fn insert(
    path: &[bool],
    tail: usize,
    cache: &mut PrefixCache,
    m: &mut Model,
    reached: &mut Reached,
) {
    let Some(seq) = m.free.pop() else { return };
    let text = tokens(path, tail);
    let cached = m.cached(path);
    let extended = m
        .leaves
        .iter()
        .position(|(p, _)| !p.is_empty() && *p == path[..cached]);
    let got = cache.insert(&text, seq);
    let adopted = got.node.is_some_and(|n| cache.seq(n) == Ok(seq));
    assert_eq!(adopted, cached < path.len());
    m.end_at(&path[..cached]);
    if adopted {
        m.end_at(path);
        m.cells.insert(seq, tokens(path, 0));
        let old = extended.map(|i| m.leaves.swap_remove(i).1);
        assert_eq!(got.redundant, old);
        m.leaves.push((path.to_vec(), seq));
        if let Some(old) = old {
            m.retire(old);
            reached.redundant += 1;
        }
    } else {
        assert_eq!(got.redundant, None);
        m.free.push(seq);
        reached.already_there += u64::from(!path.is_empty());
    }
    assert_eq!(got.node.is_some(), !path.is_empty());
    if let Some(node) = got.node {
        m.touch(path, 0);
        m.remember(path, node);
    }
}

fn look_up(
    path: &[bool],
    tail: usize,
    short: u32,
    cache: &mut PrefixCache,
    m: &mut Model,
    reached: &mut Reached,
) {
    let text = tokens(path, tail);
    let limit = (text.len() as u32).saturating_sub(short);
    let usable = &path[..path.len().min(limit.div_ceil(BLOCK as u32) as usize)];
    let cached = m.cached(usable);
    let expected = limit.min((cached * BLOCK) as u32);
    let before = cache.usage();
    assert_eq!(cache.probe(&text, limit), expected);
    let beginnings = Beginnings::of(&text);
    assert_eq!(
        cache.index().probe(&beginnings, limit),
        expected,
        "the index"
    );
    assert_eq!(cache.usage(), before, "a probe changes nothing");
    let got = cache.match_prefix(&text, limit);
    assert_eq!(got.map_or(0, |g| g.tokens), expected);
    let Some(hit) = got else {
        reached.misses += 1;
        return;
    };
    let prefix = &text[..expected as usize];
    assert!(
        m.cells[&hit.seq].starts_with(prefix),
        "{:?} does not hold the prefix",
        hit.seq
    );
    let path = &path[..cached];
    let split = m.end_at(path);
    assert_eq!(cache.usage().splits - before.splits, u64::from(split));
    m.touch(path, 1);
    m.locks.push((hit.node, path.to_vec()));
    m.remember(path, hit.node);
    reached.hits += 1;
}

fn evict(want: Want, cache: &mut PrefixCache, m: &mut Model, reached: &mut Reached) {
    let mut out = Vec::new();
    let named = |cache: &PrefixCache| {
        m.locks
            .iter()
            .map(|(n, _)| cache.seq(*n))
            .collect::<Vec<_>>()
    };
    let before = named(cache);
    let held = cache.usage();
    cache.evict(want, &mut out);
    let left = cache.usage();
    let freed = Want {
        blocks: (held.tokens_held - left.tokens_held) / BLOCK_TOKENS,
        sequences: held.leaves - left.leaves,
    };
    reached.renamed += u64::from(named(cache) != before);
    let (freed_expected, expected) = m.evict(want);
    assert_eq!(out, expected);
    assert_eq!(freed, freed_expected);
    reached.exhausted += u64::from(freed.blocks < want.blocks || freed.sequences < want.sequences);
    for Evicted { seq, keep_tokens } in out {
        if keep_tokens == 0 {
            m.retire(seq);
            reached.removed_whole += 1;
        } else {
            m.cells
                .get_mut(&seq)
                .unwrap()
                .truncate(keep_tokens as usize);
            reached.handed_down += 1;
        }
    }
}

#[test]
fn the_tree_agrees_with_the_model() {
    let mut config = ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    if config.cases == 256 {
        // proptest's own default: PROPTEST_CASES is not set.
        config.cases = 20_000;
    }
    let often = u64::from(config.cases / 20);
    let orders = prop_oneof![Just(EvictionOrder::Lru), Just(EvictionOrder::Worth)];
    let reached = RefCell::new(Reached::default());
    let histories = (orders, prop::collection::vec(op(), 1..120));
    TestRunner::new(config)
        .run(&histories, |(order, ops)| {
            run(order, ops, &mut reached.borrow_mut());
            Ok(())
        })
        .unwrap();
    let r = reached.into_inner();
    println!("{r:?}");
    let counts = [
        r.hits,
        r.misses,
        r.splits,
        r.redundant,
        r.already_there,
        r.handed_down,
        r.removed_whole,
        r.exhausted,
        r.renamed,
        r.locked_again,
        r.stale,
    ];
    assert!(counts.iter().all(|&n| n >= often), "too seldom: {r:?}");
}
