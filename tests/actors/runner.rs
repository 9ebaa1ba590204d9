//! The model runner.

use super::*;

#[actix::test]
async fn model_runner_answers_a_step_with_its_results_and_its_buffers() {
    let (scheduler, done) = recorder();
    let mut config = Config::load(None, [], &Flags::default()).unwrap();
    config.fake.step_us = 0.0;
    let backend = FakeBackend::new(&config);
    let (handoff, clock) = (Arc::default(), Clock::start());
    let runner = ModelRunner::new(Box::new(backend), scheduler, handoff, clock, accounts()).start();
    let ((_, job), _receiver) = request(1, 4, 4);
    let row = RowPlan {
        index: 0,
        request: RequestId(1),
        seq: SeqId(0),
        work: Work::Prefill {
            start: 0,
            len: 4,
            samples: Some(0),
        },
    };
    let step = StepBuffers {
        plan: StepPlan {
            id: StepId(7),
            ops: vec![],
            rows: vec![row],
        },
        inputs: vec![RowInput {
            prompt: Some(job.prompt),
            sampling: job.sampling,
        }],
        ..StepBuffers::default()
    };
    runner.send(RunStep(Box::new(step))).await.unwrap();
    // The fake's cost is slept on tokio's clock.
    let step = loop {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        if let Some(StepDone(step)) = done.lock().unwrap().pop() {
            break step;
        }
    };
    assert_eq!(step.plan.id, StepId(7));
    assert!(matches!(step.results[..], [RowResult::Sampled(_)]));
}
