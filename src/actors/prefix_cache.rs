//! PrefixCache: which beginnings of prompts are in the pool, and under which sequence.
//!
//! Owns the radix tree. Hears the Scheduler alone; a look-up takes a microsecond for a prompt of 500 tokens.
//! Runs on the engine arbiter. On rungs 1 to 3, and for models that can't share, nobody asks it anything.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};

use crate::logic::prefix::PrefixCache as Tree;
use crate::messages::{
    EvictPrefixes, Insert, MatchPrefix, PrefixInserted, PrefixMatched, PrefixesEvicted, Unlock,
};
use crate::telemetry::published::Published;

/// See the module's text.
pub struct PrefixCache {
    pub tree: Tree,
    pub inserted: Recipient<PrefixInserted>,
    pub matched: Recipient<PrefixMatched>,
    pub evicted: Recipient<PrefixesEvicted>,
    pub published: Arc<Published>,
    pub check_invariants: bool,
}

impl PrefixCache {
    fn changed(&self) {
        if self.check_invariants {
            self.tree.assert_invariants();
        }
        self.published.set_prefixes(self.tree.usage());
    }
}

impl Actor for PrefixCache {
    type Context = Context<Self>;
}

impl Handler<Insert> for PrefixCache {
    type Result = ();

    fn handle(&mut self, Insert(insertions): Insert, _: &mut Self::Context) {
        let answers = insertions
            .iter()
            .map(|i| i.into_tree(&mut self.tree))
            .collect();
        self.changed();
        self.inserted.do_send(PrefixInserted(answers));
    }
}

impl Handler<MatchPrefix> for PrefixCache {
    type Result = ();

    fn handle(&mut self, MatchPrefix(queries): MatchPrefix, _: &mut Self::Context) {
        let hits = queries.iter().map(|q| q.ask(&mut self.tree)).collect();
        self.changed();
        self.matched.do_send(PrefixMatched(hits));
    }
}

impl Handler<Unlock> for PrefixCache {
    type Result = ();

    fn handle(&mut self, Unlock(nodes): Unlock, _: &mut Self::Context) {
        for node in nodes {
            let known = self.tree.unlock(node).is_ok();
            assert!(known || !self.check_invariants, "a lock outlived its node");
        }
        self.changed();
    }
}

impl Handler<EvictPrefixes> for PrefixCache {
    type Result = ();

    fn handle(&mut self, EvictPrefixes(want): EvictPrefixes, _: &mut Self::Context) {
        let given = want.from(&mut self.tree);
        self.changed();
        self.evicted.do_send(PrefixesEvicted(given));
    }
}
