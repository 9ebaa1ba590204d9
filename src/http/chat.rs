//! `POST /v1/chat/completions`.
//!
//! Everything that can be refused without decoding is refused before the first byte, also when a stream was
//! asked for. From then on a stream is OpenAI's.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, Responder as _};
use actix_web_lab::sse::Sse;

use super::door::Door;
use super::events::Events;
use super::intake::{Intake, take_in};
use super::openai::{self, ChatRequest, ChunkWriter, Completion};
use super::reply::Reply;
use super::state::{AppState, Served};
use super::{errors, promise};
use crate::error::ServeError;
use crate::job::{Job, Marks};
use crate::logic::conformal::receipt::Answer;
use crate::logic::output::TextAssembler;
use crate::logic::time::Timestamp;
use crate::messages::{Enqueue, Refused, Submit};
use crate::reply::{self, Frame};
use crate::telemetry::accounts::Ticket;

/// A request in the engine.
struct Accepted {
    chat: ChatRequest,
    reply: Reply,
    served: Arc<Served>,
    answer: Option<Answer>,
}

/// The route.
pub async fn chat(state: Data<AppState>, request: HttpRequest, payload: Payload) -> HttpResponse {
    let arrival = state.shared.clock.now();
    let accounts = &state.shared.accounts;
    let mut ticket = Some(match Door::of(&request) {
        Door::Public => Ticket::new(Arc::clone(accounts)),
        Door::Admin => {
            accounts.metrics.admin_requests.inc();
            Ticket::uncounted()
        }
    });
    match accept(&state, &request, payload, arrival, &mut ticket).await {
        Ok(accepted) => {
            let answer = accepted.answer;
            let mut response = if accepted.chat.stream {
                stream(&request, &state, accepted)
            } else {
                complete(accepted).await
            };
            if let Some(answer) = answer {
                promise::tell(response.headers_mut(), &answer);
            }
            response
        }
        Err(error) => {
            if let Some(ticket) = ticket {
                ticket.refuse(errors::outcome(&error));
            }
            errors::response(&error)
        }
    }
}

/// Takes the request as far as the wait queue. The ticket is taken when the engine counts the request's end.
async fn accept(
    state: &Data<AppState>,
    request: &HttpRequest,
    payload: Payload,
    arrival: Timestamp,
    ticket: &mut Option<Ticket>,
) -> Result<Accepted, ServeError> {
    let Intake {
        chat,
        served,
        prompt,
        beginnings,
        spec,
        wish,
        reservation,
        in_flight,
    } = take_in(state, request, payload, arrival).await?;
    // A reply that is sent whole is read by this server: how slowly is no fault of its client.
    let unread_bytes = if chat.stream {
        state.config.limits.unread_bytes
    } else {
        usize::MAX
    };
    let (sender, receiver) = reply::channel(spec.max_tokens, unread_bytes);
    let reply = Reply::new(spec.id, receiver, Arc::clone(&served), in_flight);
    let Some(mut ticket) = ticket.take() else {
        return Err(ServeError::Internal);
    };
    ticket.reservation = Some(reservation);
    let door = Door::of(request);
    let job = Job {
        prompt,
        sampling: chat.sampling,
        ignore_eos: chat.ignore_eos,
        text: TextAssembler::new(chat.stop.clone()),
        reply: sender,
        ticket,
        vocab: Arc::clone(&served.front.vocab),
        generated: Vec::new(),
        // The operator's generations cost the same each time and leave nothing behind.
        cacheable: door == Door::Public,
        transcripts: served
            .front
            .transcripts
            .clone()
            .filter(|_| door == Door::Public),
        cached_tokens: None,
        marks: Marks::default(),
        admitted: None,
    };
    if door == Door::Admin {
        served.engine.enqueue.do_send(Enqueue((spec, job)));
        return Ok(Accepted {
            chat,
            reply,
            served,
            answer: None,
        });
    }
    let submit = Submit {
        spec,
        wish,
        beginnings,
        job,
    };
    match served.engine.submit.send(submit).await {
        Ok(Ok(answer)) => Ok(Accepted {
            chat,
            reply,
            served,
            answer,
        }),
        Ok(Err(Refused::Capacity {
            reason,
            retry_after_s,
        })) => Err(ServeError::Overloaded {
            retry_after: retry_after_s.into(),
            code: reason.code(),
        }),
        Ok(Err(Refused::Unpromised(refusal))) => Err(ServeError::Unpromised(Box::new(refusal))),
        Err(e) => Err(ServeError::Engine {
            message: format!("admission is gone: {e}"),
        }),
    }
}

fn unix_time() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The whole reply in one body.
async fn complete(accepted: Accepted) -> HttpResponse {
    let Accepted {
        mut reply, served, ..
    } = accepted;
    let mut content = String::new();
    while let Some(frame) = reply.next().await {
        match frame {
            Frame::Text(text) => content.push_str(&text),
            Frame::Finished {
                reason,
                usage,
                timings,
                receipt,
            } => {
                let json = openai::completion_json(&Completion {
                    id: &openai::new_completion_id(),
                    created: unix_time(),
                    model: &served.name,
                    content: &content,
                    finish_reason: reason,
                    usage,
                    timings,
                });
                let mut response = HttpResponse::Ok()
                    .content_type("application/json")
                    .body(json);
                if let Some(receipt) = receipt {
                    promise::hand_over(&mut response, &receipt);
                }
                return response;
            }
            Frame::Failed(error) => return errors::response(&error),
        }
    }
    errors::response(&ServeError::Internal)
}

/// The reply as it comes.
fn stream(request: &HttpRequest, state: &AppState, accepted: Accepted) -> HttpResponse {
    let Accepted {
        chat,
        reply,
        served,
        ..
    } = accepted;
    let id = openai::new_completion_id();
    let chunks = ChunkWriter::new(&id, unix_time(), &served.name).with_usage(chat.include_usage);
    let response = Sse::from_infallible_stream(Events::new(reply, chunks, chat.include_usage))
        .with_keep_alive(Duration::from_secs(state.config.server.sse_keep_alive_s))
        .respond_to(request);
    let mut response = response.map_into_boxed_body();
    // nginx and its like hold a response back to fill a buffer unless told not to.
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    response
}
