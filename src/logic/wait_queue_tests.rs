use super::*;
use crate::logic::request::Terms;
use proptest::prelude::*;

fn spec(id: u64, arrival: u64, deadline: u64) -> RequestSpec {
    RequestSpec {
        id: RequestId(id),
        arrival: Timestamp(arrival),
        deadline: Timestamp(deadline),
        prompt_tokens: 1,
        max_tokens: 1 + (id % 3) as u32,
        preempted: false,
        terms: Terms::default(),
    }
}

fn best_effort(spec: RequestSpec) -> RequestSpec {
    let terms = Terms {
        lane: Lane::BestEffort,
        work: (9 - spec.id.0 % 9) as u32,
        ..spec.terms
    };
    RequestSpec { terms, ..spec }
}

/// Any number of seats, all of them free.
const ALL: TakeRule = TakeRule {
    seats: usize::MAX,
    free: usize::MAX,
    fill: None,
};

fn first<P>(q: &mut WaitQueue<P>) -> Option<RequestId> {
    q.take(&mut ALL.clone()).map(|(s, _)| s.id)
}

#[test]
fn a_full_queue_gives_the_payload_back_but_takes_returned_work() {
    let mut q = WaitQueue::new(QueueOrder::Arrival, 1);
    assert_eq!(q.push(spec(1, 1, 9), "a"), Ok(()));
    assert_eq!(q.push(spec(2, 2, 9), "b"), Err("b"));
    q.put_back(spec(0, 0, 9), "returned");
    assert_eq!(q.take(&mut ALL.clone()).map(|(_, p)| p), Some("returned"));
}

#[test]
fn who_was_preempted_goes_first_whatever_the_deadlines() {
    let mut q = WaitQueue::new(QueueOrder::Deadline, 9);
    q.push(spec(1, 1, 5), ()).unwrap();
    let preempted = RequestSpec {
        preempted: true,
        ..spec(2, 2, 9)
    };
    q.put_back(preempted, ());
    assert_eq!(first(&mut q), Some(RequestId(2)));
}

#[test]
fn the_best_effort_lane_comes_last_and_gets_free_seats_only() {
    let mut q = WaitQueue::new(QueueOrder::Arrival, 9);
    let preempted = RequestSpec {
        preempted: true,
        ..best_effort(spec(1, 1, 8))
    };
    q.put_back(preempted, ());
    q.push(best_effort(spec(2, 2, 3)), ()).unwrap();
    q.push(spec(3, 3, 90), ()).unwrap();
    q.push(spec(4, 4, 90), ()).unwrap();
    let mut rule = TakeRule {
        seats: 3,
        free: 1,
        fill: None,
    };
    let mut taken = Vec::new();
    while let Some((s, ())) = q.take(&mut rule) {
        taken.push(s.id.0);
    }
    assert_eq!(taken, [3, 4], "the third seat is not free");
    assert_eq!(q.position(&best_effort(spec(9, 9, 5))), 2);
    q.push(spec(5, 5, 90), ()).unwrap();
    assert_eq!(q.position(&best_effort(spec(9, 9, 5))), 3);
    let mut rule = TakeRule {
        seats: 3,
        free: 2,
        fill: None,
    };
    let mut next = || q.take(&mut rule).map(|(s, ())| s.id.0);
    assert_eq!(
        [next(), next(), next()],
        [Some(5), Some(2), None],
        "the least work, whoever was preempted"
    );
}

#[test]
fn in_the_best_effort_lane_the_least_work_goes_first_and_who_has_all_the_time_last() {
    let mut q = WaitQueue::new(QueueOrder::Deadline, 9);
    for (id, deadline, work) in [(1, 5, 300), (2, 9, 20), (3, u64::MAX, 1), (4, 7, 20)] {
        let mut s = best_effort(spec(id, id, deadline));
        s.terms.work = work;
        q.push(s, ()).unwrap();
    }
    let order = [(); 4].map(|()| first(&mut q).unwrap().0);
    assert_eq!(order, [2, 4, 1, 3]);
}

#[test]
fn a_static_batch_starts_when_full_or_after_the_timeout() {
    let rule = TakeRule {
        fill: Some(FillRule {
            batch: 2,
            timeout: Duration::from_micros(10),
        }),
        ..ALL
    };
    let mut q = WaitQueue::new(QueueOrder::Arrival, 9);
    assert_eq!(q.filling(&rule, Timestamp(0)), None);
    q.push(spec(1, 5, 9), ()).unwrap();
    assert_eq!(q.filling(&rule, Timestamp(6)), Some(Timestamp(15)));
    assert_eq!(q.filling(&rule, Timestamp(15)), None);
    q.push(spec(2, 7, 9), ()).unwrap();
    assert_eq!(q.filling(&rule, Timestamp(7)), None);
    // One that can have no company waits for none.
    let mut q = WaitQueue::new(QueueOrder::Arrival, 9);
    let mut alone = spec(3, 8, 9);
    alone.terms.alone = true;
    q.push(alone, ()).unwrap();
    assert_eq!(q.filling(&rule, Timestamp(8)), None);
}

/// What a plain list, sorted at every look, is sorted by.
fn place(s: &RequestSpec, by_deadline: bool) -> (Lane, bool, u64, Timestamp, RequestId) {
    let (behind, class) = match (s.yields(), by_deadline) {
        (true, _) => (s.deadline == Timestamp::NEVER, s.terms.work.into()),
        (false, true) => (false, s.deadline.0),
        (false, false) => (false, 0),
    };
    (s.terms.lane, behind, class, s.arrival, s.id)
}

proptest! {
    /// Against a plain list: order, sums, expiries, and who gets which seats.
    #[test]
    fn agrees_with_a_sorted_list(
        by_deadline: bool,
        ops in prop::collection::vec((0u8..6, 0u64..4, 0u64..4, any::<bool>()), 0..60),
    ) {
        let order = if by_deadline { QueueOrder::Deadline } else { QueueOrder::Arrival };
        let mut q = WaitQueue::new(order, 5);
        let mut model: Vec<RequestSpec> = Vec::new();
        for (id, (op, a, d, yields)) in ops.into_iter().enumerate() {
            let mut s = spec(id as u64, a, d);
            if yields {
                s = best_effort(s);
                s.terms.work %= 3;
            }
            if d == 2 {
                s.deadline = Timestamp::NEVER;
            }
            if d == 3 {
                s.terms.drop_at = Timestamp(10 * a);
            }
            match op {
                0..=2 => {
                    let pushed = q.push(s, ()).is_ok();
                    prop_assert_eq!(pushed, model.len() < 5);
                    if pushed { model.push(s); }
                }
                3 => {
                    let mut rule = TakeRule { seats: a as usize, free: a.min(d) as usize, fill: None };
                    let promised = model.iter().filter(|s| !s.yields()).count();
                    let expected = promised.min(rule.seats) + (model.len() - promised).min(rule.free.saturating_sub(promised));
                    for _ in 0..expected {
                        let taken = q.take(&mut rule).map(|(s, ())| s);
                        prop_assert_eq!(taken, Some(model.remove(0)));
                    }
                    prop_assert_eq!(q.take(&mut rule), None);
                }
                4 => {
                    let now = Timestamp(10 * a + d);
                    let mut expired = Vec::new();
                    while let Some((s, ())) = q.take_expired(now) { expired.push(s.id); }
                    let is_over = |s: &RequestSpec| s.terms.drop_at <= now;
                    expired.sort();
                    let mut expected: Vec<_> = model.iter().filter(|s| is_over(s)).map(|s| s.id).collect();
                    expected.sort();
                    prop_assert_eq!(expired, expected);
                    model.retain(|s| !is_over(s));
                }
                _ => {
                    let victim = RequestId(a);
                    let at = model.iter().position(|s| s.id == victim);
                    let expected = at.map(|i| model.remove(i));
                    prop_assert_eq!(q.remove(victim).map(|(s, ())| s), expected);
                }
            }
            model.sort_by_key(|s| place(s, by_deadline));
            prop_assert_eq!(q.len(), model.len());
            for (place, s) in model.iter().enumerate() {
                prop_assert_eq!(q.position(s), place);
            }
            for lane in Lane::ALL {
                let waiting: Vec<_> = model.iter().filter(|s| s.terms.lane == lane).collect();
                prop_assert_eq!(q.waiting(lane), waiting.len());
                prop_assert_eq!(q.prefill_tokens_waiting(lane), waiting.len() as u64);
                let output: u64 = waiting.iter().map(|s| u64::from(s.max_tokens)).sum();
                prop_assert_eq!(q.max_tokens_waiting(lane), output);
            }
            let next = model.iter().map(|s| s.terms.drop_at).filter(|at| *at != Timestamp::NEVER).min();
            prop_assert_eq!(q.next_expiry(), next);
        }
        prop_assert_eq!(q.is_empty(), model.is_empty());
    }
}
