//! The other way to run a cell: the daemon's real actors with the fake model, all on one thread of a runtime whose
//! clock is paused and jumps to whatever is due next. What they decide they decide by messages, as in the daemon;
//! only HTTP is left out, and the handlers' part of it is played here: a seat before anything else, the submission,
//! the frames, and the cancel of a client that leaves.
//!
//! The clock's grain is a microsecond, up to which a step is rounded. Nothing in it depends on the machine or on
//! what else runs there. A watchdog looks for dead actors, as the daemon's does; that of a step's age is left out,
//! since no step hangs here.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::System;
use cadenced::clock::Clock;
use cadenced::config::{Backend, Config};
use cadenced::ids::RequestId;
use cadenced::job::{Job, Wish};
use cadenced::logic::capacity::Capacity;
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::request::{Outcome, RequestSpec, Terms};
use cadenced::logic::time::Timestamp;
use cadenced::messages::{Refused, Submit};
use cadenced::model::ModelBackend;
use cadenced::model::fake::{self, FakeBackend};
use cadenced::model::vocab::Vocab;
use cadenced::promises::Files;
use cadenced::reply::{self, Frame, ReplyReceiver, Usage};
use cadenced::system::{self, Engine, Shared, Threads};
use cadenced::telemetry::accounts::{Accounts, Ticket};
use cadenced::telemetry::metrics::Metrics;

use super::cost::{PS_PER_US, StepCost};
use super::daemon::BYTES_PER_TOKEN;
use super::engine::{Fate, Request, Trial};
use super::rung::Rung;

/// How often the watchdog looks.
const WATCH: Duration = Duration::from_secs(1);
/// When the last client is served, the engine is at rest within so many looks.
const LOOKS: usize = 1000;

/// One fate for each of `requests`, in their order.
///
/// # Panics
/// If an actor died, or one of them kept something of a request, which no run may survive.
pub fn run(trial: &Trial, requests: &[Request]) -> Vec<Fate> {
    // A thread of its own: a system leaves traces on its thread.
    let whole = std::thread::scope(|scope| scope.spawn(|| in_virtual_time(trial, requests)).join());
    whole.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn in_virtual_time(trial: &Trial, requests: &[Request]) -> Vec<Fate> {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets")
    };
    System::with_tokio_rt(runtime).block_on(async {
        let house = Rc::new(House::open(trial, requests).await);
        let watched = Rc::clone(&house);
        tokio::select! {
            biased;
            fates = serve(house) => fates,
            dead = watch(watched) => panic!("{dead} is dead"),
        }
    })
}

/// The daemon, and what everybody knows there.
struct House {
    config: Config,
    shared: Shared,
    engine: Engine,
    capacity: Arc<Capacity>,
    vocab: Arc<Vocab>,
    requests: Vec<Request>,
    /// What the requests' times count from.
    opened: Timestamp,
    slo_us: Option<u64>,
    patience_us: Option<u64>,
}

impl House {
    async fn open(trial: &Trial, requests: &[Request]) -> Self {
        let config = config(&trial.rung, trial.cost);
        let shared = Shared {
            clock: Clock::start_virtual(),
            published: Arc::default(),
            accounts: Accounts::new(Metrics::new().expect("names of metrics are valid")),
        };
        let answer = |r: &Request| {
            let prompt = r.text.tokens(r.prompt_tokens, 0);
            (fake::prompt_hash(&prompt), r.answer_tokens - 1)
        };
        let lengths = requests.iter().map(answer).collect();
        let backend = FakeBackend::new(&config).with_lengths(lengths);
        let make =
            move || Ok::<_, std::convert::Infallible>(Box::new(backend) as Box<dyn ModelBackend>);
        let started = system::start(&config, &shared, Files::default(), Threads::current(), make);
        let Ok(engine) = started.await;
        Self {
            capacity: Capacity::new(config.capacity()),
            vocab: Arc::new(fake::vocab()),
            requests: requests.to_vec(),
            opened: shared.clock.now(),
            slo_us: trial.slo_us,
            patience_us: trial.patience_us,
            config,
            shared,
            engine,
        }
    }

    /// Microseconds since the opening.
    fn now_us(&self) -> u64 {
        self.shared.clock.now().since(self.opened).as_micros() as u64
    }

    async fn sleep_until(&self, at_us: u64) {
        let left_us = at_us.saturating_sub(self.now_us());
        if left_us > 0 {
            self.shared
                .clock
                .sleep(Duration::from_micros(left_us))
                .await;
        }
    }

    fn spec(&self, index: usize, request: &Request) -> RequestSpec {
        let arrival = self.opened + Duration::from_micros(request.at_us);
        let context = self.config.kv_pool().sequence_tokens_max();
        let room = context - request.prompt_tokens;
        let cap = room.min(self.config.limits.max_output_tokens);
        RequestSpec {
            id: RequestId(index as u64 + 1),
            arrival,
            deadline: self
                .slo_us
                .map_or(Timestamp::NEVER, |us| arrival + Duration::from_micros(us)),
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens.min(cap),
            preempted: false,
            terms: Terms::default(),
        }
    }

    /// Nothing is held but what is cached.
    fn is_at_rest(&self) -> bool {
        let kv = self.shared.published.kv();
        self.capacity.held().requests == 0 && kv.blocks_free + kv.blocks_cached == kv.blocks_total
    }
}

/// The rung's configuration with the fake at these costs.
fn config(rung: &Rung, cost: StepCost) -> Config {
    let mut config = rung.config.clone();
    let is_as_configured = rung.policy == config.policy() && rung.capacity == config.capacity();
    assert!(is_as_configured, "the actors run what is configured");
    let us = |ps: u64| ps as f64 / PS_PER_US as f64;
    config.model.backend = Backend::Fake;
    config.fake.step_us = us(cost.step_ps);
    config.fake.prefill_token_us = us(cost.prefill_token_ps);
    config.fake.decode_seq_us = us(cost.decode_seq_ps);
    config.fake.cached_token_us = us(cost.cached_token_ps);
    config
}

async fn watch(house: Rc<House>) -> &'static str {
    loop {
        house.shared.clock.sleep(WATCH).await;
        if let Some(dead) = house.engine.dead() {
            return dead;
        }
    }
}

/// Lets the clients come when they do.
async fn serve(house: Rc<House>) -> Vec<Fate> {
    let mut clients = Vec::new();
    for (index, request) in house.requests.iter().enumerate() {
        house.sleep_until(request.at_us).await;
        clients.push(actix::spawn(client(Rc::clone(&house), index)));
    }
    let mut fates = Vec::new();
    for client in clients {
        fates.push(client.await.expect("no client panics"));
    }
    for _ in 0..LOOKS {
        if house.is_at_rest() {
            return fates;
        }
        house.shared.clock.sleep(WATCH).await;
    }
    panic!("the daemon kept something");
}

/// One request, from its arrival to whatever ends it for its client.
async fn client(house: Rc<House>, index: usize) -> Fate {
    let request = &house.requests[index];
    let leaves_us = house.patience_us.map_or(u64::MAX, |us| request.at_us + us);
    let leaves = async {
        match house.patience_us {
            Some(_) => house.sleep_until(leaves_us).await,
            None => std::future::pending().await,
        }
    };
    let first_token_us = Cell::new(None);
    let said = tokio::select! {
        biased;
        () = leaves => {
            house.engine.cancel(RequestId(index as u64 + 1));
            Said::of(Outcome::Cancelled)
        }
        end = ask(&house, index, request, &first_token_us) => end,
    };
    Fate {
        outcome: said.outcome,
        first_token_us: first_token_us.get(),
        end_us: house.now_us(),
        generated: said.usage.map_or(0, |u| u.completion_tokens),
        cached_tokens: said.usage.map(|u| u.cached_tokens),
        decision: said.decision,
    }
}

/// What a client was told.
struct Said {
    outcome: Outcome,
    /// With the end of a reply.
    usage: Option<Usage>,
    decision: Option<Decision>,
}

impl Said {
    fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            usage: None,
            decision: None,
        }
    }
}

/// What the handler of the route does, without the wire.
async fn ask(
    house: &House,
    index: usize,
    request: &Request,
    first_token_us: &Cell<Option<u64>>,
) -> Said {
    let mut ticket = Ticket::new(Arc::clone(&house.shared.accounts));
    let bytes = request.prompt_tokens as usize * BYTES_PER_TOKEN;
    let Ok(reservation) = house.capacity.reserve(bytes) else {
        ticket.refuse(Outcome::Refused);
        return Said::of(Outcome::Refused);
    };
    if request.prompt_tokens >= house.config.kv_pool().sequence_tokens_max() {
        ticket.refuse(Outcome::Invalid);
        return Said::of(Outcome::Invalid);
    }
    ticket.reservation = Some(reservation);
    let spec = house.spec(index, request);
    let (sender, replies) = reply::channel(spec.max_tokens, usize::MAX);
    let prompt = request.text.tokens(request.prompt_tokens, 0);
    let job = Job::greedy(prompt, sender, ticket, Arc::clone(&house.vocab));
    let wish = Wish {
        messages: 1,
        slo: house.slo_us.map(Duration::from_micros),
        alpha: None,
        best_effort: false,
    };
    match house.engine.submit.send(Submit { spec, wish, job }).await {
        Ok(Ok(answer)) => {
            let (outcome, usage) = listen(house, replies, first_token_us).await;
            Said {
                outcome,
                usage: Some(usage),
                decision: answer.map(|a| a.decision),
            }
        }
        Ok(Err(Refused::Unpromised(refusal))) => {
            let decision = refusal.answer.decision;
            let outcome = decision.verdict.refusal().unwrap_or(Outcome::Refused);
            Said {
                decision: Some(decision),
                ..Said::of(outcome)
            }
        }
        Ok(Err(Refused::Capacity { .. })) => Said::of(Outcome::Refused),
        Err(e) => panic!("admission is gone: {e}"),
    }
}

async fn listen(
    house: &House,
    mut replies: ReplyReceiver,
    first_token_us: &Cell<Option<u64>>,
) -> (Outcome, Usage) {
    loop {
        match std::future::poll_fn(|cx| replies.poll_recv(cx)).await {
            Some(Frame::Text(_)) => {
                let first = first_token_us.get().unwrap_or_else(|| house.now_us());
                first_token_us.set(Some(first));
            }
            Some(Frame::Finished { reason, usage, .. }) => {
                return (Outcome::Finished(reason), usage);
            }
            Some(Frame::Failed(e)) => panic!("the fake never fails: {e}"),
            None => panic!("a reply without an end"),
        }
    }
}

#[cfg(test)]
#[path = "actors_tests.rs"]
mod tests;
