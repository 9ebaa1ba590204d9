//! The scheduler: the whole protocol of a request.

use super::*;

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
            lane_slowdown: 0.05,
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
    let settings = Settings {
        retry: RETRY,
        review_every: 1,
        check_invariants: true,
    };
    let scheduler =
        Scheduler::new(turn, peers, Clock::start(), published, accounts(), settings).start();
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
            blocks: 2,
        }],
        short: Some(Shortfall {
            blocks: 1,
            sequences: 0,
            attainable: true,
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

/// A cancel that comes between two questions of a turn: the engine goes to sleep after it, so it must not wait for
/// the next request.
#[actix::test]
async fn a_cancel_within_a_turn_that_leaves_nothing_to_compute_takes_effect_in_it() {
    let s = scheduler_alone();
    let ((spec, job), mut receiver) = request(1, 4, 9);
    s.scheduler.send(WorkWaiting).await.unwrap();
    next(&s.takes).await;
    let requests = vec![(spec, job)];
    let taken = Taken {
        requests,
        ask_again: None,
    };
    s.scheduler.send(taken).await.unwrap();
    next(&s.matches).await;
    s.scheduler.send(PrefixMatched(vec![None])).await.unwrap();
    next(&s.reserves).await;
    let lease = Lease {
        seq: SeqId(0),
        blocks: 1,
    };
    let reserved = || Reserved {
        leases: vec![lease],
        ..Reserved::default()
    };
    s.scheduler.send(Granted(reserved())).await.unwrap();
    let RunStep(mut step) = next(&s.steps).await;
    step.results = vec![RowResult::Sampled(TokenId(5))];
    s.scheduler.send(StepDone(step)).await.unwrap();
    // It asks for more to do, since a seat is free; meanwhile the client leaves.
    next(&s.takes).await;
    s.scheduler.send(Cancel(RequestId(1))).await.unwrap();
    let nothing = Taken {
        requests: Vec::new(),
        ask_again: None,
    };
    s.scheduler.send(nothing).await.unwrap();
    // Its sequence is given back at once, in a step of its own.
    assert!(matches!(
        next(&s.books).await.0[..],
        [BookEntry::Retire { seq: SeqId(0) }]
    ));
    next(&s.takes).await;
    receiver_is_closed(&mut receiver).await;
}

/// Waits for the end of a reply.
async fn receiver_is_closed(receiver: &mut ReplyReceiver) {
    while std::future::poll_fn(|cx| receiver.poll_recv(cx))
        .await
        .is_some()
    {}
}
