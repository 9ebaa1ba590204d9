//! Each actor alone, with a recorder in the place of its peers: what it is told, and what it says then.

use std::sync::{Arc, Mutex};

use actix::{Actor, Context, Handler, Message, Recipient};
use cadenced::actors::admission::Admission;
use cadenced::actors::kv_manager::KvManager;
use cadenced::actors::model_runner::ModelRunner;
use cadenced::actors::prefix_cache::PrefixCache;
use cadenced::actors::scheduler::{Peers, Scheduler};
use cadenced::actors::wait_queue::WaitQueue;
use cadenced::clock::Clock;
use cadenced::config::{Config, Flags};
use cadenced::ids::{RequestId, SeqId, StepId, TokenId};
use cadenced::job::{Job, Wish};
use cadenced::logic::admission::{CapacityOnly, RetryAfter};
use cadenced::logic::capacity::{Capacity, CapacityExceeded, CapacityLimits};
use cadenced::logic::kv::{Demand, KvPool, Lease, Reservation, Shortfall};
use cadenced::logic::output::TextAssembler;
use cadenced::logic::prefix::{EvictionOrder, PrefixCache as PrefixTree, PrefixIndex};
use cadenced::logic::request::RequestSpec;
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
use cadenced::model::sampling::SamplingParams;
use cadenced::promises;
use cadenced::reply::{self, Frame, ReplyReceiver};
use cadenced::telemetry::accounts::{Accounts, Ticket};
use cadenced::telemetry::metrics::Metrics;
use cadenced::telemetry::published::Published;

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
    };
    let (sender, receiver) = reply::channel(max_tokens, 1 << 16);
    let job = Job {
        prompt: (0..prompt_tokens)
            .map(|i| TokenId((2000 + 100 * id) as i32 + i as i32))
            .collect(),
        sampling: SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
        },
        ignore_eos: false,
        text: TextAssembler::new(Vec::new()),
        reply: sender,
        ticket: Ticket::for_warm_up(),
        vocab: Arc::new(vocab()),
        generated: Vec::new(),
        cacheable: true,
        transcripts: None,
        cached_tokens: None,
        first_token_at: None,
        admitted: None,
    };
    ((spec, job), receiver)
}

#[actix::test]
async fn kv_manager_grants_in_order_up_to_the_first_that_does_not_fit() {
    let (scheduler, granted) = recorder();
    let published = Arc::new(Published::default());
    let kv = KvManager {
        pool: KvPool::unified(10 * 16, 8, Reservation::Request),
        scheduler,
        published: Arc::clone(&published),
        check_invariants: true,
    }
    .start();
    let demand = |blocks: u32| Demand {
        prefix: None,
        prompt_tokens: 1,
        total_max: blocks * 16,
    };
    let demands = [4, 7, 1].map(demand).to_vec();
    let growth = Vec::new();
    kv.send(ReserveMemory(Reserve { growth, demands }))
        .await
        .unwrap();
    let Granted(reserved) = next(&granted).await;
    assert_eq!(
        reserved.leases.len(),
        1,
        "7 do not fit, and the 1 behind it does not pass"
    );
    assert!(reserved.short.is_some_and(|s| !s.attainable));
    assert_eq!(published.kv().blocks_free, 6);
    let seq = reserved.leases[0].seq;
    kv.send(Book(vec![BookEntry::Retire { seq }]))
        .await
        .unwrap();
    assert_eq!(published.kv().blocks_free, 10);
    assert_eq!(
        published.kv().sequences_free,
        7,
        "not before its cells are gone"
    );
    kv.send(Book(vec![BookEntry::Reusable { seq }]))
        .await
        .unwrap();
    assert_eq!(published.kv().sequences_free, 8);
}

fn query(prompt: &Arc<[TokenId]>, cacheable: bool) -> Query {
    Query {
        tokens: Arc::clone(prompt),
        cacheable,
    }
}

#[actix::test]
async fn prefix_cache_locks_what_it_finds_and_gives_up_what_is_not_locked() {
    let (inserted, insertions) = recorder();
    let (matched, matches) = recorder();
    let (evicted, evictions) = recorder();
    let published = Arc::new(Published::default());
    let cache = PrefixCache {
        tree: PrefixTree::new(EvictionOrder::Lru),
        inserted,
        matched,
        evicted,
        published: Arc::clone(&published),
        check_invariants: true,
    }
    .start();
    let prompt: Arc<[TokenId]> = (0..40).map(TokenId).collect();
    let computed = Insertion {
        seq: SeqId(3),
        tokens: Arc::clone(&prompt),
        len: 32,
        computed: 40,
        lock: None,
        leaves: true,
    };
    cache.send(Insert(vec![computed])).await.unwrap();
    assert!(next(&insertions).await.0[0].owner);
    let queries = vec![query(&prompt, true), query(&prompt, false)];
    cache.send(MatchPrefix(queries)).await.unwrap();
    let PrefixMatched(hits) = next(&matches).await;
    let hit = hits[0].unwrap();
    assert_eq!((hit.tokens, hit.seq, hits[1]), (32, SeqId(3), None));
    assert_eq!(published.prefixes().tokens_locked, 32);
    let all = || Evict {
        blocks: 9,
        sequences: 0,
        held: vec![],
    };
    cache.send(EvictPrefixes(all())).await.unwrap();
    assert!(next(&evictions).await.0.evicted.is_empty(), "it is in use");
    cache.send(Unlock(vec![hit.node])).await.unwrap();
    cache.send(EvictPrefixes(all())).await.unwrap();
    assert_eq!(next(&evictions).await.0.evicted[0].seq, SeqId(3));
}

#[actix::test]
async fn wait_queue_wakes_the_scheduler_and_passes_over_who_has_left() {
    let (scheduler, taken) = recorder();
    let (wake, woken) = recorder::<WorkWaiting>();
    let published = Arc::new(Published::default());
    let queue = WaitQueue {
        logic: QueueLogic::new(QueueOrder::Arrival, 10),
        scheduler,
        wake,
        clock: Clock::start(),
        published: Arc::clone(&published),
    }
    .start();
    let mut receivers = Vec::new();
    for id in 1..=3 {
        let (owned, receiver) = request(id, 4, 4);
        queue.send(Enqueue(owned)).await.unwrap();
        receivers.push(receiver);
    }
    next(&woken).await;
    assert_eq!(
        published.waiting.load(std::sync::atomic::Ordering::Relaxed),
        3
    );
    // The first one's client leaves; its Cancel is still on the way.
    drop(receivers.remove(0));
    queue
        .send(Take(TakeRule {
            seats: 1,
            fill: None,
        }))
        .await
        .unwrap();
    let requests = next(&taken).await.requests;
    assert_eq!(
        requests.iter().map(|(s, _)| s.id).collect::<Vec<_>>(),
        [RequestId(2)]
    );
    queue.send(PutBack(requests)).await.unwrap();
    queue.send(Cancel(RequestId(2))).await.unwrap();
    queue
        .send(Take(TakeRule {
            seats: 9,
            fill: None,
        }))
        .await
        .unwrap();
    let requests = next(&taken).await.requests;
    assert_eq!(
        requests.iter().map(|(s, _)| s.id).collect::<Vec<_>>(),
        [RequestId(3)]
    );
}

#[actix::test]
async fn admission_refuses_what_is_over_the_token_cap_and_gives_the_seat_back() {
    let (queue, enqueued) = recorder();
    let capacity = Capacity::new(CapacityLimits {
        requests: 9,
        bytes: 99,
        tokens: 20,
    });
    let config = Config::load(None, [], &Flags::default()).unwrap();
    let admission = Admission {
        capacity: Box::new(CapacityOnly {
            retry: RetryAfter {
                cap: std::time::Duration::from_secs(60),
            },
        }),
        promises: promises::controller(&config, None, &EffectiveSettings::default()),
        queue,
        prefixes: PrefixIndex::default(),
        clock: Clock::start(),
        published: Arc::new(Published::default()),
        accounts: accounts(),
        traces: None,
    }
    .start();
    let mut keep = Vec::new();
    for (id, admitted) in [(1, true), (2, false)] {
        let ((spec, mut job), receiver) = request(id, 8, 8);
        job.ticket = Ticket::new(accounts());
        job.ticket.reservation = Some(capacity.reserve(1).unwrap());
        let wish = Wish::default();
        let answer = admission.send(Submit { spec, wish, job }).await.unwrap();
        if admitted {
            assert_eq!(answer, Ok(None), "off: nothing is told");
        } else {
            let refused = answer.unwrap_err();
            assert!(
                matches!(
                    refused,
                    Refused::Capacity {
                        reason: CapacityExceeded::Tokens,
                        ..
                    }
                ),
                "{refused:?}"
            );
        }
        keep.push(receiver);
    }
    let Enqueue((spec, _job)) = next(&enqueued).await;
    assert_eq!(spec.id, RequestId(1));
    assert_eq!(
        capacity.held().requests,
        1,
        "the refused one's seat is back"
    );
}

#[actix::test]
async fn model_runner_answers_a_step_with_its_results_and_its_buffers() {
    let (scheduler, done) = recorder();
    let mut config = Config::load(None, [], &Flags::default()).unwrap();
    config.fake.step_us = 0.0;
    let backend = FakeBackend::new(&config);
    let runner = ModelRunner::new(Box::new(backend), scheduler, Arc::default(), accounts()).start();
    let ((_, job), _receiver) = request(1, 4, 4);
    let row = RowPlan {
        index: 0,
        request: RequestId(1),
        seq: SeqId(0),
        work: Work::Prefill {
            start: 0,
            len: 4,
            samples: Some(0),
        },
    };
    let step = StepBuffers {
        plan: StepPlan {
            id: StepId(7),
            ops: vec![],
            rows: vec![row],
        },
        inputs: vec![RowInput {
            prompt: Some(job.prompt),
            sampling: job.sampling,
        }],
        ..StepBuffers::default()
    };
    runner.send(RunStep(Box::new(step))).await.unwrap();
    // The fake's cost is slept on tokio's clock.
    let step = loop {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        if let Some(StepDone(step)) = done.lock().unwrap().pop() {
            break step;
        }
    };
    assert_eq!(step.plan.id, StepId(7));
    assert!(matches!(step.results[..], [RowResult::Sampled(_)]));
}

struct SchedulerAlone {
    scheduler: actix::Addr<Scheduler>,
    takes: Heard<Take>,
    put_back: Heard<PutBack>,
    inserts: Heard<Insert>,
    matches: Heard<MatchPrefix>,
    reserves: Heard<ReserveMemory>,
    books: Heard<Book>,
    steps: Heard<RunStep>,
}

fn scheduler_alone() -> SchedulerAlone {
    let (take, takes) = recorder();
    let (put_back_to, put_back) = recorder();
    let (insert, inserts) = recorder();
    let (matches_to, matches) = recorder();
    let (unlock, _) = recorder();
    let (evict, _) = recorder();
    let (reserve, reserves) = recorder();
    let (book, books) = recorder();
    let (runner, steps) = recorder();
    let policy = Policy::Continuous {
        max_running: 2,
        order: StepOrder::DecodeFirst,
    };
    let logic = cadenced::logic::scheduler::Scheduler::new(
        policy,
        StepLimits {
            prefill_budget: 8,
            n_batch: 16,
        },
    );
    let peers = Peers {
        take,
        put_back: put_back_to,
        insert,
        matches: matches_to,
        unlock,
        evict,
        reserve,
        book,
        runner,
        handoff: Arc::default(),
    };
    let published = Arc::new(Published::default());
    let turn = Turn::new(logic, true);
    let scheduler =
        Scheduler::new(turn, peers, Clock::start(), published, accounts(), true).start();
    SchedulerAlone {
        scheduler,
        takes,
        put_back,
        inserts,
        matches,
        reserves,
        books,
        steps,
    }
}

/// One request from its arrival to its end, message by message.
#[actix::test]
async fn scheduler_says_what_the_protocol_says() {
    let s = scheduler_alone();
    s.scheduler.send(WorkWaiting).await.unwrap();
    assert_eq!(next(&s.takes).await.0.seats, 2);
    let ((spec, job), mut receiver) = request(1, 20, 1);
    let (second, _second_receiver) = request(2, 30, 1);
    s.scheduler
        .send(Taken {
            requests: vec![(spec, job), second],
            ask_again: None,
        })
        .await
        .unwrap();
    assert_eq!(next(&s.matches).await.0.len(), 2);
    s.scheduler
        .send(PrefixMatched(vec![None, None]))
        .await
        .unwrap();
    let ReserveMemory(reserve) = next(&s.reserves).await;
    assert_eq!(reserve.demands.len(), 2);
    assert_eq!(reserve.demands[0].total_max, 21, "prompt and max_tokens");
    // The pool has room for one only, and the cache has nothing to give up.
    let reserved = Reserved {
        leases: vec![Lease {
            seq: SeqId(0),
            shared_tokens: 0,
            blocks: 2,
        }],
        short: Some(Shortfall {
            blocks: 1,
            sequences: 0,
            attainable: false,
        }),
        ..Reserved::default()
    };
    s.scheduler.send(Granted(reserved)).await.unwrap();
    s.scheduler
        .send(PrefixesEvicted(Given::default()))
        .await
        .unwrap();
    assert_eq!(next(&s.put_back).await.0[0].0.id, RequestId(2));
    for sampled in [None, None, Some(TokenId(5))] {
        let RunStep(mut step) = next(&s.steps).await;
        assert_eq!(step.plan.rows.len(), 1);
        step.results = vec![sampled.map_or(RowResult::Advanced, RowResult::Sampled)];
        s.scheduler.send(StepDone(step)).await.unwrap();
        if sampled.is_none() && s.inserts.lock().unwrap().is_empty() {
            continue;
        }
        // Its first block is computed: others can share it.
        let Insert(insertions) = next(&s.inserts).await;
        assert_eq!((insertions[0].len, insertions[0].seq), (16, SeqId(0)));
        let answers = vec![Inserted {
            owner: true,
            ..Inserted::default()
        }];
        s.scheduler.send(PrefixInserted(answers)).await.unwrap();
        if sampled.is_none() {
            let ReserveMemory(told) = next(&s.reserves).await;
            assert_eq!(told.growth[0].tokens, 16);
            let grown = Reserved {
                growth: told.growth,
                grown: 1,
                ..Reserved::default()
            };
            s.scheduler.send(Granted(grown)).await.unwrap();
        }
    }
    // It has ended: its end reaches the client, the cache keeps its block, the rest goes in a step of its own.
    let text = std::future::poll_fn(|cx| receiver.poll_recv(cx)).await;
    assert!(matches!(text, Some(Frame::Text(t)) if t == " w5"));
    let end = std::future::poll_fn(|cx| receiver.poll_recv(cx)).await;
    assert!(matches!(end, Some(Frame::Finished { .. })), "{end:?}");
    assert!(matches!(
        next(&s.books).await.0[..],
        [BookEntry::Cache { tokens: 16, .. }]
    ));
}
