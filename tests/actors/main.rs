//! Each actor alone, with a recorder in the place of its peers: what it is told, and what it says then.

mod gates;
mod memory;
mod runner;
mod scheduler;

use std::sync::{Arc, Mutex};

use actix::{Actor, Context, Handler, Message, Recipient};
use cadenced::actors::admission::Admission;
use cadenced::actors::kv_manager::KvManager;
use cadenced::actors::model_runner::ModelRunner;
use cadenced::actors::prefix_cache::PrefixCache;
use cadenced::actors::scheduler::{Peers, Scheduler, Settings};
use cadenced::actors::wait_queue::{Peers as QueuePeers, WaitQueue};
use cadenced::clock::Clock;
use cadenced::config::{Config, Flags};
use cadenced::ids::{RequestId, SeqId, StepId, TokenId};
use cadenced::job::{Job, Wish};
use cadenced::logic::admission::{CapacityCap, RetryAfter};
use cadenced::logic::capacity::{Capacity, CapacityExceeded, CapacityLimits};
use cadenced::logic::kv::{Demand, KvPool, Lease, Reservation, Shortfall};
use cadenced::logic::prefix::{Beginnings, EvictionOrder, PrefixCache as PrefixTree, PrefixIndex};
use cadenced::logic::request::{Lane, RequestSpec, Terms};
use cadenced::logic::scheduler::StepLimits;
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use cadenced::logic::scheduler::step::{RowPlan, RowResult, StepPlan, Work};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::{
    BookEntry, Evict, Given, Inserted, Insertion, Query, Reserve, Reserved, Turn,
};
use cadenced::logic::wait_queue::{QueueOrder, TakeRule, WaitQueue as QueueLogic};
use cadenced::messages::*;
use cadenced::model::EffectiveSettings;
use cadenced::model::fake::{FakeBackend, vocab};
use cadenced::promises;
use cadenced::reply::{self, Frame, ReplyReceiver};
use cadenced::telemetry::accounts::{Accounts, Ticket};
use cadenced::telemetry::metrics::Metrics;
use cadenced::telemetry::published::Published;

const RETRY: RetryAfter = RetryAfter {
    cap: std::time::Duration::from_secs(60),
};

/// Keeps every message it gets.
struct Recorder<M>(Arc<Mutex<Vec<M>>>);

impl<M: Message<Result = ()> + Unpin + 'static> Actor for Recorder<M> {
    type Context = Context<Self>;
}

impl<M: Message<Result = ()> + Unpin + Send + 'static> Handler<M> for Recorder<M> {
    type Result = ();

    fn handle(&mut self, message: M, _: &mut Self::Context) {
        self.0.lock().unwrap().push(message);
    }
}

type Heard<M> = Arc<Mutex<Vec<M>>>;

fn recorder<M: Message<Result = ()> + Unpin + Send + 'static>() -> (Recipient<M>, Heard<M>) {
    let heard = Heard::default();
    let addr = Recorder(Arc::clone(&heard)).start();
    (addr.recipient(), heard)
}

/// Waits for the next message that a recorder heard.
#[track_caller]
fn next<M>(heard: &Heard<M>) -> impl Future<Output = M> {
    let caller = std::panic::Location::caller();
    let heard = Arc::clone(heard);
    async move {
        for _ in 0..10_000 {
            if let Some(message) = heard.lock().unwrap().pop() {
                return message;
            }
            tokio::task::yield_now().await;
        }
        panic!("{caller}: nothing was said");
    }
}

fn accounts() -> Arc<Accounts> {
    Accounts::new(Metrics::new().unwrap())
}

fn request(id: u64, prompt_tokens: u32, max_tokens: u32) -> (Owned, ReplyReceiver) {
    let spec = RequestSpec {
        id: RequestId(id),
        arrival: Timestamp(id),
        deadline: Timestamp::NEVER,
        prompt_tokens,
        max_tokens,
        preempted: false,
        terms: Terms::default(),
    };
    let (sender, receiver) = reply::channel(max_tokens, 1 << 16);
    let prompt = (0..prompt_tokens).map(|i| TokenId((2000 + 100 * id) as i32 + i as i32));
    let job = Job::greedy(
        prompt.collect(),
        sender,
        Ticket::uncounted(),
        Arc::new(vocab()),
    );
    ((spec, job), receiver)
}
