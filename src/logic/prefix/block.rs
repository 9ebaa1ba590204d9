//! Blocks of tokens: paths are compared, hashed and split in them.

use crate::ids::TokenId;
use crate::logic::kv::BLOCK_TOKENS;

/// Tokens that fill a block of the KV pool.
pub type Block = [TokenId; BLOCK_TOKENS as usize];

/// The whole blocks of `tokens` that hold the first `limit` of them.
pub fn whole_blocks(tokens: &[TokenId], limit: u32) -> &[Block] {
    let (blocks, _tail) = tokens.as_chunks();
    let most = limit.div_ceil(BLOCK_TOKENS) as usize;
    &blocks[..blocks.len().min(most)]
}

/// Equality without a branch inside, so that it compiles to a few vector instructions.
pub fn same(a: &Block, b: &Block) -> bool {
    a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a.0 ^ b.0)) == 0
}

/// A hash of a block and a seed, the same in every process, as reproducible runs need.
pub fn hash(seed: u32, block: &Block) -> u32 {
    let state = absorb(u64::from(seed), block);
    (state ^ (state >> 32)) as u32
}

/// The hash of a beginning that is one block longer than the one whose hash is `before`. Blocks can be made
/// that wipe a state out, so the beginning enters again at the end.
pub fn chain(before: u64, block: &Block) -> u64 {
    let state = absorb(before ^ 0xa076_1d64_78bd_642f, block);
    fold(
        state ^ before.rotate_left(32),
        u64::from(block[0].0.cast_unsigned()) | 1 << 63,
    )
}

fn absorb(seed: u64, block: &Block) -> u64 {
    let pairs = block.as_chunks::<2>().0.iter();
    pairs.fold(seed, |state, [a, b]| {
        fold(
            state,
            u64::from(a.0.cast_unsigned()) << 32 | u64::from(b.0.cast_unsigned()),
        )
    })
}

/// Multiply and fold, as wyhash does.
fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product ^ (product >> 64)) as u64
}

#[cfg(test)]
mod tests {
    use super::super::{EvictionOrder, PrefixCache};
    use super::*;
    use crate::ids::SeqId;

    fn assert_told_apart(blocks: &[Block]) {
        let mut cache = PrefixCache::new(EvictionOrder::Lru);
        for (seq, block) in (0..).zip(blocks) {
            assert_eq!(cache.probe(block, 16), 0);
            let node = cache.insert(block, SeqId(seq)).node.unwrap();
            assert_eq!(cache.seq(node), Ok(SeqId(seq)));
        }
        cache.assert_invariants();
        for (seq, block) in (0..).zip(blocks) {
            assert_eq!(cache.match_prefix(block, 16).unwrap().seq, SeqId(seq));
        }
    }

    #[test]
    fn each_token_counts() {
        let differ_at = |i| {
            let mut block = [TokenId(7); 16];
            block[i] = TokenId(8);
            block
        };
        assert_told_apart(&std::array::from_fn::<_, 16, _>(differ_at));
    }

    #[test]
    fn blocks_made_to_collide_are_told_apart() {
        let collide = |first: u64| {
            // The second pair is chosen so that it wipes out what the first has left.
            let pair = |w: u64| [w >> 32, w & 0xffff_ffff].map(|t| TokenId(t as u32 as i32));
            let mut block = [TokenId(0); 16];
            block[..2].copy_from_slice(&pair(first));
            block[2..4].copy_from_slice(&pair(fold(0, first)));
            assert_eq!(hash(0, &block), 0);
            block
        };
        assert_told_apart(&(1..=40).map(collide).collect::<Vec<_>>());
    }
}
