//! The only file that makes arbiters and starts actors.
//!
//! Three arbiters (threads) beside the HTTP workers: *control* for Admission; *engine* for the Scheduler and
//! the three actors that answer it, where a message costs about a microsecond; *runner* for the ModelRunner,
//! which blocks in `llama_decode`. Addresses are made before any actor starts, so that each can be given its
//! peers, and every mailbox has the size that its traffic needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::dev::channel::{AddressReceiver, channel};
use actix::{Actor, Addr, Arbiter, ArbiterHandle, Context, Recipient};

use crate::actors::admission::Admission;
use crate::actors::handoff::Handoff;
use crate::actors::kv_manager::KvManager;
use crate::actors::model_runner::ModelRunner;
use crate::actors::prefix_cache::PrefixCache;
use crate::actors::scheduler::{Peers, Scheduler, Settings};
use crate::actors::wait_queue::{Peers as QueuePeers, WaitQueue};
use crate::clock::Clock;
use crate::config::Config;
use crate::ids::RequestId;
use crate::job::Job;
use crate::logic::admission::{CapacityCap, RetryAfter};
use crate::logic::prefix::PrefixCache as PrefixTree;
use crate::logic::scheduler::Scheduler as SchedulerLogic;
use crate::logic::turn::Turn;
use crate::logic::wait_queue::WaitQueue as QueueLogic;
use crate::messages::{Cancel, Enqueue, Position, Quote, Submit, WarmedUp};
use crate::model::{EffectiveSettings, ModelBackend};
use crate::promises;
use crate::telemetry::accounts::Accounts;
use crate::telemetry::published::Published;

/// What all parts of the daemon share.
#[derive(Clone)]
pub struct Shared {
    pub clock: Clock,
    pub published: Arc<Published>,
    pub accounts: Arc<Accounts>,
}

/// The engine's doors, for the HTTP side, and its vital signs, for the watchdog.
pub struct Engine {
    pub submit: Recipient<Submit>,
    pub quote: Recipient<Quote>,
    pub position: Recipient<Position>,
    pub warmed_up: Recipient<WarmedUp>,
    /// Past Admission, for the warm-up alone.
    pub enqueue: Recipient<Enqueue>,
    cancel: [Recipient<Cancel>; 2],
    /// What the backend made of its settings.
    pub effective: EffectiveSettings,
    signs: Vec<(&'static str, Sign)>,
    arbiters: Vec<ArbiterHandle>,
}

impl Engine {
    /// Ends a request wherever it is; nothing happens if it has ended already.
    pub fn cancel(&self, id: RequestId) {
        for to in &self.cancel {
            to.do_send(Cancel(id));
        }
    }

    /// The first actor or arbiter that is dead.
    #[must_use]
    pub fn dead(&self) -> Option<&'static str> {
        self.signs
            .iter()
            .find(|(_, alive)| !alive())
            .map(|(name, _)| *name)
    }

    /// Stops the arbiters. The runner's ends when its decode does.
    pub fn stop(&self) {
        for arbiter in &self.arbiters {
            arbiter.stop();
        }
    }
}

/// An actor's address before it runs.
struct Mailbox<A: Actor> {
    addr: Addr<A>,
    receiver: AddressReceiver<A>,
}

impl<A: Actor<Context = Context<A>>> Mailbox<A> {
    fn new(capacity: usize) -> Self {
        let (sender, receiver) = channel(capacity);
        Self {
            addr: Addr::new(sender),
            receiver,
        }
    }

    /// Runs the actor that `make` makes, on the arbiter's thread. Gives the sign of its life.
    fn run(self, on: &ArbiterHandle, make: impl FnOnce() -> A + Send + 'static) -> Sign {
        let addr = self.addr;
        let receiver = self.receiver;
        on.spawn_fn(move || {
            let actor = make();
            Context::with_receiver(receiver).run(actor);
        });
        Box::new(move || addr.connected())
    }
}

/// Whether something still lives.
type Sign = Box<dyn Fn() -> bool + Send + Sync>;

/// An arbiter whose thread's end is noticed.
fn arbiter() -> (ArbiterHandle, Sign) {
    struct Gone(Arc<AtomicBool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let handle = Arbiter::new().handle();
    let gone = Arc::new(AtomicBool::new(false));
    let guard = Gone(Arc::clone(&gone));
    // The future never ends; it is dropped with the thread's executor.
    handle.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    (handle, Box::new(move || !gone.load(Ordering::Relaxed)))
}

/// Starts the engine. `make_backend` runs on the runner's thread, where the backend stays.
///
/// # Errors
/// Whatever `make_backend` fails with.
pub async fn start<E: Send + 'static>(
    config: &Config,
    shared: &Shared,
    files: promises::Files,
    make_backend: impl FnOnce() -> Result<Box<dyn ModelBackend>, E> + Send + 'static,
) -> Result<Engine, E> {
    // `try_send` is used on one edge only, Admission → WaitQueue: as many as the cap lets in. All others are
    // bounded by the protocol (one answer for each question, one Cancel for each request).
    let [promised, best_effort] = config.capacities();
    let requests = promised.requests + best_effort.requests + 1;
    let admission = Mailbox::<Admission>::new(requests);
    let queue = Mailbox::<WaitQueue>::new(requests);
    let scheduler = Mailbox::<Scheduler>::new(requests);
    let kv = Mailbox::<KvManager>::new(16);
    let prefixes = Mailbox::<PrefixCache>::new(16);
    let runner = Mailbox::<ModelRunner>::new(16);

    let (control_arbiter, control_lives) = arbiter();
    let (engine_arbiter, engine_lives) = arbiter();
    let (runner_arbiter, runner_lives) = arbiter();
    let mut signs: Vec<(&'static str, Sign)> = vec![
        ("control arbiter", control_lives),
        ("engine arbiter", engine_lives),
        ("runner arbiter", runner_lives),
    ];

    // The backend first: nothing else starts if it can't.
    let (made, backend) = tokio::sync::oneshot::channel();
    let (to_scheduler, accounts) = (
        scheduler.addr.clone().recipient(),
        Arc::clone(&shared.accounts),
    );
    let handoff = Arc::new(Handoff::default());
    let runners = Arc::clone(&handoff);
    let runner_addr = runner.addr.clone();
    let receiver = runner.receiver;
    runner_arbiter.spawn_fn(move || match make_backend() {
        Ok(backend) => {
            let effective = backend.effective();
            let runner = ModelRunner::new(backend, to_scheduler, runners, accounts);
            Context::with_receiver(receiver).run(runner);
            let _ = made.send(Ok(effective));
        }
        Err(e) => {
            let _ = made.send(Err(e));
        }
    });
    let effective = match backend.await {
        Ok(made) => made?,
        // Making the backend panicked: its actor never lived, which the watchdog will say.
        Err(_) => EffectiveSettings::default(),
    };
    let lives = runner_addr.clone();
    signs.push(("model runner", Box::new(move || lives.connected())));

    let peers = Peers {
        take: queue.addr.clone().recipient(),
        put_back: queue.addr.clone().recipient(),
        insert: prefixes.addr.clone().recipient(),
        matches: prefixes.addr.clone().recipient(),
        unlock: prefixes.addr.clone().recipient(),
        evict: prefixes.addr.clone().recipient(),
        reserve: kv.addr.clone().recipient(),
        book: kv.addr.clone().recipient(),
        runner: runner_addr.recipient(),
        handoff,
    };
    let engine = Engine {
        submit: admission.addr.clone().recipient(),
        quote: admission.addr.clone().recipient(),
        position: queue.addr.clone().recipient(),
        warmed_up: admission.addr.clone().recipient(),
        enqueue: queue.addr.clone().recipient(),
        cancel: [
            queue.addr.clone().recipient(),
            scheduler.addr.clone().recipient(),
        ],
        effective,
        signs: Vec::new(),
        arbiters: vec![
            control_arbiter.clone(),
            engine_arbiter.clone(),
            runner_arbiter,
        ],
    };

    let tree = PrefixTree::new(config.prefix.eviction);
    let prefix_index = tree.index();
    let promises = promises::controller(config, files.calibration.as_ref(), &engine.effective);
    let unkept = [
        queue.addr.clone().recipient(),
        scheduler.addr.clone().recipient(),
    ];
    let recheck = config.admission.recheck;
    let recheck = recheck.then(|| admission.addr.clone().recipient());
    let (to_queue, gate) = (queue.addr.clone().recipient(), shared.clone());
    let retry = RetryAfter {
        cap: std::time::Duration::from_secs(config.limits.retry_after_s_max),
    };
    signs.push((
        "admission",
        admission.run(&control_arbiter, move || Admission {
            capacity: CapacityCap { retry },
            promises,
            queue: to_queue,
            prefixes: prefix_index,
            clock: gate.clock,
            published: gate.published,
            accounts: gate.accounts,
            traces: files.traces,
            unkept,
        }),
    ));

    let logic = QueueLogic::new(config.queue_order(), requests)
        .counting_prefill(|spec, job: &Job| job.prefill_tokens(spec));
    let queue_peers = QueuePeers {
        scheduler: scheduler.addr.clone().recipient(),
        wake: scheduler.addr.clone().recipient(),
        recheck,
    };
    let (clock, published) = (shared.clock, Arc::clone(&shared.published));
    signs.push((
        "wait queue",
        queue.run(&engine_arbiter, move || {
            WaitQueue::new(logic, queue_peers, clock, published, retry)
        }),
    ));

    let check_invariants = config.engine.check_invariants;
    let pool = config.kv_pool();
    let (granted, published) = (
        scheduler.addr.clone().recipient(),
        Arc::clone(&shared.published),
    );
    signs.push((
        "kv manager",
        kv.run(&engine_arbiter, move || KvManager {
            pool,
            scheduler: granted,
            published,
            check_invariants,
        }),
    ));

    let (answers, published) = (scheduler.addr.clone(), Arc::clone(&shared.published));
    signs.push((
        "prefix cache",
        prefixes.run(&engine_arbiter, move || PrefixCache {
            tree,
            inserted: answers.clone().recipient(),
            matched: answers.clone().recipient(),
            evicted: answers.recipient(),
            published,
            check_invariants,
        }),
    ));

    let turn = Turn::new(
        SchedulerLogic::new(config.policy(), config.step_limits()),
        engine.effective.prefix_reuse,
    );
    let shared = shared.clone();
    let settings = Settings {
        retry,
        review_every: config.admission.review_every,
        check_invariants,
    };
    signs.push((
        "scheduler",
        scheduler.run(&engine_arbiter, move || {
            Scheduler::new(
                turn,
                peers,
                shared.clock,
                shared.published,
                shared.accounts,
                settings,
            )
        }),
    ));
    Ok(Engine { signs, ..engine })
}
