//! ModelRunner: the one place where the model computes.
//!
//! Owns the backend, whose context was made on this thread and can't leave it. Hears the Scheduler's
//! [`RunStep`] and answers with [`StepDone`]; a handler takes as long as the model does, so it has an arbiter
//! of its own. When it panics, the backend is gone: the watchdog ends the process.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Recipient, WrapFuture};
use tokio::time::Instant;

use super::handoff::Handoff;
use crate::clock::Clock;
use crate::logic::scheduler::step::{MemoryOp, Work};
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

impl Actor for ModelRunner {
    type Context = Context<Self>;
}

impl Handler<RunStep> for ModelRunner {
    type Result = ();

    fn handle(&mut self, RunStep(mut step): RunStep, ctx: &mut Self::Context) {
        let started = Instant::now();
        let metrics = &self.accounts.metrics;
        if let Some(before) = self.handed_back.filter(|_| step.back_to_back) {
            metrics.step_host.observe((started - before).as_secs_f64());
        }
        self.compute(&mut step);
        let delay = self.backend.take_delay();
        step.model_time = started.elapsed() + delay;
        self.accounts
            .metrics
            .step_model
            .observe(step.model_time.as_secs_f64());
        if delay == Duration::ZERO {
            self.handed_back = Some(Instant::now());
            let done = step.plan.id;
            self.scheduler.do_send(StepDone(step));
            self.handoff.wait(done);
        } else {
            let clock = self.clock;
            let slept = async move { clock.sleep(delay).await }.into_actor(self);
            ctx.spawn(slept.map(|(), runner, _| {
                runner.handed_back = Some(Instant::now());
                runner.scheduler.do_send(StepDone(step));
            }));
        }
    }
}
