//! Scheduler: owns what runs.
//!
//! Owns each request from [`Taken`] until its outcome. It is driven by [`StepDone`], by [`WorkWaiting`] while
//! it idles, and by [`Cancel`]; it never sends itself a message. One turn is: sweep what has ended → take what
//! fits → match prefixes → reserve memory → plan → run; each arrow that leaves this actor is one message,
//! whatever the number of sequences. Handlers take microseconds. Runs on the engine arbiter, which it shares
//! only with the actors that answer it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use super::handoff::Handoff;
use crate::clock::Clock;
use crate::job::Job;
use crate::logic::kv::blocks_for;
use crate::logic::request::Outcome;
use crate::logic::scheduler::invariants::assert_plan;
use crate::logic::scheduler::step::{RowResult, Work};
use crate::logic::scheduler::{Scheduler as Logic, Sequence};
use crate::logic::time::Timestamp;
use crate::messages::{
    Cancel, Granted, MatchPrefix, Owned, PrefixMatched, PutBack, Release, Reserve, RowInput,
    RunStep, StepBuffers, StepDone, Take, Taken, WorkWaiting,
};
use crate::telemetry::accounts::Accounts;
use crate::telemetry::published::{Pace, Published};

/// Those that the scheduler talks to.
pub struct Peers {
    pub take: Recipient<Take>,
    pub put_back: Recipient<PutBack>,
    pub prefixes: Recipient<MatchPrefix>,
    pub reserve: Recipient<Reserve>,
    pub release: Recipient<Release>,
    pub runner: Recipient<RunStep>,
    /// Tells the runner that its step is answered.
    pub handoff: Arc<Handoff>,
}

/// What the turn waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Taking,
    Matching,
    Reserving,
    Computing,
}

/// See the module's text.
pub struct Scheduler {
    logic: Logic<Job>,
    peers: Peers,
    clock: Clock,
    published: Arc<Published>,
    accounts: Arc<Accounts>,
    check_invariants: bool,
    phase: Phase,
    /// Requests taken and not yet granted memory, with what is cached of each.
    candidates: Vec<Owned>,
    cached: Vec<u32>,
    /// The pool was short at the last reservation and nothing has come back since.
    starved: bool,
    buffers: Option<Box<StepBuffers>>,
    left: Vec<(Sequence<Job>, Outcome)>,
    alarm: Option<SpawnHandle>,
    back_to_back: bool,
    pace: Pace,
}

impl Scheduler {
    /// An idle scheduler.
    #[must_use]
    pub fn new(
        logic: Logic<Job>,
        peers: Peers,
        clock: Clock,
        published: Arc<Published>,
        accounts: Arc<Accounts>,
        check_invariants: bool,
    ) -> Self {
        Self {
            logic,
            peers,
            clock,
            published,
            accounts,
            check_invariants,
            phase: Phase::Idle,
            candidates: Vec::new(),
            cached: Vec::new(),
            starved: false,
            buffers: Some(Box::default()),
            left: Vec::new(),
            alarm: None,
            back_to_back: false,
            pace: Pace::default(),
        }
    }

    /// Begins a turn.
    fn turn(&mut self) {
        self.sweep();
        match self.logic.take_rule().filter(|_| !self.starved) {
            Some(rule) => {
                self.phase = Phase::Taking;
                self.peers.take.do_send(Take(rule));
            }
            None => self.step(),
        }
    }

    /// Lets what has ended go.
    fn sweep(&mut self) {
        let now = self.clock.now();
        self.logic.sweep(&mut self.left);
        for (s, outcome) in self.left.drain(..) {
            s.payload.end(&s.spec, s.num_generated, outcome, now);
        }
        self.publish();
    }

    /// Plans and sends the next step, or goes idle.
    fn step(&mut self) {
        let mut step = self.buffers.take().unwrap_or_default();
        let done = self.logic.last_step();
        self.logic.plan(&mut step.plan);
        if step.plan.is_empty() {
            self.buffers = Some(step);
            self.phase = Phase::Idle;
            self.back_to_back = false;
            self.peers.handoff.answer(done);
            return;
        }
        if self.check_invariants {
            assert_plan(&self.logic, &step.plan);
        }
        step.inputs.clear();
        for row in &step.plan.rows {
            let job = &self.logic.running()[row.index].payload;
            let prefills = matches!(row.work, Work::Prefill { .. });
            step.inputs.push(RowInput {
                prompt: prefills.then(|| Arc::clone(&job.prompt)),
                sampling: job.sampling,
            });
        }
        step.back_to_back = std::mem::replace(&mut self.back_to_back, true);
        self.phase = Phase::Computing;
        self.published.step_started(self.clock.now());
        self.peers.runner.do_send(RunStep(step));
        self.peers.handoff.answer(done);
    }

    fn publish(&self) {
        self.published
            .running
            .store(self.logic.running().len(), Relaxed);
        self.published
            .running_tokens
            .store(self.logic.tokens_remaining(), Relaxed);
    }

    /// Wakes an idle scheduler at `at`.
    fn set_alarm(&mut self, at: Option<Timestamp>, ctx: &mut Context<Self>) {
        if let Some(old) = self.alarm.take() {
            ctx.cancel_future(old);
        }
        self.alarm = at.map(|at| {
            // Rounded up to tokio's grain, so that it never wakes just before.
            let wait = at.since(self.clock.now()) + std::time::Duration::from_millis(1);
            ctx.run_later(wait, |scheduler, _| {
                if scheduler.phase == Phase::Idle {
                    scheduler.turn();
                }
            })
        });
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;
}

impl Handler<WorkWaiting> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: WorkWaiting, _: &mut Self::Context) {
        if self.phase == Phase::Idle {
            self.turn();
        }
    }
}

impl Handler<Taken> for Scheduler {
    type Result = ();

    fn handle(&mut self, taken: Taken, ctx: &mut Self::Context) {
        self.set_alarm(taken.ask_again, ctx);
        self.candidates = taken.requests;
        if self.candidates.is_empty() {
            self.step();
            return;
        }
        self.phase = Phase::Matching;
        let prompts = self
            .candidates
            .iter()
            .map(|(_, job)| Arc::clone(&job.prompt))
            .collect();
        self.peers.prefixes.do_send(MatchPrefix(prompts));
    }
}

impl Handler<PrefixMatched> for Scheduler {
    type Result = ();

    fn handle(&mut self, PrefixMatched(cached): PrefixMatched, _: &mut Self::Context) {
        self.phase = Phase::Reserving;
        self.cached = cached;
        let demands = self
            .candidates
            .iter()
            .map(|(spec, _)| blocks_for(spec.cells_max()))
            .collect();
        self.peers.reserve.do_send(Reserve(demands));
    }
}

impl Handler<Granted> for Scheduler {
    type Result = ();

    fn handle(&mut self, Granted(leases): Granted, _: &mut Self::Context) {
        let short = self.candidates.split_off(leases.len());
        for (((spec, mut job), lease), cached) in self
            .candidates
            .drain(..)
            .zip(leases)
            .zip(self.cached.drain(..))
        {
            let abandoned = job.is_abandoned();
            job.cached_tokens = cached;
            self.logic.admit(spec, lease, cached, job);
            if abandoned {
                // Its client left while this turn was under way.
                self.logic.end(spec.id, Outcome::Cancelled);
            }
        }
        if !short.is_empty() {
            self.starved = true;
            self.peers.put_back.do_send(PutBack(short));
        }
        self.sweep();
        self.step();
    }
}

impl Handler<StepDone> for Scheduler {
    type Result = ();

    fn handle(&mut self, StepDone(step): StepDone, _: &mut Self::Context) {
        let now = self.clock.now();
        let completed = self.logic.complete(&step.plan, &step.results, |s, token| {
            s.payload.deliver(token, now)
        });
        if completed.is_err() {
            self.published.stale_steps.fetch_add(1, Relaxed);
            tracing::error!(
                step = step.plan.id.0,
                "a step's results came for no step in flight"
            );
            return;
        }
        self.published.step_ended();
        let sampled = step
            .results
            .iter()
            .filter(|r| matches!(r, RowResult::Sampled(_)))
            .count();
        let prefilled = step.plan.rows.iter().map(|r| match r.work {
            Work::Prefill { len, .. } => u64::from(len),
            Work::Decode { .. } => 0,
        });
        self.accounts.metrics.prefilled.inc_by(prefilled.sum());
        self.accounts.metrics.generated.inc_by(sampled as u64);
        self.published.observe_step(
            &mut self.pace,
            step.model_time.as_secs_f64(),
            sampled as u32,
        );
        if !step.plan.removals.is_empty() {
            self.starved = false;
            self.peers
                .release
                .do_send(Release(step.plan.removals.clone()));
        }
        self.buffers = Some(step);
        self.turn();
    }
}

impl Handler<Cancel> for Scheduler {
    type Result = ();

    fn handle(&mut self, Cancel(id): Cancel, _: &mut Self::Context) {
        // Whatever runs is part of a turn under way, which sweeps it out when its step is done.
        self.logic.end(id, Outcome::Cancelled);
    }
}
