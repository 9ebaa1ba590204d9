//! Admission: the gate between HTTP and the engine.
//!
//! Owns the capacity cap's policy and the conformal controller. Hears [`Submit`] and [`Quote`] from HTTP
//! handlers and [`RequestEnded`] from whoever ends an admitted request; a handler takes microseconds, a refusal
//! with its counter-offer a few hundred. Runs on the control arbiter and reads what the engine and the prefix
//! cache publish without a message, so a refusal is prompt while a decode blocks. Capacity is looked at first:
//! what the server can't hold it can't promise. When it dies the watchdog ends the process: nothing could be
//! admitted any more.

use std::sync::Arc;
use std::time::Duration;

use actix::dev::SendError;
use actix::{Actor, AsyncContext, Context, Handler, Recipient};

use crate::clock::Clock;
use crate::job::{Admitted, Job, Standing, Wish};
use crate::logic::admission::{self, CapacityCap};
use crate::logic::capacity::CapacityExceeded;
use crate::logic::conformal::controller::{Controller, Course};
use crate::logic::conformal::policy::{Decision, Mode, Request, Verdict};
use crate::logic::conformal::predictor::{Latency, Model};
use crate::logic::conformal::receipt::{Answer, Refusal};
use crate::logic::conformal::snapshot::Snapshot;
use crate::logic::prefix::{Beginnings, PrefixIndex};
use crate::logic::request::{FinishReason, Lane, Outcome, RequestSpec};
use crate::logic::time::Timestamp;
use crate::messages::{
    Enqueue, Fitted, Quote, Quoted, Recheck, Refused, RequestEnded, Submit, Unkept, WarmedUp,
};
use crate::telemetry::accounts::Accounts;
use crate::telemetry::published::{AdmissionState, Published};
use crate::telemetry::stopwatch::Stopwatch;
use crate::telemetry::traces::{self, Traces};

/// Where promises come from.
pub struct Promises {
    pub controller: Controller,
    /// Whether clients hear of decisions: not where admission is off.
    pub told: bool,
    /// Whether the controller came with a calibration, and if so, whether it was for another engine.
    pub calibrated: bool,
    pub mismatch: bool,
}

/// See the module's text.
pub struct Admission {
    pub capacity: CapacityCap,
    pub promises: Promises,
    pub queue: Recipient<Enqueue>,
    pub prefixes: PrefixIndex,
    pub clock: Clock,
    pub published: Arc<Published>,
    pub accounts: Arc<Accounts>,
    /// Whether to fit the first model on this thread and at once, where time stands still meanwhile.
    pub fits_here: bool,
    pub traces: Option<Traces>,
    /// Who hears of promises that looked lost when they were looked at again.
    pub unkept: [Recipient<Unkept>; 2],
}

impl Admission {
    fn request(&self, asked: &Asked, now: Timestamp) -> Request {
        let Asked {
            spec,
            wish,
            beginnings,
        } = asked;
        let cached = self.prefixes.probe(beginnings, spec.prompt_tokens - 1);
        Request {
            best_effort: wish.best_effort,
            ..Request::at(now, spec, (wish.messages, cached), wish.slo, wish.alpha)
        }
    }

    fn snapshot(&self, now: Timestamp) -> Snapshot {
        let idle = self.promises.controller.idle();
        self.published.promise_snapshot(now, idle)
    }

    fn refusal(&self, request: &Request, snapshot: &Snapshot, answer: Answer) -> Refusal {
        let controller = &self.promises.controller;
        Refusal {
            offer: controller.counter_offer(request, snapshot, &answer.decision),
            retry_after_s: answer
                .decision
                .waiting_helps()
                .then(|| controller.retry_after_s(request, snapshot)),
            answer,
        }
    }

    /// Takes the request's seat in its lane. An error says why there is none, and when to come back.
    fn hold(&self, spec: &RequestSpec, job: &mut Job) -> Result<(), (CapacityExceeded, u32)> {
        let engine = self.published.snapshot(spec.terms.lane);
        let Some(reservation) = job.ticket.reservation.as_mut() else {
            return Ok(());
        };
        match self.capacity.decide(spec, reservation, &engine) {
            admission::Verdict::Admit => Ok(()),
            admission::Verdict::Refuse {
                reason,
                retry_after_s,
            } => Err((reason, retry_after_s)),
        }
    }

    fn publish(&self) {
        let Promises {
            controller,
            mismatch,
            ..
        } = &self.promises;
        self.published.set_admission(AdmissionState {
            armed: controller.settings().mode == Mode::Enforce && controller.is_armed(),
            mismatch: *mismatch,
            tally: *controller.tally(),
        });
    }

    /// Fits a model beside everything else, whenever one is due.
    fn fit(&mut self, ctx: &Context<Self>) {
        let Some(rows) = self.promises.controller.training_rows() else {
            return;
        };
        let me = ctx.address();
        let fitting = move || match Model::deployed(&rows) {
            Ok(model) => me.do_send(Fitted(model)),
            Err(e) => tracing::error!("the latency model could not be fitted: {e}"),
        };
        if self.fits_here {
            fitting();
            return;
        }
        if let Err(e) = std::thread::Builder::new()
            .name("fit".into())
            .spawn(fitting)
        {
            tracing::error!("no thread to fit the latency model on: {e}");
        }
    }
}

/// A request as admission looks at it.
struct Asked<'a> {
    spec: &'a RequestSpec,
    wish: &'a Wish,
    beginnings: &'a Beginnings,
}

impl Actor for Admission {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        self.publish();
    }
}

impl Handler<Submit> for Admission {
    type Result = Result<Option<Answer>, Refused>;

    fn handle(&mut self, submit: Submit, ctx: &mut Self::Context) -> Self::Result {
        let Submit {
            mut spec,
            wish,
            beginnings,
            mut job,
        } = submit;
        if job.is_abandoned() {
            return Ok(None);
        }
        if wish.best_effort {
            spec.terms.lane = Lane::BestEffort;
        }
        if let Err((reason, retry_after_s)) = self.hold(&spec, &mut job) {
            return Err(full(job, reason, retry_after_s));
        }
        let watch = Stopwatch::start();
        let now = self.clock.now();
        let asked = Asked {
            spec: &spec,
            wish: &wish,
            beginnings: &beginnings,
        };
        let request = self.request(&asked, now);
        let snapshot = self.snapshot(now);
        let mut decision = self.promises.controller.decide(&request, &snapshot);
        if decision.verdict == Verdict::BestEffort && move_to_best_effort(&mut job).is_err() {
            // The lane is full: then as if there were none.
            decision.verdict = decision.assessed;
        }
        watch.observe(&self.accounts.metrics.decisions);
        let answer = Answer {
            decision,
            waited_ms: now.since(spec.arrival).as_secs_f64() * 1e3,
        };
        self.accounts.metrics.decisions.count(decision.verdict);
        if let Some(outcome) = decision.verdict.refusal() {
            if let Some(traces) = &self.traces {
                traces.write(traces::Row {
                    spec,
                    wish,
                    answer,
                    outcome,
                    demoted: false,
                    end: None,
                });
            }
            job.ticket.refuse(outcome);
            return Err(Refused::Unpromised(
                self.refusal(&request, &snapshot, answer),
            ));
        }
        agree(&mut spec, &decision, now);
        let told = self.promises.told;
        job.admitted = Some(Admitted {
            answer,
            wish,
            at: now,
            beginnings,
            prefill_tokens: request.context.new_prefill_tokens(),
            told,
            standing: Standing::default(),
            report: ctx.address().recipient(),
        });
        match self.queue.try_send(Enqueue((spec, job))) {
            Ok(()) => {
                self.promises.controller.admitted(&request, &decision);
                Ok(told.then_some(answer))
            }
            Err(SendError::Full(Enqueue((_, job))) | SendError::Closed(Enqueue((_, job)))) => {
                Err(full(job, CapacityExceeded::Requests, 1))
            }
        }
    }
}

/// On which terms an admitted request runs.
fn agree(spec: &mut RequestSpec, decision: &Decision, now: Timestamp) {
    spec.terms.work = decision.features.work_tokens();
    match (decision.verdict, decision.bound_ms) {
        (Verdict::BestEffort, _) => {
            spec.terms.lane = Lane::BestEffort;
            spec.terms.drop_at = spec.terms.due;
        }
        // Judged by the whole milliseconds that are told.
        (Verdict::Promised, Ok(bound_ms)) => {
            spec.terms.due = now + Duration::from_millis(bound_ms.ceil() as u64);
        }
        _ => {}
    }
}

fn move_to_best_effort(job: &mut Job) -> Result<(), CapacityExceeded> {
    let reservation = job.ticket.reservation.as_mut();
    reservation.map_or(Ok(()), |r| r.move_to(Lane::BestEffort))
}

fn full(job: Job, reason: CapacityExceeded, retry_after_s: u32) -> Refused {
    job.ticket.refuse(Outcome::Refused);
    Refused::Capacity {
        reason,
        retry_after_s,
    }
}

impl Handler<Quote> for Admission {
    type Result = Quoted;

    fn handle(&mut self, quote: Quote, _: &mut Self::Context) -> Quoted {
        let now = self.clock.now();
        let asked = Asked {
            spec: &quote.spec,
            wish: &quote.wish,
            beginnings: &quote.beginnings,
        };
        let request = self.request(&asked, now);
        let snapshot = self.snapshot(now);
        self.promises.controller.settle(&snapshot);
        let answer = Answer {
            decision: self.promises.controller.quote(&request, &snapshot),
            waited_ms: now.since(quote.spec.arrival).as_secs_f64() * 1e3,
        };
        let refused = !answer.decision.verdict.admits();
        Quoted {
            answer,
            refusal: refused.then(|| self.refusal(&request, &snapshot, answer)),
        }
    }
}

impl Handler<RequestEnded> for Admission {
    type Result = ();

    fn handle(&mut self, ended: RequestEnded, ctx: &mut Self::Context) {
        let latency = Latency::at_end(ended.outcome, ended.admitted.at, ended.at);
        let stopped = matches!(
            ended.outcome,
            Outcome::Finished(FinishReason::Slo) | Outcome::Expired
        );
        let course = match ended.admitted.standing {
            Standing::Revoked => Course::Revoked,
            Standing::Demoted => Course::Demoted { stopped },
            Standing::AsDecided if stopped => Course::Stopped,
            Standing::AsDecided => Course::AsDecided,
        };
        let decision = &ended.admitted.answer.decision;
        self.promises.controller.ended(decision, latency, course);
        if let Some(traces) = &self.traces {
            traces.write(traces::Row {
                spec: ended.spec,
                wish: ended.admitted.wish,
                answer: ended.admitted.answer,
                outcome: ended.outcome,
                demoted: ended.admitted.standing == Standing::Demoted,
                end: Some((latency, ended.usage)),
            });
        }
        self.fit(ctx);
        self.publish();
    }
}

impl Handler<Recheck> for Admission {
    type Result = ();

    fn handle(&mut self, recheck: Recheck, _: &mut Self::Context) {
        let now = self.clock.now();
        let asked = Asked {
            spec: &recheck.spec,
            wish: &recheck.wish,
            beginnings: &recheck.beginnings,
        };
        let request = self.request(&asked, now);
        let snapshot = self.snapshot(now);
        let controller = &self.promises.controller;
        if !controller.still_fits(&request, &snapshot, recheck.running) {
            let instead = controller.settings().unfit;
            for to in &self.unkept {
                to.do_send(Unkept {
                    id: recheck.spec.id,
                    instead,
                });
            }
        }
    }
}

impl Handler<WarmedUp> for Admission {
    type Result = ();

    fn handle(&mut self, WarmedUp(idle): WarmedUp, _: &mut Self::Context) {
        if !self.promises.calibrated {
            self.promises.controller.set_idle(idle);
        }
    }
}

impl Handler<Fitted> for Admission {
    type Result = ();

    fn handle(&mut self, Fitted(model): Fitted, _: &mut Self::Context) {
        tracing::info!("a latency model is fitted");
        self.promises.controller.adopt(model);
    }
}
