//! Admission: the gate between HTTP and the engine.
//!
//! Owns the admission policy. Hears [`Submit`] from HTTP handlers; a handler takes microseconds. Runs on the
//! control arbiter and reads the engine's published state without a message, so a refusal is prompt while a
//! decode blocks. When it dies the watchdog ends the process: nothing could be admitted any more.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};

use crate::logic::admission::{AdmissionPolicy, Verdict};
use crate::logic::capacity::CapacityExceeded;
use crate::messages::{Enqueue, Refused, Submit};
use crate::telemetry::published::Published;

/// See the module's text.
pub struct Admission {
    pub policy: Box<dyn AdmissionPolicy + Send>,
    pub queue: Recipient<Enqueue>,
    pub published: Arc<Published>,
}

impl Actor for Admission {
    type Context = Context<Self>;
}

impl Handler<Submit> for Admission {
    type Result = Result<(), Refused>;

    fn handle(&mut self, Submit(spec, mut job): Submit, _: &mut Self::Context) -> Self::Result {
        if job.is_abandoned() {
            return Ok(());
        }
        let snapshot = self.published.snapshot();
        if let Some(reservation) = job.ticket.reservation.as_mut()
            && let Verdict::Refuse {
                reason,
                retry_after_s,
            } = self.policy.decide(&spec, reservation, &snapshot)
        {
            job.ticket.refuse(crate::logic::request::Outcome::Refused);
            return Err(Refused {
                reason,
                retry_after_s,
            });
        }
        match self.queue.try_send(Enqueue((spec, job))) {
            Ok(()) => Ok(()),
            Err(
                actix::dev::SendError::Full(Enqueue((_, job)))
                | actix::dev::SendError::Closed(Enqueue((_, job))),
            ) => {
                job.ticket.refuse(crate::logic::request::Outcome::Refused);
                Err(Refused {
                    reason: CapacityExceeded::Requests,
                    retry_after_s: 1,
                })
            }
        }
    }
}
