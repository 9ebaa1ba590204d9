//! A client, and what the handler of the route does for it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cadenced::error::ServeError;
use cadenced::ids::RequestId;
use cadenced::job::{Job, Wish};
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::prefix::Beginnings;
use cadenced::logic::request::Outcome;
use cadenced::messages::{Refused, Submit};
use cadenced::reply::{self, Frame, ReplyReceiver, Usage};
use cadenced::telemetry::accounts::Ticket;

use super::super::admission::MESSAGES;
use super::super::daemon::BYTES_PER_TOKEN;
use super::super::engine::{Fate, Request};
use super::house::House;

/// One request, from its arrival to whatever ends it for its client.
pub async fn client(house: Rc<House>, index: usize) -> Fate {
    let request = &house.requests[index];
    let leaves_us = house.patience_us.map_or(u64::MAX, |us| request.at_us + us);
    let leaves = async {
        match house.patience_us {
            Some(_) => house.sleep_until(leaves_us).await,
            None => std::future::pending().await,
        }
    };
    let first_token_us = Cell::new(None);
    let said = tokio::select! {
        biased;
        () = leaves => {
            house.engine.cancel(RequestId(index as u64 + 1));
            Said::of(Outcome::Cancelled)
        }
        end = ask(&house, index, request, &first_token_us) => end,
    };
    Fate {
        outcome: said.outcome,
        first_token_us: first_token_us.get(),
        end_us: house.now_us(),
        generated: said.usage.map_or(0, |u| u.completion_tokens),
        cached_tokens: said.usage.map(|u| u.cached_tokens),
        decision: said.decision,
    }
}

/// What a client was told.
struct Said {
    outcome: Outcome,
    /// With the end of a reply.
    usage: Option<Usage>,
    decision: Option<Decision>,
}

impl Said {
    fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            usage: None,
            decision: None,
        }
    }
}

/// What the handler of the route does, without the wire.
async fn ask(
    house: &House,
    index: usize,
    request: &Request,
    first_token_us: &Cell<Option<u64>>,
) -> Said {
    let mut ticket = Ticket::new(Arc::clone(&house.shared.accounts));
    let bytes = request.prompt_tokens as usize * BYTES_PER_TOKEN;
    let Ok(reservation) = house.capacity.reserve(bytes) else {
        ticket.refuse(Outcome::Refused);
        return Said::of(Outcome::Refused);
    };
    if request.prompt_tokens >= house.config.kv_pool().sequence_tokens_max() {
        ticket.refuse(Outcome::Invalid);
        return Said::of(Outcome::Invalid);
    }
    ticket.reservation = Some(reservation);
    let spec = house.spec(index, request);
    let (sender, replies) = reply::channel(spec.max_tokens, usize::MAX);
    let prompt = request.text.tokens(request.prompt_tokens, 0);
    let beginnings = Beginnings::of(&prompt);
    let job = Job::greedy(prompt, sender, ticket, Arc::clone(&house.vocab));
    let wish = Wish {
        messages: MESSAGES,
        slo: house.slo_us.map(Duration::from_micros),
        alpha: None,
        best_effort: false,
    };
    let submit = Submit {
        spec,
        wish,
        beginnings,
        job,
    };
    match house.engine.submit.send(submit).await {
        Ok(Ok(answer)) => {
            let (outcome, usage) = listen(house, replies, first_token_us).await;
            Said {
                outcome,
                usage,
                decision: answer.map(|a| a.decision),
            }
        }
        Ok(Err(Refused::Unpromised(refusal))) => {
            let decision = refusal.answer.decision;
            let outcome = decision.verdict.refusal().unwrap_or(Outcome::Refused);
            Said {
                decision: Some(decision),
                ..Said::of(outcome)
            }
        }
        Ok(Err(Refused::Capacity { .. })) => Said::of(Outcome::Refused),
        Err(e) => panic!("admission is gone: {e}"),
    }
}

async fn listen(
    house: &House,
    mut replies: ReplyReceiver,
    first_token_us: &Cell<Option<u64>>,
) -> (Outcome, Option<Usage>) {
    loop {
        match std::future::poll_fn(|cx| replies.poll_recv(cx)).await {
            Some(Frame::Text(_)) => {
                let first = first_token_us.get().unwrap_or_else(|| house.now_us());
                first_token_us.set(Some(first));
            }
            Some(Frame::Finished { reason, usage, .. }) => {
                return (Outcome::Finished(reason), Some(usage));
            }
            Some(Frame::Failed(ServeError::Expired { .. })) => return (Outcome::Expired, None),
            Some(Frame::Failed(e)) => panic!("the fake never fails: {e}"),
            None => panic!("a reply without an end"),
        }
    }
}
