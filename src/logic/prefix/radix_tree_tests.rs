use super::super::{Evicted, EvictionOrder, Want};
use super::*;

const EVERYTHING: Want = Want {
    blocks: u32::MAX,
    sequences: u32::MAX,
};

/// One block for each number, all of it that token.
fn path(blocks: &[i32]) -> Vec<TokenId> {
    blocks
        .iter()
        .flat_map(|&b| [TokenId(b); BLOCK_TOKENS as usize])
        .collect()
}

fn cache(paths: &[&[i32]]) -> PrefixCache {
    let mut cache = PrefixCache::new(EvictionOrder::Lru);
    for (seq, blocks) in (0..).zip(paths) {
        assert!(adopts(&mut cache, blocks, seq));
    }
    cache.assert_invariants();
    cache
}

/// Whether the tree takes the sequence for the end of the path.
fn adopts(cache: &mut PrefixCache, blocks: &[i32], seq: u32) -> bool {
    let node = cache.insert(&path(blocks), SeqId(seq)).node.unwrap();
    cache.seq(node) == Ok(SeqId(seq))
}

/// Blocks and ids that came free, and what the caller must remove.
fn evict(cache: &mut PrefixCache, want: Want) -> ((u32, u32), Vec<(u32, u32)>) {
    let (mut out, before) = (Vec::new(), cache.usage());
    cache.evict(want, &mut out);
    cache.assert_invariants();
    let after = cache.usage();
    let blocks = (before.tokens_held - after.tokens_held) / BLOCK_TOKENS;
    (
        (blocks, before.leaves - after.leaves),
        out.iter()
            .map(|e: &Evicted| (e.seq.0, e.keep_tokens))
            .collect(),
    )
}

#[test]
fn a_whole_hit_leaves_the_last_token_to_compute() {
    let mut c = cache(&[&[1, 2]]);
    let hit = c.match_prefix(&path(&[1, 2]), 31).unwrap();
    assert_eq!((hit.tokens, hit.seq), (31, SeqId(0)));
    assert_eq!(
        c.usage().tokens_locked,
        32,
        "the block it ends in is locked"
    );
    assert_eq!(c.probe(&path(&[1, 2, 3]), 47), 32);
    assert_eq!(c.probe(&path(&[1, 2])[..31], 31), 16, "whole blocks only");
    assert_eq!(c.match_prefix(&path(&[1, 2]), 0), None);
    assert_eq!(c.match_prefix(&path(&[2, 1]), 31), None);
}

#[test]
fn a_match_locks_no_more_than_it_uses() {
    let mut c = cache(&[&[1, 2, 3, 4]]);
    let hit = c.match_prefix(&path(&[1, 2, 9]), 47).unwrap();
    assert_eq!((c.usage().splits, c.usage().tokens_locked), (1, 32));
    assert_eq!(evict(&mut c, EVERYTHING), ((2, 0), vec![(0, 32)]));
    c.unlock(hit.node).unwrap();
    assert_eq!(evict(&mut c, EVERYTHING), ((2, 1), vec![(0, 0)]));
    assert_eq!(c.usage().tokens_held, 0);
}

#[test]
fn a_path_that_extends_a_leaf_takes_its_place() {
    let mut c = cache(&[&[1], &[2]]);
    let longer = c.insert(&path(&[1, 5]), SeqId(7));
    assert_eq!(longer.redundant, Some(SeqId(0)));
    assert_eq!(c.match_prefix(&path(&[1]), 16).unwrap().seq, SeqId(7));
    let known = c.insert(&path(&[1]), SeqId(8));
    assert_eq!(c.seq(known.node.unwrap()), Ok(SeqId(7)), "it was there");
    assert_eq!(known.redundant, None);
    assert_eq!(c.usage().leaves, 2);
    c.assert_invariants();
}

#[test]
fn what_named_an_evicted_leaf_names_another() {
    let mut c = cache(&[&[1, 2, 3], &[1, 2, 4], &[1, 5]]);
    let one = Want {
        blocks: 0,
        sequences: 1,
    };
    assert_eq!(evict(&mut c, one), ((1, 1), vec![(0, 0)]));
    assert_eq!(c.match_prefix(&path(&[1, 2]), 32).unwrap().seq, SeqId(1));
}

#[test]
fn one_removal_for_a_path_that_goes_piece_by_piece() {
    let mut c = cache(&[&[1, 2, 3]]);
    for end in [1, 2] {
        let hit = c.match_prefix(&path(&[1, 2, 3][..end]), 99).unwrap();
        c.unlock(hit.node).unwrap();
    }
    let two = Want {
        blocks: 2,
        sequences: 0,
    };
    assert_eq!(evict(&mut c, two), ((2, 0), vec![(0, 16)]));
    assert_eq!(evict(&mut c, EVERYTHING), ((1, 1), vec![(0, 0)]));
}

#[test]
fn by_worth_a_favourite_outlives_newcomers_and_goes_at_last() {
    let mut c = PrefixCache::new(EvictionOrder::Worth);
    c.insert(&path(&[0]), SeqId(0));
    for _ in 0..3 {
        let hit = c.match_prefix(&path(&[0]), 16).unwrap();
        c.unlock(hit.node).unwrap();
    }
    let one = Want {
        blocks: 1,
        sequences: 0,
    };
    let survived = (1..).take_while(|&n| {
        c.insert(&path(&[n]), SeqId(1));
        evict(&mut c, one).1 == [(1, 0)]
    });
    assert_eq!(
        survived.count(),
        15,
        "three hits and the computation: worth 16"
    );
}

#[test]
fn a_handle_that_outlived_its_node_or_its_lock_is_refused() {
    let mut c = cache(&[&[1, 2]]);
    let hit = c.match_prefix(&path(&[1, 2]), 32).unwrap();
    let upper = c.match_prefix(&path(&[1]), 16).unwrap();
    c.unlock(upper.node).unwrap();
    assert_eq!(
        c.unlock(upper.node),
        Err(StaleHandle),
        "only those below are locked"
    );
    c.lock(upper.node).unwrap();
    c.unlock(hit.node).unwrap();
    assert_eq!(evict(&mut c, EVERYTHING).1, [(0, 16)]);
    assert_eq!(c.lock(hit.node), Err(StaleHandle));
    c.unlock(upper.node).unwrap();
    assert_eq!(evict(&mut c, EVERYTHING).1, [(0, 0)]);
    assert_eq!(c.unlock(upper.node), Err(StaleHandle));
    c.insert(&path(&[3]), SeqId(0));
    c.insert(&path(&[4]), SeqId(1));
    assert_eq!(
        c.lock(upper.node),
        Err(StaleHandle),
        "the slot has another node"
    );
    c.assert_invariants();
}
