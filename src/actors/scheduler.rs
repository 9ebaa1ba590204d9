//! Scheduler: owns what runs.
//!
//! Owns each request from [`Taken`] until its outcome. It is driven by [`StepDone`], by [`WorkWaiting`] while
//! it idles, and by [`Cancel`]; it never sends itself a message. What happens in a turn is decided by
//! [`Turn`]; this actor turns its questions into messages to the peers that can answer, each one message
//! whatever the number of sequences. Handlers take microseconds. Runs on the engine arbiter, which it shares
//! only with the actors that answer it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use super::handoff::Handoff;
use crate::clock::Clock;
use crate::job::Job;
use crate::logic::admission::RetryAfter;
use crate::logic::conformal::pace::PaceMeter;
use crate::logic::request::{Lane, Outcome};
use crate::logic::scheduler::invariants::assert_plan;
use crate::logic::scheduler::step::{RowResult, Work};
use crate::logic::time::Timestamp;
use crate::logic::turn::{Ask, Payload, Turn};
use crate::messages::{
    Book, Cancel, EvictPrefixes, Granted, Insert, MatchPrefix, PrefixInserted, PrefixMatched,
    PrefixesEvicted, PutBack, ReserveMemory, RowInput, RunStep, StepBuffers, StepDone, Take, Taken,
    Unkept, Unlock, WorkWaiting,
};
use crate::telemetry::accounts::Accounts;
use crate::telemetry::published::Published;

/// Those that the scheduler talks to.
pub struct Peers {
    pub take: Recipient<Take>,
    pub put_back: Recipient<PutBack>,
    pub insert: Recipient<Insert>,
    pub matches: Recipient<MatchPrefix>,
    pub unlock: Recipient<Unlock>,
    pub evict: Recipient<EvictPrefixes>,
    pub reserve: Recipient<ReserveMemory>,
    pub book: Recipient<Book>,
    pub runner: Recipient<RunStep>,
    /// Tells the runner that its step is answered.
    pub handoff: Arc<Handoff>,
}

/// What it does beside driving turns.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How a client is told to come back whose request is given up.
    pub retry: RetryAfter,
    /// Steps between two looks at which promises will be kept; 0 for none.
    pub review_every: u64,
    pub check_invariants: bool,
}

/// See the module's text.
pub struct Scheduler {
    turn: Turn<Job>,
    peers: Peers,
    clock: Clock,
    published: Arc<Published>,
    accounts: Arc<Accounts>,
    settings: Settings,
    /// Neither a turn nor a step is under way.
    idle: bool,
    buffers: Option<Box<StepBuffers>>,
    alarm: Option<SpawnHandle>,
    back_to_back: bool,
    pace: PaceMeter,
    /// What it would be without the best-effort lane.
    promised_pace: PaceMeter,
    /// What the last step took that computed something.
    step_us: f64,
    /// What is to take effect when the next turn begins.
    unkept: Vec<Unkept>,
}

impl Scheduler {
    /// An idle scheduler.
    #[must_use]
    pub fn new(
        turn: Turn<Job>,
        peers: Peers,
        clock: Clock,
        published: Arc<Published>,
        accounts: Arc<Accounts>,
        settings: Settings,
    ) -> Self {
        Self {
            turn,
            peers,
            clock,
            published,
            accounts,
            settings,
            idle: true,
            buffers: Some(Box::default()),
            alarm: None,
            back_to_back: false,
            pace: PaceMeter::default(),
            promised_pace: PaceMeter::default(),
            step_us: 0.0,
            unkept: Vec::new(),
        }
    }

    /// Begins a turn.
    fn begin(&mut self) {
        self.idle = false;
        self.peers.handoff.resume();
        for Unkept { id, instead } in self.unkept.drain(..) {
            if let Some((spec, job)) = self.turn.find_mut(id) {
                job.lose_promise(spec, instead);
            }
        }
        let ask = self.turn.begin(self.clock.now(), self.step_us);
        self.pose(ask);
    }

    /// Carries out what the turn has left to be done, and asks what it asks.
    fn pose(&mut self, ask: Ask) {
        self.carry_out();
        match ask {
            Ask::Insert(insertions) => self.peers.insert.do_send(Insert(insertions)),
            Ask::Take(rule) => self.peers.take.do_send(Take(rule)),
            Ask::Match(queries) => self.peers.matches.do_send(MatchPrefix(queries)),
            Ask::Reserve(reserve) => self.peers.reserve.do_send(ReserveMemory(reserve)),
            Ask::Evict(want) => self.peers.evict.do_send(EvictPrefixes(want)),
            Ask::Run => self.step(),
        }
    }

    fn carry_out(&mut self) {
        let effects = &mut self.turn.effects;
        let now = self.clock.now();
        for (s, outcome) in effects.ended.drain(..) {
            s.payload.end_or_refuse(&s.spec, outcome, now, || {
                self.published.retry_after(self.settings.retry, &s.spec)
            });
        }
        for (spec, job) in effects.abandoned.drain(..) {
            job.end(&spec, Outcome::Cancelled, now);
        }
        if !effects.put_back.is_empty() {
            let back = std::mem::take(&mut effects.put_back);
            self.peers.put_back.do_send(PutBack(back));
        }
        if !effects.unlock.is_empty() {
            let nodes = std::mem::take(&mut effects.unlock);
            self.peers.unlock.do_send(Unlock(nodes));
        }
        if !effects.books.is_empty() {
            let entries = std::mem::take(&mut effects.books);
            self.peers.book.do_send(Book(entries));
        }
        let preempted = std::mem::take(&mut effects.preempted);
        self.published.preemptions.fetch_add(preempted, Relaxed);
        let lookups = std::mem::take(&mut effects.lookup_tokens);
        self.published.lookup_tokens.fetch_add(lookups, Relaxed);
        let hits = std::mem::take(&mut effects.hit_tokens);
        self.published.hit_tokens.fetch_add(hits, Relaxed);
    }

    /// What runs now, those included who wait for another's prefill.
    fn publish(&self) {
        for lane in Lane::ALL {
            let (output, prefill) = self.turn.tokens_remaining(lane);
            let running = &self.published.lane(lane).running;
            running.set(self.turn.running(lane), output, prefill);
        }
        let yielding = self.turn.scheduler().of(Lane::BestEffort);
        let blocks = yielding.map(|s| s.lease.blocks).sum();
        self.published.set_yielding(blocks);
        let (step, every) = (
            self.turn.scheduler().last_step(),
            self.settings.review_every,
        );
        if every > 0 && step.0.is_multiple_of(every) || self.turn.scheduler().running().is_empty() {
            let late = self.turn.scheduler().late(self.clock.now());
            self.published.late.store(late, Relaxed);
        }
    }

    /// Plans and sends the next step, or goes idle.
    fn step(&mut self) {
        self.publish();
        let mut step = self.buffers.take().unwrap_or_default();
        let done = self.turn.scheduler().last_step();
        self.turn.plan(&mut step.plan);
        if step.plan.is_empty() {
            self.buffers = Some(step);
            self.idle = true;
            self.back_to_back = false;
            self.published.came_to_rest(self.clock.now());
            self.peers.handoff.answer(done);
            return;
        }
        if self.settings.check_invariants {
            assert_plan(self.turn.scheduler(), &step.plan);
        }
        step.inputs.clear();
        for row in &step.plan.rows {
            let job = &self.turn.scheduler().running()[row.index].payload;
            let prefills = matches!(row.work, Work::Prefill { .. });
            step.inputs.push(RowInput {
                prompt: prefills.then(|| job.context()),
                sampling: job.sampling,
            });
        }
        step.back_to_back = std::mem::replace(&mut self.back_to_back, true);
        let promised = step.plan.promised_rows > 0;
        self.published.step_started(self.clock.now(), promised);
        self.peers.runner.do_send(RunStep(step));
        self.peers.handoff.answer(done);
    }

    /// The runner has gone on with the step after `step`: nothing is to be planned, unless somebody has to leave.
    fn follow(&mut self, step: Box<StepBuffers>, now: Timestamp) {
        self.turn.followed();
        self.published.step_started(now, true);
        self.publish();
        if self.turn.is_due() {
            self.peers.handoff.interrupt();
        }
        self.peers.handoff.give_back(step);
    }

    /// Wakes an idle scheduler at `at`.
    fn set_alarm(&mut self, at: Option<Timestamp>, ctx: &mut Context<Self>) {
        if let Some(old) = self.alarm.take() {
            ctx.cancel_future(old);
        }
        self.alarm = at.map(|at| {
            // Rounded up to tokio's grain, so that it never wakes just before.
            let grain = std::time::Duration::from_millis(1);
            let wait = self.clock.for_timer(at.since(self.clock.now()));
            ctx.run_later(wait + grain, |scheduler, _| {
                if scheduler.idle {
                    scheduler.begin();
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
        if self.idle {
            self.begin();
        } else if self.turn.has_room() {
            self.peers.handoff.interrupt();
        }
    }
}

impl Handler<PrefixInserted> for Scheduler {
    type Result = ();

    fn handle(&mut self, PrefixInserted(answers): PrefixInserted, _: &mut Self::Context) {
        let ask = self.turn.inserted(&answers);
        self.pose(ask);
    }
}

impl Handler<Taken> for Scheduler {
    type Result = ();

    fn handle(&mut self, taken: Taken, ctx: &mut Self::Context) {
        self.set_alarm(taken.ask_again, ctx);
        let ask = self.turn.taken(taken.requests);
        self.pose(ask);
    }
}

impl Handler<PrefixMatched> for Scheduler {
    type Result = ();

    fn handle(&mut self, PrefixMatched(hits): PrefixMatched, _: &mut Self::Context) {
        let ask = self.turn.matched(&hits);
        self.pose(ask);
    }
}

impl Handler<Granted> for Scheduler {
    type Result = ();

    fn handle(&mut self, Granted(reserved): Granted, _: &mut Self::Context) {
        let ask = self.turn.reserved(reserved);
        self.pose(ask);
    }
}

impl Handler<PrefixesEvicted> for Scheduler {
    type Result = ();

    fn handle(&mut self, PrefixesEvicted(given): PrefixesEvicted, _: &mut Self::Context) {
        let ask = self.turn.evicted(&given);
        self.pose(ask);
    }
}

impl Handler<StepDone> for Scheduler {
    type Result = ();

    fn handle(&mut self, StepDone(step): StepDone, _: &mut Self::Context) {
        let now = self.clock.now();
        let mut delivered = 0;
        let completed = self.turn.complete(&step.plan, &step.results, |s, token| {
            delivered += 1;
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
        self.accounts.metrics.generated.inc_by(delivered);
        // A step that only gives memory back says nothing of the pace.
        if !step.plan.rows.is_empty() {
            let seconds = step.model_time.as_secs_f64();
            self.step_us = seconds * 1e6;
            self.pace.observe(seconds, sampled as u32);
            step.plan
                .observe_promised(&step.results, seconds, &mut self.promised_pace);
            self.published.observe_step(&self.pace, &self.promised_pace);
        }
        if step.followed {
            self.follow(step, now);
        } else {
            self.buffers = Some(step);
            self.begin();
        }
    }
}

impl Handler<Cancel> for Scheduler {
    type Result = ();

    fn handle(&mut self, Cancel(id): Cancel, _: &mut Self::Context) {
        // Whatever runs is part of a turn under way, or of a step: it leaves at the turn's end or the next one's
        // beginning.
        if self.turn.cancel(id) {
            self.peers.handoff.interrupt();
        }
    }
}

impl Handler<Unkept> for Scheduler {
    type Result = ();

    /// It takes effect when the next turn begins: this one may have counted on it.
    fn handle(&mut self, unkept: Unkept, _: &mut Self::Context) {
        self.unkept.push(unkept);
    }
}
