//! How many cells the pool gets, and how they are laid out, where nobody has said.

use super::BLOCK_TOKENS;

/// What the plan is made from. Sizes are bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sizing {
    /// Memory that the machine, the container or the device has left.
    pub available: u64,
    /// What may be used, whatever is available; 0 = no such bound.
    pub budget: u64,
    /// The share of what is available that may be used, 0 to 1.
    pub utilisation: f64,
    /// Left free beside that, for compute buffers and replies.
    pub headroom: u64,
    /// Of one token, in all layers.
    pub bytes_per_token: u64,
    /// All that the sequences could hold at once: more would never be used.
    pub tokens_max: u64,
}

/// What bounds the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Budget,
    /// As many requests of full length as may run at once.
    Requests,
}

/// The outcome, for the log and `/stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Plan {
    pub cells: u32,
    pub kv_bytes: u64,
    pub bytes_per_token: u64,
    pub available_bytes: u64,
    pub bound: Bound,
}

/// llama.cpp's grain of a context.
pub const GRAIN: u64 = 256;

impl Sizing {
    /// The pool, in whole grains of 256 cells; `None` if there is no room for one.
    #[must_use]
    pub fn plan(self) -> Option<Plan> {
        let memory = (self.available as f64 * self.utilisation) as u64;
        let bounds = [
            (memory.saturating_sub(self.headroom), Bound::Memory),
            (self.budget, Bound::Budget),
        ];
        let by_bytes = bounds
            .into_iter()
            .filter(|(bytes, bound)| *bound != Bound::Budget || *bytes > 0)
            .map(|(bytes, bound)| (bytes / self.bytes_per_token.max(1), bound));
        let all = (self.tokens_max.next_multiple_of(GRAIN), Bound::Requests);
        let (tokens, bound) = std::iter::once(all)
            .chain(by_bytes)
            .min_by_key(|(tokens, _)| *tokens)?;
        let cells = (tokens / GRAIN * GRAIN).min(u64::from(u32::MAX / BLOCK_TOKENS)) as u32;
        (cells > 0).then_some(Plan {
            cells,
            kv_bytes: u64::from(cells) * self.bytes_per_token,
            bytes_per_token: self.bytes_per_token,
            available_bytes: self.available,
            bound,
        })
    }

    /// Whether `kv.layout = "auto"` is streams, if this sizes a slab of full length for each sequence: where
    /// nothing is shared and all the slabs fit. Streams decode faster, since a token meets no other sequence's
    /// cells, but each holds a slab as long as it is in use, and a shared prefix is copied.
    #[must_use]
    pub fn suits_streams(self, shares: bool) -> bool {
        !shares && self.plan().is_some_and(|p| p.bound == Bound::Requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZING: Sizing = Sizing {
        available: 1000 * MIB,
        budget: 0,
        utilisation: 0.5,
        headroom: 100 * MIB,
        bytes_per_token: 1024,
        tokens_max: 1 << 30,
    };

    #[test]
    fn the_tightest_bound_decides() {
        let plan = |s: Sizing| s.plan().map(|p| (p.cells, p.bound));
        assert_eq!(plan(SIZING), Some((400 * 1024, Bound::Memory)));
        let budget = 10 * MIB;
        let bounded = Sizing { budget, ..SIZING };
        assert_eq!(plan(bounded), Some((10 * 1024, Bound::Budget)));
        let tokens_max = 1000;
        let few = Sizing {
            tokens_max,
            ..SIZING
        };
        assert_eq!(plan(few), Some((1024, Bound::Requests)));
    }

    #[test]
    fn no_room_is_no_plan() {
        for available in [0, 100 * MIB, 200 * MIB] {
            assert_eq!(
                Sizing {
                    available,
                    ..SIZING
                }
                .plan(),
                None,
                "{available}"
            );
        }
    }

    #[test]
    fn streams_are_for_slabs_that_all_fit_and_nothing_to_share() {
        let slabs = |n: u64| Sizing {
            tokens_max: n * 8192,
            ..SIZING
        };
        assert!(slabs(50).suits_streams(false), "all of the memory");
        assert!(!slabs(51).suits_streams(false), "one slab too many");
        assert!(!slabs(1).suits_streams(true), "every hit would be a copy");
        let budget = 8192 * 1024 * 4;
        let bounded = |n| Sizing { budget, ..slabs(n) };
        assert!(bounded(4).suits_streams(false));
        assert!(!bounded(5).suits_streams(false));
    }

    #[test]
    fn a_plan_is_whole_grains() {
        let odd = Sizing {
            bytes_per_token: 12_345,
            ..SIZING
        };
        let plan = odd.plan().unwrap();
        assert_eq!(plan.cells % 256, 0);
        assert!(plan.kv_bytes <= 400 * MIB);
    }
}
