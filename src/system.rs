//! The only place that makes arbiters and starts actors.
//!
//! Three arbiters (threads) beside the HTTP workers: *control* for Admission; *engine* for the Scheduler and
//! the three actors that answer it, where a message costs about a microsecond; *runner* for the ModelRunner,
//! which blocks in `llama_decode`. Addresses are made before any actor starts, so that each can be given its
//! peers, and every mailbox has the size that its traffic needs.

mod threads;

use std::sync::Arc;

use actix::{ArbiterHandle, Context, Recipient};

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
pub use threads::Threads;
use threads::{Mailbox, Sign};

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
    /// Past Admission, for the warm-up and the operator.
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

    /// Stops the engine's own arbiters. The runner's ends when its decode does.
    pub fn stop(&self) {
        for arbiter in &self.arbiters {
            arbiter.stop();
        }
    }
}

/// Starts the engine on `threads`. `make_backend` runs on the runner's, where the backend stays.
///
/// # Errors
/// Whatever `make_backend` fails with.
pub async fn start<E: Send + 'static>(
    config: &Config,
    shared: &Shared,
    files: promises::Files,
    threads: Threads,
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

    let Threads {
        control,
        engine: engine_thread,
        runner: runner_thread,
        shared: one_thread,
        mut signs,
    } = threads;

    // The backend first: nothing else starts if it can't.
    let (made, backend) = tokio::sync::oneshot::channel();
    let (to_scheduler, accounts) = (
        scheduler.addr.clone().recipient(),
        Arc::clone(&shared.accounts),
    );
    let handoff = Arc::new(if one_thread {
        Handoff::none()
    } else {
        Handoff::default()
    });
    let (runners, clock) = (Arc::clone(&handoff), shared.clock);
    let runner_addr = runner.addr.clone();
    let receiver = runner.receiver;
    runner_thread.spawn_fn(move || match make_backend() {
        Ok(backend) => {
            let effective = backend.effective();
            let runner = ModelRunner::new(backend, to_scheduler, runners, clock, accounts);
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
        arbiters: if one_thread {
            Vec::new()
        } else {
            vec![control.clone(), engine_thread.clone(), runner_thread]
        },
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
        admission.run(&control, move || Admission {
            capacity: CapacityCap { retry },
            promises,
            queue: to_queue,
            prefixes: prefix_index,
            clock: gate.clock,
            published: gate.published,
            accounts: gate.accounts,
            fits_here: one_thread,
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
        queue.run(&engine_thread, move || {
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
        kv.run(&engine_thread, move || KvManager {
            pool,
            scheduler: granted,
            published,
            check_invariants,
        }),
    ));

    let (answers, published) = (scheduler.addr.clone(), Arc::clone(&shared.published));
    signs.push((
        "prefix cache",
        prefixes.run(&engine_thread, move || PrefixCache {
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
        scheduler.run(&engine_thread, move || {
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
