//! What a request passes before it runs: admission and the wait queue.

use super::*;

#[actix::test]
async fn wait_queue_wakes_the_scheduler_and_passes_over_who_has_left() {
    let (scheduler, taken) = recorder();
    let (wake, woken) = recorder::<WorkWaiting>();
    let published = Arc::new(Published::default());
    let peers = QueuePeers {
        scheduler,
        wake,
        recheck: None,
    };
    let logic = QueueLogic::new(QueueOrder::Arrival, 10);
    let queue = WaitQueue::new(logic, peers, Clock::start(), Arc::clone(&published), RETRY).start();
    let mut receivers = Vec::new();
    for id in 1..=3 {
        let (owned, receiver) = request(id, 4, 4);
        queue.send(Enqueue(owned)).await.unwrap();
        receivers.push(receiver);
    }
    next(&woken).await;
    assert_eq!(published.lane(Lane::Promised).waiting.requests(), 3);
    // The first one's client leaves; its Cancel is still on the way.
    drop(receivers.remove(0));
    queue
        .send(Take(TakeRule {
            seats: 1,
            free: 1,
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
            free: 9,
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
        capacity: CapacityCap { retry: RETRY },
        promises: promises::controller(&config, None, &EffectiveSettings::default()),
        queue,
        prefixes: PrefixIndex::default(),
        clock: Clock::start(),
        published: Arc::new(Published::default()),
        accounts: accounts(),
        fits_here: false,
        traces: None,
        unkept: [recorder().0, recorder().0],
    }
    .start();
    let mut keep = Vec::new();
    for (id, admitted) in [(1, true), (2, false)] {
        let ((spec, mut job), receiver) = request(id, 8, 8);
        job.ticket = Ticket::new(accounts());
        job.ticket.reservation = Some(capacity.reserve(1).unwrap());
        let wish = Wish::default();
        let submit = Submit {
            spec,
            wish,
            beginnings: Beginnings::default(),
            job,
        };
        let answer = admission.send(submit).await.unwrap();
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
