//! Admission: the gate between HTTP and the engine.
//!
//! Owns the capacity cap's policy and the conformal controller. Hears [`Submit`] and [`Quote`] from HTTP
//! handlers and [`RequestEnded`] from whoever ends an admitted request; a handler takes microseconds, a refusal
//! with its counter-offer a few hundred. Runs on the control arbiter and reads what the engine and the prefix
//! cache publish without a message, so a refusal is prompt while a decode blocks. Capacity is looked at first:
//! what the server can't hold it can't promise. When it dies the watchdog ends the process: nothing could be
//! admitted any more.

use std::sync::Arc;

use actix::dev::SendError;
use actix::{Actor, AsyncContext, Context, Handler, Recipient};

use crate::clock::Clock;
use crate::ids::TokenId;
use crate::job::{Admitted, Job, Wish};
use crate::logic::admission::{self, CapacityCap};
use crate::logic::capacity::CapacityExceeded;
use crate::logic::conformal::controller::Controller;
use crate::logic::conformal::policy::{Mode, Request, Verdict};
use crate::logic::conformal::predictor::{Latency, Model};
use crate::logic::conformal::receipt::{Answer, Refusal};
use crate::logic::conformal::snapshot::Snapshot;
use crate::logic::prefix::PrefixIndex;
use crate::logic::request::{Outcome, RequestSpec};
use crate::logic::time::Timestamp;
use crate::messages::{Enqueue, Fitted, Quote, Quoted, Refused, RequestEnded, Submit, WarmedUp};
use crate::telemetry::accounts::Accounts;
use crate::telemetry::published::{AdmissionState, Published};
use crate::telemetry::stopwatch::Stopwatch;
use crate::telemetry::traces::Traces;

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
    pub traces: Option<Traces>,
}

impl Admission {
    fn request(&self, asked: &Asked, now: Timestamp) -> Request {
        let Asked { spec, wish, prompt } = asked;
        let cached = self.prefixes.probe(prompt, spec.prompt_tokens - 1);
        Request::at(now, spec, (wish.messages, cached), wish.slo, wish.alpha)
    }

    fn snapshot(&self, now: Timestamp) -> Snapshot {
        let idle = self.promises.controller.idle();
        self.published.promise_snapshot(now, idle)
    }

    fn refusal(&self, request: &Request, snapshot: &Snapshot, answer: Answer) -> Refusal {
        let controller = &self.promises.controller;
        let waiting_helps = answer.decision.verdict != Verdict::Infeasible;
        Refusal {
            offer: controller.counter_offer(request, snapshot, &answer.decision),
            retry_after_s: waiting_helps.then(|| controller.retry_after_s(request, snapshot)),
            answer,
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
    /// What of it may be cached.
    prompt: &'a [TokenId],
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
            spec,
            wish,
            mut job,
        } = submit;
        if job.is_abandoned() {
            return Ok(None);
        }
        if let Some(reservation) = job.ticket.reservation.as_mut()
            && let admission::Verdict::Refuse {
                reason,
                retry_after_s,
            } = self
                .capacity
                .decide(&spec, reservation, &self.published.snapshot())
        {
            return Err(full(job, reason, retry_after_s));
        }
        let watch = Stopwatch::start();
        let now = self.clock.now();
        let asked = Asked {
            spec: &spec,
            wish: &wish,
            prompt: if job.cacheable { &job.prompt } else { &[] },
        };
        let request = self.request(&asked, now);
        let snapshot = self.snapshot(now);
        let decision = self.promises.controller.decide(&request, &snapshot);
        watch.observe(&self.accounts.metrics.decisions);
        let answer = Answer {
            decision,
            waited_ms: now.since(spec.arrival).as_secs_f64() * 1e3,
        };
        self.accounts.metrics.decisions.count(decision.verdict);
        if let Some(outcome) = decision.verdict.refusal() {
            if let Some(traces) = &self.traces {
                traces.refused(&spec, &wish, &answer, outcome);
            }
            job.ticket.refuse(outcome);
            return Err(Refused::Unpromised(
                self.refusal(&request, &snapshot, answer),
            ));
        }
        let told = self.promises.told;
        job.admitted = Some(Admitted {
            answer,
            wish,
            at: now,
            prefill_tokens: request.context.new_prefill_tokens(),
            told,
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
            prompt: &quote.prompt,
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
        let decision = &ended.admitted.answer.decision;
        self.promises.controller.completed(decision, latency);
        if let Some(traces) = &self.traces {
            let Admitted { answer, wish, .. } = &ended.admitted;
            let end = (ended.outcome, latency);
            traces.ended(&ended.spec, wish, answer, end, ended.usage);
        }
        self.fit(ctx);
        self.publish();
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
