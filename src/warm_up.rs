//! The generation that proves that the model answers before anybody else may ask. It goes straight to the wait
//! queue, past admission, appears in no account, and leaves the engine's averages with warm values.

use std::sync::Arc;
use std::time::Duration;

use crate::http::state::Served;
use crate::ids::{RequestId, TokenId};
use crate::job::Job;
use crate::logic::conformal::snapshot::Pace;
use crate::logic::request::{RequestSpec, Terms};
use crate::logic::time::Timestamp;
use crate::messages::{Enqueue, WarmedUp};
use crate::reply::{self, Frame};
use crate::system::Shared;
use crate::telemetry::accounts::Ticket;

const TOKENS: u32 = 8;

/// Generates a few tokens through the whole engine.
///
/// # Errors
/// Says why the model did not answer.
pub async fn generate(served: &Served, shared: &Shared, limit: Duration) -> Result<(), String> {
    let greeting = serde_json::json!([{ "role": "user", "content": "Hello" }]);
    // A model without a chat template can still be warmed.
    let prompt = served
        .front
        .encoder
        .encode_chat(&greeting, None)
        .unwrap_or_else(|_| vec![served.front.vocab.bos().unwrap_or(TokenId(0))]);
    let spec = RequestSpec {
        id: RequestId(0),
        arrival: shared.clock.now(),
        deadline: Timestamp::NEVER,
        prompt_tokens: prompt.len() as u32,
        max_tokens: TOKENS,
        preempted: false,
        terms: Terms {
            alone: true,
            ..Terms::default()
        },
    };
    let (sender, mut receiver) = reply::channel(TOKENS, 1 << 16);
    let vocab = Arc::clone(&served.front.vocab);
    let job = Job {
        ignore_eos: true,
        cacheable: false,
        ..Job::greedy(prompt.into(), sender, Ticket::uncounted(), vocab)
    };
    served.engine.enqueue.do_send(Enqueue((spec, job)));
    let mut tokens = Vec::with_capacity(TOKENS as usize);
    let answer = async {
        loop {
            match std::future::poll_fn(|cx| receiver.poll_recv(cx)).await {
                Some(Frame::Text(_)) => tokens.push(shared.clock.now()),
                Some(Frame::Finished { usage, .. }) => {
                    let idle = pace(&tokens, usage.completion_tokens);
                    served.engine.warmed_up.do_send(WarmedUp(idle));
                    return Ok(());
                }
                Some(Frame::Failed(e)) => {
                    return Err(format!("the warm-up generation failed: {e}"));
                }
                None => return Err("the warm-up generation was dropped".to_owned()),
            }
        }
    };
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| {
            Err(format!(
                "the model did not answer within {} s",
                limit.as_secs()
            ))
        })
}

/// The pace of one reply alone, without its prefill: the time between its first and its last text. Some texts
/// are of several tokens.
fn pace(texts: &[Timestamp], tokens: u32) -> Pace {
    let (Some(first), Some(last)) = (texts.first(), texts.last()) else {
        return Pace {
            step_ms: 0.0,
            tokens_per_s: 0.0,
        };
    };
    let step_ms = last.since(*first).as_secs_f64() * 1e3 / f64::from(tokens.max(2) - 1);
    Pace {
        step_ms,
        tokens_per_s: if step_ms > 0.0 { 1e3 / step_ms } else { 0.0 },
    }
}
