//! WaitQueue: admitted requests that do not run yet.
//!
//! Owns each request from [`Enqueue`] until it answers a [`Take`] with it, its client leaves, or it is to be
//! given up ([`Terms::drop_at`](crate::logic::request::Terms)), for which it sets itself an alarm. Hears
//! Admission, the Scheduler and clients' disconnects; handlers take microseconds. Runs on the engine arbiter.
//! Capacity bounds what is admitted, and the queue's own bound is not below it, so `push` can't fail while
//! the two agree; if they do not, the request is refused, not lost.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use crate::clock::Clock;
use crate::error::ServeError;
use crate::job::Job;
use crate::logic::admission::RetryAfter;
use crate::logic::conformal::snapshot::LaneLoad;
use crate::logic::request::{Lane, Outcome, RequestSpec};
use crate::logic::time::Timestamp;
use crate::logic::wait_queue::WaitQueue as Logic;
use crate::messages::{
    Cancel, Enqueue, Position, PutBack, Recheck, Take, Taken, Unkept, WorkWaiting,
};
use crate::telemetry::published::Published;

/// See the module's text.
pub struct WaitQueue {
    logic: Logic<Job>,
    peers: Peers,
    clock: Clock,
    published: Arc<Published>,
    retry: RetryAfter,
    alarm: Option<(Timestamp, SpawnHandle)>,
}

/// Those that the queue talks to.
pub struct Peers {
    pub scheduler: Recipient<Taken>,
    pub wake: Recipient<WorkWaiting>,
    /// Who looks at a promise again when its request is taken; `None` for nobody.
    pub recheck: Option<Recipient<Recheck>>,
}

impl WaitQueue {
    /// An actor over an empty queue.
    #[must_use]
    pub fn new(
        logic: Logic<Job>,
        peers: Peers,
        clock: Clock,
        published: Arc<Published>,
        retry: RetryAfter,
    ) -> Self {
        Self {
            logic,
            peers,
            clock,
            published,
            retry,
            alarm: None,
        }
    }

    /// After any change: what waits, and when the next of it is to be given up.
    fn changed(&mut self, ctx: &mut Context<Self>) {
        let q = &self.logic;
        for lane in Lane::ALL {
            let (output, prefill) = (q.max_tokens_waiting(lane), q.prefill_tokens_waiting(lane));
            let waiting = &self.published.lane(lane).waiting;
            waiting.set(q.waiting(lane), output, prefill);
        }
        let next = q.next_expiry();
        if self.alarm.map(|(at, _)| at) != next {
            if let Some((_, old)) = self.alarm.take() {
                ctx.cancel_future(old);
            }
            self.alarm = next.map(|at| {
                // Rounded up to tokio's grain, so that it never wakes just before.
                let grain = Duration::from_millis(1);
                let wait = self.clock.for_timer(at.since(self.clock.now()));
                (at, ctx.run_later(wait + grain, Self::give_up))
            });
        }
    }

    /// Ends whom the alarm was set for.
    fn give_up(&mut self, ctx: &mut Context<Self>) {
        self.alarm = None;
        let now = self.clock.now();
        while let Some((spec, job)) = self.logic.take_expired(now) {
            let outcome = spec.given_up(now, job.generated.len() as u32);
            job.end_or_refuse(&spec, outcome.unwrap_or(Outcome::Expired), now, || {
                self.published.retry_after(self.retry, &spec)
            });
        }
        self.changed(ctx);
    }

    /// Asks for a second look at a promise whose request is about to run beside `running`.
    fn recheck(&self, spec: &RequestSpec, job: &Job, running: &mut LaneLoad) {
        let Some(to) = &self.peers.recheck else {
            return;
        };
        if let Some(admitted) = job.admitted.as_ref().filter(|a| a.is_promised())
            && !spec.preempted
            && !spec.yields()
        {
            to.do_send(Recheck {
                spec: *spec,
                wish: admitted.wish,
                beginnings: admitted.beginnings.clone(),
                running: *running,
            });
        }
        running.running += 1;
        running.output_tokens += u64::from(spec.max_tokens);
        running.prefill_tokens += job.prefill_tokens(spec);
    }
}

impl Actor for WaitQueue {
    type Context = Context<Self>;
}

impl Handler<Enqueue> for WaitQueue {
    type Result = ();

    fn handle(&mut self, Enqueue((spec, job)): Enqueue, ctx: &mut Self::Context) {
        let by_admission = job.admitted.is_some();
        let now = self.clock.now();
        if job.is_abandoned() {
            job.end(&spec, Outcome::Cancelled, now);
        } else if let Err(job) = self.logic.push(spec, job) {
            let full = ServeError::Overloaded {
                retry_after: 1,
                code: "queue_full",
            };
            job.refuse(&spec, Outcome::Refused, full, now);
        } else {
            self.peers.wake.do_send(WorkWaiting);
        }
        self.changed(ctx);
        if by_admission {
            self.published.admission_seen();
        }
    }
}

impl Handler<Take> for WaitQueue {
    type Result = ();

    fn handle(&mut self, Take(mut rule): Take, ctx: &mut Self::Context) {
        let now = self.clock.now();
        let ask_again = self.logic.filling(&rule, now);
        let mut running = self.published.lane(Lane::Promised).running_load();
        let mut requests = Vec::new();
        while ask_again.is_none() {
            let before = rule;
            let Some((spec, mut job)) = self.logic.take(&mut rule) else {
                break;
            };
            // One whose client has left takes no seat; its Cancel is on the way or came too early.
            if job.is_abandoned() {
                job.end(&spec, Outcome::Cancelled, now);
                rule = before;
                self.changed(ctx);
            } else {
                self.recheck(&spec, &job, &mut running);
                job.take(now);
                requests.push((spec, job));
            }
        }
        if !requests.is_empty() {
            self.changed(ctx);
        }
        self.peers.scheduler.do_send(Taken {
            requests,
            ask_again,
        });
    }
}

impl Handler<PutBack> for WaitQueue {
    type Result = ();

    fn handle(&mut self, PutBack(requests): PutBack, ctx: &mut Self::Context) {
        for (spec, job) in requests {
            // Its client may have left while nobody knew where it was.
            if job.is_abandoned() {
                job.end(&spec, Outcome::Cancelled, self.clock.now());
            } else {
                self.logic.put_back(spec, job);
            }
        }
        self.changed(ctx);
    }
}

impl Handler<Cancel> for WaitQueue {
    type Result = ();

    fn handle(&mut self, Cancel(id): Cancel, ctx: &mut Self::Context) {
        if let Some((spec, job)) = self.logic.remove(id) {
            job.end(&spec, Outcome::Cancelled, self.clock.now());
            self.changed(ctx);
        }
    }
}

impl Handler<Unkept> for WaitQueue {
    type Result = ();

    /// It was taken, and is here only if it was put back since.
    fn handle(&mut self, Unkept { id, instead }: Unkept, ctx: &mut Self::Context) {
        if let Some((mut spec, mut job)) = self.logic.remove(id) {
            job.lose_promise(&mut spec, instead);
            self.logic.put_back(spec, job);
            self.changed(ctx);
        }
    }
}

impl Handler<Position> for WaitQueue {
    type Result = usize;

    fn handle(&mut self, Position(spec): Position, _: &mut Self::Context) -> usize {
        self.logic.position(&spec)
    }
}
