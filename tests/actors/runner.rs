//! The model runner: a step and its results, and the steps that follow it without a plan.

use super::*;
use cadenced::actors::handoff::Handoff;

/// A runner whose model says `words` words before it ends a reply, and the steps that it has done.
fn runner_alone(words: u32) -> (actix::Addr<ModelRunner>, Arc<Handoff>, Heard<StepDone>) {
    let (scheduler, done) = recorder();
    let mut config = Config::load(None, [], &Flags::default()).unwrap();
    config.fake.step_us = 0.0;
    (config.fake.length_min, config.fake.length_max) = (words, words);
    let backend = Box::new(FakeBackend::new(&config));
    let handoff = Arc::new(Handoff::default());
    let hands = Arc::clone(&handoff);
    let runner = ModelRunner::new(backend, scheduler, hands, Clock::start(), accounts());
    (runner.start(), handoff, done)
}

/// Step 7: a prompt of four tokens, after which `ahead` steps may follow.
fn prompt(ahead: u32) -> RunStep {
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
    RunStep(Box::new(StepBuffers {
        plan: StepPlan {
            id: StepId(7),
            ops: vec![],
            rows: vec![row],
            promised_rows: 1,
            promised_share: 1.0,
            ahead,
        },
        inputs: vec![RowInput {
            prompt: Some(job.prompt),
            sampling: job.sampling,
        }],
        ..StepBuffers::default()
    }))
}

/// The next step done. The fake's cost is slept on tokio's clock.
async fn next_done(done: &Heard<StepDone>) -> Box<StepBuffers> {
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let mut done = done.lock().unwrap();
        if !done.is_empty() {
            return done.remove(0).0;
        }
    }
}

#[actix::test]
async fn a_step_comes_back_with_its_results_and_its_buffers() {
    let (runner, _, done) = runner_alone(9);
    runner.send(prompt(0)).await.unwrap();
    let step = next_done(&done).await;
    assert_eq!((step.plan.id, step.followed), (StepId(7), false));
    assert!(matches!(step.results[..], [RowResult::Sampled(_)]));
}

#[actix::test]
async fn steps_follow_as_far_as_the_plan_allows_and_as_their_results_are_taken_in() {
    let (runner, handoff, done) = runner_alone(9);
    runner.send(prompt(3)).await.unwrap();
    let mut first = next_done(&done).await;
    let [RowResult::Sampled(said)] = first.results[..] else {
        panic!("a prompt samples");
    };
    assert!(first.followed);
    // Its buffers have not come back, so the runner waits for its scheduler.
    let second = next_done(&done).await;
    assert_eq!((second.plan.id, second.followed), (StepId(8), false));
    let next = Work::Decode {
        position: 4,
        token: said,
        index: 1,
    };
    assert_eq!(second.plan.rows[0].work, next);
    assert!(second.plan.follow(&second.results, &mut first.plan));
    first.inputs.clone_from(&second.inputs);
    handoff.give_back(second);
    runner.send(RunStep(first)).await.unwrap();
    assert!(next_done(&done).await.followed, "one is left of three");
    let last = next_done(&done).await;
    assert_eq!((last.plan.ahead, last.followed), (0, false));
}

#[actix::test]
async fn none_follows_where_the_scheduler_has_something_to_do_or_a_reply_ends() {
    let (runner, handoff, done) = runner_alone(9);
    handoff.interrupt();
    runner.send(prompt(2)).await.unwrap();
    assert!(!next_done(&done).await.followed);
    let (runner, _, done) = runner_alone(0);
    runner.send(prompt(2)).await.unwrap();
    assert!(!next_done(&done).await.followed, "a reply without words");
}
