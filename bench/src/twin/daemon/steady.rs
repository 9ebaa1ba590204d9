//! Steps in which nothing can change, taken at once.

use cadenced::logic::kv::BLOCK_TOKENS;

use super::super::cost::Composition;
use super::Daemon;

/// Steps to come that are all alike: every running sequence decodes, and none ends, starts, leaves or needs memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steady {
    pub steps: u32,
    pub first: Composition,
    /// A request that arrives is taken at the next turn; else it waits, whatever it is.
    pub ends_with_an_arrival: bool,
}

impl Daemon {
    /// The steps from here on in which nothing can change; never any with a best-effort lane. To be asked between
    /// [`Self::complete`] and [`Self::turn`].
    pub fn steady(&self) -> Option<Steady> {
        if self.lane {
            return None;
        }
        let may_take = self.engine.turn.scheduler().take_rule(0).is_some();
        // What waits for memory or for another's prefill is looked at in every turn.
        let looked_at =
            self.engine.turn.deferred() > 0 || (may_take && !self.engine.queue.is_empty());
        if self.cancelled || looked_at || self.engine.plan.emptied().next().is_some() {
            return None;
        }
        let mut steps = u32::MAX;
        let mut first = Composition::default();
        for s in self.engine.turn.scheduler().running() {
            let whole_blocks =
                s.num_computed.min(s.spec.prompt_tokens) / BLOCK_TOKENS * BLOCK_TOKENS;
            if s.prefilling() || (self.caches && whole_blocks > s.in_cache) {
                return None;
            }
            let length = s.payload.answer_tokens.min(s.spec.max_tokens);
            // The step with the last token is one in which something changes, as is one that needs a block.
            let to_the_end = length.saturating_sub(s.num_generated).saturating_sub(1);
            let room = s.lease.capacity().saturating_sub(s.num_computed);
            steps = steps.min(to_the_end).min(room);
            first = first + Composition::of_tokens(s.num_computed, 1);
        }
        (first.decode_seqs > 0 && steps > 0).then_some(Steady {
            steps,
            first,
            ends_with_an_arrival: may_take,
        })
    }

    /// Takes steady steps at once, each of which takes what `steps_ps` says of it.
    pub fn skip(&mut self, steps_ps: impl ExactSizeIterator<Item = u64>) {
        let steps = steps_ps.len() as u32;
        for s in self.engine.turn.running_mut() {
            s.num_computed += steps;
            s.num_generated += steps;
            s.payload.generated = s.num_generated;
        }
        let generated = self.engine.turn.scheduler().running().len() as u32;
        steps_ps.for_each(|ps| self.stepped(ps, generated));
    }
}
