//! How much memory a request takes when it is admitted, and what it may still take later.
//!
//! | policy | at admission | later |
//! | --- | --- | --- |
//! | `Contiguous` | prompt + the server's output cap | nothing; it shares nothing either |
//! | `Request` | prompt + its own `max_tokens` | nothing |
//! | `Paged`, growth reserved | prompt | block by block, and never in vain: its growth is promised |
//! | `Paged` | prompt | block by block; who finds none must have another preempted |

use super::Demand;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reservation {
    /// As servers without paging do: room for the longest reply that any request may ask for.
    Contiguous { output_tokens: u32 },
    /// Room for the longest reply that this request may get.
    Request,
    /// Room for what is computed, when it is.
    Paged {
        /// Admit only what can grow to its `max_tokens` together with all that run.
        reserve_growth: bool,
        /// Blocks that an admission leaves free or evictable for the growth of those that run. Ignored when
        /// nothing runs, so that something always can start.
        watermark_blocks: u32,
    },
}

impl Reservation {
    /// Tokens that a request gets blocks for when it is admitted; `tokens_max` is the most that a sequence
    /// can have.
    pub(super) fn tokens_at_admission(self, demand: &Demand, tokens_max: u32) -> u32 {
        match self {
            Self::Contiguous { output_tokens } => {
                let slab = demand.prompt_tokens.saturating_add(output_tokens);
                slab.min(tokens_max).max(demand.total_max)
            }
            Self::Request => demand.total_max,
            Self::Paged { .. } => demand.prompt_tokens,
        }
    }

    /// Whether what runs must never find the pool empty.
    pub(super) fn promises_growth(self) -> bool {
        !matches!(
            self,
            Self::Paged {
                reserve_growth: false,
                ..
            }
        )
    }

    /// Whether sequences may share blocks.
    pub(super) fn shares(self) -> bool {
        !matches!(self, Self::Contiguous { .. })
    }

    /// Blocks that an admission leaves to those that run.
    pub(super) fn watermark_blocks(self) -> u32 {
        match self {
            Self::Paged {
                watermark_blocks, ..
            } => watermark_blocks,
            Self::Contiguous { .. } | Self::Request => 0,
        }
    }
}
