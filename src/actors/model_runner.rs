//! ModelRunner: the one place where the model computes.
//!
//! Owns the backend, whose context was made on this thread and can't leave it. Hears the Scheduler's
//! [`RunStep`] and answers with [`StepDone`] of that step and of those that follow it without a plan (see
//! [`super::handoff`]). A handler takes as long as the model does, so it has an arbiter of its own. When it panics,
//! the backend is gone: the watchdog ends the process.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Recipient, WrapFuture};
use tokio::time::Instant;

use super::handoff::Handoff;
use crate::clock::Clock;
use crate::logic::scheduler::step::{MemoryOp, RowResult, Work};
use crate::messages::{RunStep, StepBuffers, StepDone};
use crate::model::sampling::Sampler;
use crate::model::step::{SampledRow, run_rows};
use crate::model::{BatchRow, ModelBackend};
use crate::telemetry::accounts::Accounts;

/// See the module's text.
pub struct ModelRunner {
    backend: Box<dyn ModelBackend>,
    sampler: Sampler,
    scheduler: Recipient<StepDone>,
    handoff: Arc<Handoff>,
    clock: Clock,
    accounts: Arc<Accounts>,
    /// When the last step was handed back, for the time between two steps.
    handed_back: Option<Instant>,
}

impl ModelRunner {
    /// A runner around a backend that was made on this thread.
    #[must_use]
    pub fn new(
        backend: Box<dyn ModelBackend>,
        scheduler: Recipient<StepDone>,
        handoff: Arc<Handoff>,
        clock: Clock,
        accounts: Arc<Accounts>,
    ) -> Self {
        Self {
            backend,
            sampler: Sampler::default(),
            scheduler,
            handoff,
            clock,
            accounts,
            handed_back: None,
        }
    }

    fn compute(&mut self, step: &mut StepBuffers) {
        for op in &step.plan.ops {
            match *op {
                MemoryOp::Copy { from, to, tokens } => self.backend.copy(from, to, tokens),
                // The whole of a sequence can always be removed, and a part only where the model was found
                // able to.
                MemoryOp::Remove { seq, from } => {
                    if !self.backend.remove(seq, from) {
                        tracing::error!(seq = seq.0, from, "the model did not remove cells");
                    }
                }
            }
        }
        let rows: Vec<SampledRow<'_>> = step
            .plan
            .rows
            .iter()
            .zip(&step.inputs)
            .map(|(row, input)| {
                let tokens = match (&row.work, &input.prompt) {
                    (Work::Prefill { start, len, .. }, Some(prompt)) => {
                        &prompt[*start as usize..(*start + *len) as usize]
                    }
                    (Work::Decode { token, .. }, _) => std::slice::from_ref(token),
                    (Work::Prefill { .. }, None) => &[],
                };
                SampledRow {
                    batch: BatchRow {
                        seq: row.seq,
                        position: row.work.position(),
                        tokens,
                        logits: row.work.samples().is_some(),
                    },
                    sample: row.work.samples().map(|index| (index, &input.sampling)),
                }
            })
            .collect();
        run_rows(
            self.backend.as_mut(),
            &mut self.sampler,
            &rows,
            &mut step.results,
        );
    }
}

impl ModelRunner {
    /// Computes a step, and those that follow it.
    fn run(&mut self, mut step: Box<StepBuffers>, ctx: &mut Context<Self>) {
        loop {
            let started = Instant::now();
            let metrics = &self.accounts.metrics;
            if let Some(before) = self.handed_back.filter(|_| step.back_to_back) {
                metrics.step_host.observe((started - before).as_secs_f64());
            }
            self.compute(&mut step);
            let delay = self.backend.take_delay();
            step.model_time = started.elapsed() + delay;
            let metrics = &self.accounts.metrics;
            metrics.step_model.observe(step.model_time.as_secs_f64());
            if delay > Duration::ZERO {
                let clock = self.clock;
                let slept = async move { clock.sleep(delay).await }.into_actor(self);
                ctx.spawn(slept.map(|(), runner, ctx| {
                    if let Some(next) = runner.done(step) {
                        runner.run(next, ctx);
                    }
                }));
                return;
            }
            let id = step.plan.id;
            match self.done(step) {
                Some(next) => step = next,
                None => return self.handoff.wait(id),
            }
        }
    }

    /// Hands a step back. `Some` if another one follows it without a plan.
    fn done(&mut self, mut step: Box<StepBuffers>) -> Option<Box<StepBuffers>> {
        self.handed_back = Some(Instant::now());
        let next = self.next(&step);
        step.followed = next.is_some();
        self.scheduler.do_send(StepDone(step));
        next
    }

    /// The step that follows, unless somebody's reply ends here or the scheduler has something to do.
    fn next(&self, step: &StepBuffers) -> Option<Box<StepBuffers>> {
        let ends = |r: &RowResult| matches!(r, RowResult::Sampled(t) if self.backend.ends(*t));
        if step.plan.ahead == 0 || step.results.iter().any(ends) {
            return None;
        }
        let mut next = self.handoff.go_on()?;
        if !step.plan.follow(&step.results, &mut next.plan) {
            self.handoff.give_back(next);
            return None;
        }
        next.inputs.clone_from(&step.inputs);
        next.back_to_back = true;
        Some(next)
    }
}

impl Actor for ModelRunner {
    type Context = Context<Self>;
}

impl Handler<RunStep> for ModelRunner {
    type Result = ();

    fn handle(&mut self, RunStep(step): RunStep, ctx: &mut Self::Context) {
        self.run(step, ctx);
    }
}
