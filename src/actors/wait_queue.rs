//! WaitQueue: admitted requests that do not run yet.
//!
//! Owns each request from [`Enqueue`] until it answers a [`Take`] with it, or its client leaves. Hears
//! Admission, the Scheduler and clients' disconnects; handlers take microseconds. Runs on the engine arbiter.
//! Capacity bounds what is admitted, and the queue's own bound is not below it, so `push` can't fail while
//! the two agree; if they do not, the request is refused, not lost.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};

use crate::clock::Clock;
use crate::error::ServeError;
use crate::job::Job;
use crate::logic::request::Outcome;
use crate::logic::wait_queue::WaitQueue as Logic;
use crate::messages::{Cancel, Enqueue, Position, PutBack, Take, Taken, WorkWaiting};
use crate::reply::Frame;
use crate::telemetry::published::Published;

/// See the module's text.
pub struct WaitQueue {
    pub logic: Logic<Job>,
    pub scheduler: Recipient<Taken>,
    pub wake: Recipient<WorkWaiting>,
    pub clock: Clock,
    pub published: Arc<Published>,
}

impl WaitQueue {
    fn publish(&self) {
        self.publish_with(false);
    }

    fn publish_with(&self, one_more: bool) {
        let q = &self.logic;
        self.published.set_waiting(
            q.len(),
            q.max_tokens_waiting(),
            q.prefill_tokens_waiting(),
            one_more,
        );
    }
}

impl Actor for WaitQueue {
    type Context = Context<Self>;
}

impl Handler<Enqueue> for WaitQueue {
    type Result = ();

    fn handle(&mut self, Enqueue((spec, job)): Enqueue, _: &mut Self::Context) {
        let by_admission = job.admitted.is_some();
        if job.is_abandoned() {
            job.end(&spec, Outcome::Cancelled, self.clock.now());
            self.publish_with(by_admission);
            return;
        }
        if let Err(job) = self.logic.push(spec, job) {
            let full = ServeError::Overloaded {
                retry_after: 1,
                code: "queue_full",
            };
            let _ = job.reply.end(Frame::Failed(full));
            job.ticket.refuse(Outcome::Refused);
            self.publish_with(by_admission);
            return;
        }
        self.publish_with(by_admission);
        self.wake.do_send(WorkWaiting);
    }
}

impl Handler<Take> for WaitQueue {
    type Result = ();

    fn handle(&mut self, Take(rule): Take, _: &mut Self::Context) {
        let now = self.clock.now();
        let (mut n, ask_again) = self.logic.ready(rule, now);
        let mut requests = Vec::new();
        while n > 0 {
            let Some((spec, job)) = self.logic.pop() else {
                break;
            };
            // One whose client has left takes no seat; its Cancel is on the way or came too early.
            if job.is_abandoned() {
                job.end(&spec, Outcome::Cancelled, now);
            } else {
                n -= 1;
                requests.push((spec, job));
            }
        }
        self.publish();
        self.scheduler.do_send(Taken {
            requests,
            ask_again,
        });
    }
}

impl Handler<PutBack> for WaitQueue {
    type Result = ();

    fn handle(&mut self, PutBack(requests): PutBack, _: &mut Self::Context) {
        for (spec, job) in requests {
            // Its client may have left while nobody knew where it was.
            if job.is_abandoned() {
                job.end(&spec, Outcome::Cancelled, self.clock.now());
            } else {
                self.logic.put_back(spec, job);
            }
        }
        self.publish();
    }
}

impl Handler<Cancel> for WaitQueue {
    type Result = ();

    fn handle(&mut self, Cancel(id): Cancel, _: &mut Self::Context) {
        if let Some((spec, job)) = self.logic.remove(id) {
            job.end(&spec, Outcome::Cancelled, self.clock.now());
            self.publish();
        }
    }
}

impl Handler<Position> for WaitQueue {
    type Result = usize;

    fn handle(&mut self, Position(spec): Position, _: &mut Self::Context) -> usize {
        self.logic.position(&spec)
    }
}
