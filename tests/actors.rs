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
use cadenced::job::Job;
use cadenced::logic::admission::{CapacityOnly, RetryAfter};
use cadenced::logic::capacity::{Capacity, CapacityExceeded, CapacityLimits};
use cadenced::logic::kv::{KvPool, Lease};
use cadenced::logic::output::TextAssembler;
use cadenced::logic::prefix::NoPrefixCache;
use cadenced::logic::request::RequestSpec;
use cadenced::logic::scheduler::StepLimits;
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use cadenced::logic::scheduler::step::{RowPlan, RowResult, StepPlan, Work};
use cadenced::logic::time::Timestamp;
use cadenced::logic::wait_queue::{QueueOrder, TakeRule, WaitQueue as QueueLogic};
use cadenced::messages::*;
use cadenced::model::fake::{FakeBackend, vocab};
use cadenced::model::sampling::SamplingParams;
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
            .map(|i| TokenId(2000 + i as i32))
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
        cached_tokens: None,
        first_token_at: None,
    };
    ((spec, job), receiver)
}

#[actix::test]
async fn kv_manager_grants_in_order_up_to_the_first_that_does_not_fit() {
    let (scheduler, granted) = recorder();
    let published = Arc::new(Published::default());
    let kv = KvManager {
        pool: KvPool::new(10 * 16, 8),
        scheduler,
        published: Arc::clone(&published),
        check_invariants: true,
    }
    .start();
    kv.send(Reserve(vec![4, 7, 1])).await.unwrap();
    let Granted(leases) = next(&granted).await;
    assert_eq!(
        leases.len(),
        1,
        "7 do not fit, and the 1 behind it does not pass"
    );
    assert_eq!(published.kv().blocks_free, 6);
    kv.send(Release(vec![leases[0].seq])).await.unwrap();
    assert_eq!(published.kv().blocks_free, 10);
}

#[actix::test]
async fn prefix_cache_that_is_off_has_nothing_and_counts_what_it_was_asked() {
    let (scheduler, matched) = recorder();
    let published = Arc::new(Published::default());
    let cache = PrefixCache {
        index: Box::new(NoPrefixCache),
        scheduler,
        published: Arc::clone(&published),
    }
    .start();
    let prompt: Arc<[TokenId]> = vec![TokenId(1); 7].into();
    cache
        .send(MatchPrefix(vec![Arc::clone(&prompt), prompt]))
        .await
        .unwrap();
    assert_eq!(next(&matched).await.0, [0, 0]);
    assert_eq!(
        published
            .prefix_lookup_tokens
            .load(std::sync::atomic::Ordering::Relaxed),
        14
    );
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
    let admission = Admission {
        policy: Box::new(CapacityOnly {
            retry: RetryAfter {
                cap: std::time::Duration::from_secs(60),
            },
        }),
        queue,
        published: Arc::new(Published::default()),
    }
    .start();
    let mut keep = Vec::new();
    for (id, admitted) in [(1, true), (2, false)] {
        let ((spec, mut job), receiver) = request(id, 8, 8);
        job.ticket = Ticket::new(accounts());
        job.ticket.reservation = Some(capacity.reserve(1).unwrap());
        let answer = admission.send(Submit(spec, job)).await.unwrap();
        assert_eq!(answer.is_ok(), admitted);
        if let Err(refused) = answer {
            assert_eq!(refused.reason, CapacityExceeded::Tokens);
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
    let config = Config::load(None, [], &Flags::default()).unwrap().fake;
    let backend = FakeBackend::new(
        cadenced::model::fake::FakeConfig {
            step_us: 0.0,
            ..config
        },
        64,
        256,
    );
    let runner = ModelRunner::new(Box::new(backend), scheduler, Arc::default(), accounts()).start();
    let ((_, job), _receiver) = request(1, 4, 4);
    let row = RowPlan {
        index: 0,
        request: RequestId(1),
        seq: SeqId(0),
        work: Work::Prefill {
            start: 0,
            len: 4,
            last: true,
        },
    };
    let step = StepBuffers {
        plan: StepPlan {
            id: StepId(7),
            removals: vec![],
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
    matches: Heard<MatchPrefix>,
    reserves: Heard<Reserve>,
    releases: Heard<Release>,
    steps: Heard<RunStep>,
}

fn scheduler_alone() -> SchedulerAlone {
    let (take, takes) = recorder();
    let (put_back_to, put_back) = recorder();
    let (prefixes, matches) = recorder();
    let (reserve, reserves) = recorder();
    let (release, releases) = recorder();
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
        prefixes,
        reserve,
        release,
        runner,
        handoff: Arc::default(),
    };
    let published = Arc::new(Published::default());
    let scheduler =
        Scheduler::new(logic, peers, Clock::start(), published, accounts(), true).start();
    SchedulerAlone {
        scheduler,
        takes,
        put_back,
        matches,
        reserves,
        releases,
        steps,
    }
}

/// One request from its arrival to its end, message by message.
#[actix::test]
async fn scheduler_says_what_the_protocol_says() {
    let s = scheduler_alone();
    s.scheduler.send(WorkWaiting).await.unwrap();
    assert_eq!(next(&s.takes).await.0.seats, 2);
    let ((spec, job), mut receiver) = request(1, 4, 1);
    let (second, _second_receiver) = request(2, 4, 1);
    s.scheduler
        .send(Taken {
            requests: vec![(spec, job), second],
            ask_again: None,
        })
        .await
        .unwrap();
    assert_eq!(next(&s.matches).await.0.len(), 2);
    s.scheduler.send(PrefixMatched(vec![0, 0])).await.unwrap();
    assert_eq!(
        next(&s.reserves).await.0,
        [1, 1],
        "prompt and max_tokens fit one block"
    );
    // The pool has room for one only.
    s.scheduler
        .send(Granted(vec![Lease {
            seq: SeqId(0),
            blocks: 1,
        }]))
        .await
        .unwrap();
    assert_eq!(next(&s.put_back).await.0[0].0.id, RequestId(2));
    let RunStep(mut step) = next(&s.steps).await;
    assert_eq!(step.plan.rows.len(), 1);
    step.results = vec![RowResult::Sampled(TokenId(5))];
    s.scheduler.send(StepDone(step)).await.unwrap();
    // It has ended: its end reaches the client, its memory goes back in a step of its own.
    let text = std::future::poll_fn(|cx| receiver.poll_recv(cx)).await;
    assert!(matches!(text, Some(Frame::Text(t)) if t == " w5"));
    let end = std::future::poll_fn(|cx| receiver.poll_recv(cx)).await;
    assert!(matches!(end, Some(Frame::Finished { .. })), "{end:?}");
    let RunStep(mut step) = next(&s.steps).await;
    assert_eq!(
        (step.plan.removals.as_slice(), step.plan.rows.len()),
        ([SeqId(0)].as_slice(), 0)
    );
    assert!(
        s.releases.lock().unwrap().is_empty(),
        "not before that step is done"
    );
    step.results.clear();
    s.scheduler.send(StepDone(step)).await.unwrap();
    assert_eq!(next(&s.releases).await.0, [SeqId(0)]);
    // Memory is back: it asks for work again.
    assert_eq!(next(&s.takes).await.0.seats, 2);
}
