//! PrefixCache: which beginnings of prompts are already in the pool.
//!
//! Owns the index. Hears the Scheduler alone. Runs on the engine arbiter. On rungs 1 to 3 the index is the
//! one that never has anything.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use actix::{Actor, Context, Handler, Recipient};

use crate::logic::prefix::PrefixIndex;
use crate::messages::{MatchPrefix, PrefixMatched};
use crate::telemetry::published::Published;

/// See the module's text.
pub struct PrefixCache {
    pub index: Box<dyn PrefixIndex + Send>,
    pub scheduler: Recipient<PrefixMatched>,
    pub published: Arc<Published>,
}

impl Actor for PrefixCache {
    type Context = Context<Self>;
}

impl Handler<MatchPrefix> for PrefixCache {
    type Result = ();

    fn handle(&mut self, MatchPrefix(prompts): MatchPrefix, _: &mut Self::Context) {
        let cached: Vec<u32> = prompts.iter().map(|p| self.index.match_prefix(p)).collect();
        let looked_up: usize = prompts.iter().map(|p| p.len()).sum();
        let hit: u32 = cached.iter().sum();
        self.published
            .prefix_lookup_tokens
            .fetch_add(looked_up as u64, Relaxed);
        self.published
            .prefix_hit_tokens
            .fetch_add(u64::from(hit), Relaxed);
        self.published
            .prefix_blocks
            .store(u64::from(self.index.blocks_held()), Relaxed);
        self.scheduler.do_send(PrefixMatched(cached));
    }
}
