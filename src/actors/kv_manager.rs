//! KvManager: who holds which part of the KV pool, and which sequence id.
//!
//! Owns the pool's books, not its cells: those are the model's, and change only through what the Scheduler
//! puts into a step. Hears the Scheduler alone; handlers take less than a microsecond for each sequence. Runs
//! on the engine arbiter.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};

use crate::logic::kv::KvPool;
use crate::messages::{Book, Granted, ReserveMemory};
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

impl Handler<ReserveMemory> for KvManager {
    type Result = ();

    fn handle(&mut self, ReserveMemory(reserve): ReserveMemory, _: &mut Self::Context) {
        let reserved = reserve.from(&mut self.pool);
        self.changed();
        self.scheduler.do_send(Granted(reserved));
    }
}

impl Handler<Book> for KvManager {
    type Result = ();

    fn handle(&mut self, Book(entries): Book, _: &mut Self::Context) {
        for entry in entries {
            let agrees = entry.enter(&mut self.pool);
            assert!(
                agrees || !self.check_invariants,
                "the books disagree with {entry:?}"
            );
        }
        self.changed();
    }
}
