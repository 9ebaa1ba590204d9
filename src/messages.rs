//! Every message between actors: the protocol on one page.
//!
//! Commands are imperative, events are in the past tense. Requests travel as `(RequestSpec, Job)`; who holds
//! the pair owns the request. The direction of each message is in its text; [`crate::system`] wires them.

use std::sync::Arc;
use std::time::Duration;

use actix::{Message, MessageResponse};

use crate::ids::{RequestId, TokenId};
use crate::job::{Admitted, Job, Wish};
use crate::logic::capacity::CapacityExceeded;
use crate::logic::conformal::policy::Fallback;
use crate::logic::conformal::predictor::Model;
use crate::logic::conformal::receipt::{Answer, Refusal};
use crate::logic::conformal::snapshot::{LaneLoad, Pace};
use crate::logic::prefix::{Beginnings, Match, NodeHandle};
use crate::logic::request::{Outcome, RequestSpec};
use crate::logic::scheduler::step::{RowResult, StepPlan};
use crate::logic::time::Timestamp;
use crate::logic::turn::{BookEntry, Evict, Given, Inserted, Insertion, Query, Reserve, Reserved};
use crate::logic::wait_queue::TakeRule;
use crate::model::sampling::SamplingParams;
use crate::reply::Usage;

/// A request with all that belongs to it.
pub type Owned = (RequestSpec, Job);

/// HTTP → Admission: may this request in? The answer comes when it is in the wait queue or refused; it says
/// what the client is to be told of a promise, if admission looks at promises at all.
#[derive(Message)]
#[rtype(result = "Result<Option<Answer>, Refused>")]
pub struct Submit {
    pub spec: RequestSpec,
    pub wish: Wish,
    pub beginnings: Beginnings,
    pub job: Job,
}

/// Admission's "no".
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Refused {
    /// The server holds as much as it may.
    Capacity {
        reason: CapacityExceeded,
        retry_after_s: u32,
    },
    /// No promise can be made.
    Unpromised(Refusal),
}

/// HTTP → Admission: what would the answer be? Nothing is changed by asking.
#[derive(Message)]
#[rtype(result = "Quoted")]
pub struct Quote {
    pub spec: RequestSpec,
    pub wish: Wish,
    pub beginnings: Beginnings,
}

/// Admission's answer, and what a refusal would offer.
#[derive(MessageResponse, Clone, Copy, PartialEq, Debug)]
pub struct Quoted {
    pub answer: Answer,
    pub refusal: Option<Refusal>,
}

/// Whoever ends an admitted request → Admission: this is what came of it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RequestEnded {
    pub spec: RequestSpec,
    pub admitted: Admitted,
    pub outcome: Outcome,
    pub usage: Usage,
    pub at: Timestamp,
}

/// Warm-up → Admission: this is the pace of one reply on an idle engine.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct WarmedUp(pub Pace);

/// A thread of Admission's → Admission: the first model is fitted.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Fitted(pub Model);

/// Admission → WaitQueue: an admitted request.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Enqueue(pub Owned);

/// WaitQueue → Admission: this promised request is about to run beside `running`; will its promise be kept?
/// Answered by [`Unkept`] if not.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Recheck {
    pub spec: RequestSpec,
    pub wish: Wish,
    pub beginnings: Beginnings,
    pub running: LaneLoad,
}

/// Admission → WaitQueue and Scheduler: wherever the request is, its promise is not expected to be kept.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct Unkept {
    pub id: RequestId,
    pub instead: Fallback,
}

/// HTTP → WaitQueue: how many wait that would go before a request like this?
#[derive(Message, Clone, Copy)]
#[rtype(result = "usize")]
pub struct Position(pub RequestSpec);

/// WaitQueue → Scheduler: there is something to take.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct WorkWaiting;

/// Scheduler → WaitQueue: give me what shall run next.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct Take(pub TakeRule);

/// WaitQueue → Scheduler: these shall run; if there are none though some wait, ask again at that moment.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Taken {
    pub requests: Vec<Owned>,
    pub ask_again: Option<Timestamp>,
}

/// Scheduler → WaitQueue: these could not start, or have yielded their memory.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PutBack(pub Vec<Owned>);

/// Scheduler → PrefixCache: these have been computed.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Insert(pub Vec<Insertion>);

/// PrefixCache → Scheduler: what became of each, in order.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PrefixInserted(pub Vec<Inserted>);

/// Scheduler → PrefixCache: what is cached of each of these prompts? What is found is locked.
#[derive(Message)]
#[rtype(result = "()")]
pub struct MatchPrefix(pub Vec<Query>);

/// PrefixCache → Scheduler: what is cached, for each prompt asked about.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PrefixMatched(pub Vec<Option<Match>>);

/// Scheduler → PrefixCache: these are used no more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unlock(pub Vec<NodeHandle>);

/// Scheduler → PrefixCache: give up so much.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EvictPrefixes(pub Evict);

/// PrefixCache → Scheduler: what was given up.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PrefixesEvicted(pub Given);

/// Scheduler → KvManager: memory for the next step.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReserveMemory(pub Reserve);

/// KvManager → Scheduler: what was to be had.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Granted(pub Reserved);

/// Scheduler → KvManager: what has changed besides, in order.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Book(pub Vec<BookEntry>);

/// Scheduler → ModelRunner: compute this. The buffers come back in [`StepDone`].
#[derive(Message)]
#[rtype(result = "()")]
pub struct RunStep(pub Box<StepBuffers>);

/// ModelRunner → Scheduler: it is computed.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StepDone(pub Box<StepBuffers>);

/// Client's disconnect → WaitQueue and Scheduler: wherever the request is, it shall end. The dropped reply
/// channel says the same, so a Cancel that overtakes its request loses nothing.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct Cancel(pub RequestId);

/// A step on its way to the runner and back: made once, then reused.
#[derive(Default)]
pub struct StepBuffers {
    pub plan: StepPlan,
    /// One for each row of the plan.
    pub inputs: Vec<RowInput>,
    /// One for each row of the plan, filled by the runner.
    pub results: Vec<RowResult>,
    /// There was no pause since the step before: the time between the two is host work.
    pub back_to_back: bool,
    /// The runner went on with the step after this one by itself.
    pub followed: bool,
    /// Removals, decode and sampling, filled by the runner.
    pub model_time: Duration,
}

/// What the runner needs beside the plan's row.
#[derive(Clone)]
pub struct RowInput {
    /// The prompt, and what of the reply is to be computed again, for a row that prefills.
    pub prompt: Option<Arc<[TokenId]>>,
    pub sampling: SamplingParams,
}
