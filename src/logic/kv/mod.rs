//! The KV pool's books: which blocks and which sequence ids are free, and who holds the others.
//!
//! llama.cpp keeps *cells*, each tagged with the sequences that share it: `seq_cp` adds a tag to the first
//! cells of a sequence and copies nothing, `seq_rm` removes one and frees the cells that have none left. The
//! books mirror that in blocks of [`BLOCK_TOKENS`] cells, always on the safe side: what they call free is
//! free there as soon as the removals of the next step are applied.
//!
//! - [`block_pool`]: the blocks, with reference counts.
//! - [`block_table`]: the blocks of one sequence; copy-on-write.
//! - [`sequence_ids`]: which ids are free, running, cached or retiring.
//! - [`reservation`]: how much memory a request takes when it is admitted. One policy for each rung.
//! - `admission`: whether there is room for a request, and what would make it.
//! - [`sizing`]: how large a pool the machine can bear.
//! - [`pool`]: all of it together, [`KvPool`], the one type that others use.
//!
//! The order of calls is the order of operations on llama.cpp's memory: the step that follows must apply them
//! so, before it decodes.
//!
//! What sequences hold (token paths, and which may be evicted) is the prefix cache's to know. Whoever runs shares
//! the blocks of what it has locked there, and its id passes to the cache when it ends; so what only cached
//! sequences hold can be evicted. (Two requests that compute the same path side by side hold it twice; of such a
//! one, what is counted as evictable may be locked until the other ends. Then a growth is met by preemption.)

mod admission;
pub mod block_pool;
pub mod block_table;
mod invariants;
pub mod pool;
pub mod reservation;
pub mod sequence_ids;
pub mod sizing;

pub use pool::KvPool;
pub use reservation::Reservation;

use crate::ids::SeqId;

/// Cells in a block.
pub const BLOCK_TOKENS: u32 = 16;

/// Blocks that hold `tokens` tokens.
#[must_use]
pub fn blocks_for(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK_TOKENS)
}

/// How llama.cpp lays sequences out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// One pool of cells, which sequences share (`kv_unified`).
    Unified,
    /// A slab of cells for each sequence id, all of them held while the id is in use. To share is to copy the
    /// bytes, and llama.cpp copies a whole sequence or nothing.
    Streams,
}

/// The first tokens of a sequence, running or cached, which a request begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedPrefix {
    pub seq: SeqId,
    /// At least 1, at most what the sequence holds, and less than the request's prompt.
    pub tokens: u32,
}

/// What a request asks of the pool. All counts are tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    pub prefix: Option<SharedPrefix>,
    /// What is in the pool when its prefill ends: the prompt, or the prompt and what had been generated
    /// before a preemption.
    pub prompt_tokens: u32,
    /// The most that it can come to hold: prompt + `max_tokens`.
    pub total_max: u32,
}

/// A sequence id that runs, and what it was admitted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub seq: SeqId,
    /// Blocks that it holds from the start, those that it shares included.
    pub blocks: u32,
}

impl Lease {
    /// Tokens that it may write before it must ask for more.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.blocks * BLOCK_TOKENS
    }
}

/// What must come free before a demand can be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortfall {
    /// If attainable: blocks to evict. If not: blocks that are missing even when all that can be evicted is.
    pub blocks: u32,
    /// Cached ids to retire; 0 also while one retires already, and waiting for it is enough.
    pub sequences: u32,
    /// Whether eviction (and the end of the step that removes cells) is enough. If not, something that runs
    /// must end or be preempted; a demand with a prefix may succeed without it, as its prefix can be evicted
    /// then.
    pub attainable: bool,
}

impl Shortfall {
    /// `missing` blocks are not free, and `evictable` could be.
    fn of_blocks(missing: u32, evictable: u32) -> Self {
        let attainable = missing <= evictable;
        Self {
            blocks: if attainable {
                missing
            } else {
                missing - evictable
            },
            sequences: 0,
            attainable,
        }
    }
}

impl Shortfall {
    /// Whether nothing need be evicted: an id comes back when the step that empties it is done.
    #[must_use]
    pub fn is_a_matter_of_time(&self) -> bool {
        self.attainable && self.blocks == 0 && self.sequences == 0
    }
}

/// How much of the pool is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KvUsage {
    pub blocks_total: u32,
    pub blocks_free: u32,
    /// Held by cached sequences and by none that runs: what eviction can free.
    pub blocks_cached: u32,
    pub sequences_total: u32,
    pub sequences_free: u32,
    pub sequences_cached: u32,
    /// Tokens in the blocks held, those shared counted once. A block that outlives the sequence that filled
    /// it counts as filled.
    pub tokens: u64,
    /// Blocks copied on write since the start.
    pub copies: u64,
}

impl KvUsage {
    /// The share of the cells held that hold no token, 0 to 1; 0 when none is held.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let cells = u64::from(self.blocks_total - self.blocks_free) * u64::from(BLOCK_TOKENS);
        if cells == 0 {
            return 0.0;
        }
        1.0 - self.tokens as f64 / cells as f64
    }
}
