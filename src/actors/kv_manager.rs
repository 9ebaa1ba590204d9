//! KvManager: who holds which part of the KV pool, and which sequence id.
//!
//! Owns the pool's books, not its cells: those are the model's, and change only through what the Scheduler
//! puts into a step. Hears the Scheduler alone; handlers take less than a microsecond for each sequence. Runs
//! on the engine arbiter.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};

use crate::logic::kv::KvPool;
use crate::messages::{Granted, Release, Reserve};
use crate::telemetry::published::Published;

/// See the module's text.
pub struct KvManager {
    pub pool: KvPool,
    pub scheduler: Recipient<Granted>,
    pub published: Arc<Published>,
    pub check_invariants: bool,
}

impl KvManager {
    fn changed(&self) {
        if self.check_invariants {
            self.pool.assert_conserved();
        }
        self.published.set_kv(self.pool.usage());
    }
}

impl Actor for KvManager {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        self.changed();
    }
}

impl Handler<Reserve> for KvManager {
    type Result = ();

    fn handle(&mut self, Reserve(demands): Reserve, _: &mut Self::Context) {
        // In order, and no further than the first that does not fit: a small request does not pass a large
        // one for ever.
        let leases = demands
            .into_iter()
            .map_while(|blocks| self.pool.reserve(blocks))
            .collect();
        self.changed();
        self.scheduler.do_send(Granted(leases));
    }
}

impl Handler<Release> for KvManager {
    type Result = ();

    fn handle(&mut self, Release(seqs): Release, _: &mut Self::Context) {
        for seq in seqs {
            let was_held = self.pool.release(seq);
            debug_assert!(was_held, "{seq:?} released twice");
        }
        self.changed();
    }
}
