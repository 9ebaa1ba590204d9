//! `POST /v1/chat/completions`.
//!
//! Everything that can be refused without decoding is refused before the first byte, also when a stream was
//! asked for. From then on a stream is OpenAI's: the role first, the reply's text, the reason it ended, the
//! usage if asked for, `[DONE]`; or an error, and no `[DONE]`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, Responder as _};
use actix_web_lab::sse::{self, Sse};
use futures_util::Stream;

use super::openai::{self, ChatRequest, ChunkWriter, Completion};
use super::reply::{InFlight, Reply};
use super::state::{AppState, Served};
use super::{body, errors};
use crate::error::ServeError;
use crate::job::Job;
use crate::lifecycle::Phase;
use crate::logic::output::TextAssembler;
use crate::logic::request::{FinishReason, RequestSpec};
use crate::logic::time::Timestamp;
use crate::messages::{Refused, Submit};
use crate::model::ModelFront;
use crate::reply::{self, Frame, Usage};
use crate::telemetry::accounts::Ticket;

/// Conversations longer than this are rendered and tokenized on a thread that may block.
const INLINE_BYTES: usize = 64 << 10;

/// The route.
pub async fn chat(state: Data<AppState>, request: HttpRequest, payload: Payload) -> HttpResponse {
    let arrival = state.shared.clock.now();
    let mut ticket = Some(Ticket::new(Arc::clone(&state.shared.accounts)));
    match accept(&state, &request, payload, arrival, &mut ticket).await {
        Ok((chat, reply, served)) if chat.stream => stream(&request, &state, &chat, reply, &served),
        Ok((_, reply, served)) => complete(reply, &served).await,
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
    mut payload: Payload,
    arrival: Timestamp,
    ticket: &mut Option<Ticket>,
) -> Result<(ChatRequest, Reply, Arc<Served>), ServeError> {
    let served = match (state.lifecycle.phase(), state.served.get()) {
        (Phase::Ready | Phase::Leaving, Some(served)) => Arc::clone(served),
        (Phase::Draining, _) => {
            return Err(ServeError::Draining {
                retry_after: state.retry_after(),
            });
        }
        _ => return Err(ServeError::NotReady { retry_after: 2 }),
    };
    let in_flight = InFlight::new(state);
    let (body, reservation) = body::read(state, request, &mut payload).await?;
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
    };
    let chat = openai::parse_chat(&body, &header, &state.request_limits)?;
    if let Some(model) = chat.model.as_ref().filter(|m| **m != served.name) {
        return Err(ServeError::ModelNotFound {
            model: model.clone(),
        });
    }
    let mut prompt = encode(&served.front, &chat, body.len()).await?;
    drop(body);
    if let Some(transcripts) = &served.front.transcripts {
        prompt = transcripts.recall(prompt, &served.front.vocab);
    }
    let context = served.front.context as usize;
    if prompt.is_empty() || prompt.len() >= context {
        // One token of the context is the reply's.
        return Err(ServeError::ContextLengthExceeded {
            prompt_tokens: prompt.len() as u32,
            limit: served.front.context - 1,
        });
    }
    let prompt_tokens = prompt.len() as u32;
    let id = state.next_id();
    let spec = RequestSpec {
        id,
        arrival,
        deadline: deadline(arrival, &chat.slo),
        prompt_tokens,
        max_tokens: chat.max_tokens.min(served.front.context - prompt_tokens),
        preempted: false,
    };
    // A reply that is sent whole is read by this server: how slowly is no fault of its client.
    let unread_bytes = if chat.stream {
        state.config.limits.unread_bytes
    } else {
        usize::MAX
    };
    let (sender, receiver) = reply::channel(spec.max_tokens, unread_bytes);
    let reply = Reply::new(id, receiver, Arc::clone(&served), in_flight);
    let Some(mut ticket) = ticket.take() else {
        return Err(ServeError::Internal);
    };
    ticket.reservation = Some(reservation);
    let job = Job {
        prompt: prompt.into(),
        sampling: chat.sampling,
        ignore_eos: chat.ignore_eos,
        text: TextAssembler::new(chat.stop.clone()),
        reply: sender,
        ticket,
        vocab: Arc::clone(&served.front.vocab),
        generated: Vec::new(),
        cacheable: true,
        transcripts: served.front.transcripts.clone(),
        cached_tokens: None,
        first_token_at: None,
    };
    match served.engine.submit.send(Submit(spec, job)).await {
        Ok(Ok(())) => Ok((chat, reply, served)),
        Ok(Err(Refused {
            reason,
            retry_after_s,
        })) => Err(ServeError::Overloaded {
            retry_after: retry_after_s.into(),
            code: reason.code(),
        }),
        Err(e) => Err(ServeError::Engine {
            message: format!("admission is gone: {e}"),
        }),
    }
}

async fn encode(
    front: &ModelFront,
    chat: &ChatRequest,
    bytes: usize,
) -> Result<Vec<crate::ids::TokenId>, ServeError> {
    if bytes <= INLINE_BYTES {
        return front
            .encoder
            .encode_chat(&chat.messages, chat.tools.as_ref());
    }
    let (encoder, messages, tools) = (
        Arc::clone(&front.encoder),
        chat.messages.clone(),
        chat.tools.clone(),
    );
    actix_web::web::block(move || encoder.encode_chat(&messages, tools.as_ref()))
        .await
        .map_err(|_| ServeError::Internal)?
}

/// The earlier of the two moments that the SLO names.
fn deadline(arrival: Timestamp, slo: &openai::Slo) -> Timestamp {
    [slo.e2e_ms, slo.ttft_ms]
        .into_iter()
        .flatten()
        .map(|ms| arrival + Duration::from_millis(ms))
        .min()
        .unwrap_or(Timestamp::NEVER)
}

fn unix_time() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The whole reply in one body.
async fn complete(mut reply: Reply, served: &Served) -> HttpResponse {
    let mut content = String::new();
    while let Some(frame) = reply.next().await {
        match frame {
            Frame::Text(text) => content.push_str(&text),
            Frame::Finished { reason, usage } => {
                let json = openai::completion_json(&Completion {
                    id: &openai::new_completion_id(),
                    created: unix_time(),
                    model: &served.name,
                    content: &content,
                    finish_reason: reason,
                    usage,
                });
                return HttpResponse::Ok()
                    .content_type("application/json")
                    .body(json);
            }
            Frame::Failed(error) => return errors::response(&error),
        }
    }
    errors::response(&ServeError::Internal)
}

/// The reply as it comes.
fn stream(
    request: &HttpRequest,
    state: &AppState,
    chat: &ChatRequest,
    reply: Reply,
    served: &Served,
) -> HttpResponse {
    let id = openai::new_completion_id();
    let chunks = ChunkWriter::new(&id, unix_time(), &served.name).with_usage(chat.include_usage);
    let events = Events {
        reply,
        chunks,
        include_usage: chat.include_usage,
        next: Next::Role,
    };
    let response = Sse::from_infallible_stream(events)
        .with_keep_alive(Duration::from_secs(state.config.server.sse_keep_alive_s))
        .respond_to(request);
    let mut response = response.map_into_boxed_body();
    // nginx and its like hold a response back to fill a buffer unless told not to.
    let headers = response.headers_mut();
    headers.insert(
        actix_web::http::header::HeaderName::from_static("x-accel-buffering"),
        actix_web::http::header::HeaderValue::from_static("no"),
    );
    headers.insert(
        CACHE_CONTROL,
        actix_web::http::header::HeaderValue::from_static("no-cache, no-transform"),
    );
    response
}

/// What the stream sends next.
enum Next {
    Role,
    Text,
    Usage(Usage),
    Done,
    Nothing,
}

struct Events {
    reply: Reply,
    chunks: ChunkWriter,
    include_usage: bool,
    next: Next,
}

impl Events {
    fn finished(&mut self, reason: FinishReason, usage: Usage) -> String {
        self.next = if self.include_usage {
            Next::Usage(usage)
        } else {
            Next::Done
        };
        self.chunks.finish_chunk(reason)
    }
}

impl Stream for Events {
    type Item = sse::Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<sse::Event>> {
        let this = self.get_mut();
        let data = match this.next {
            Next::Role => {
                this.next = Next::Text;
                this.chunks.role_chunk()
            }
            Next::Text => match std::task::ready!(this.reply.poll_next(cx)) {
                Some(Frame::Text(text)) => this.chunks.content_chunk(&text),
                Some(Frame::Finished { reason, usage }) => this.finished(reason, usage),
                Some(Frame::Failed(error)) => {
                    this.next = Next::Nothing;
                    this.chunks.error_event(&error)
                }
                None => return Poll::Ready(None),
            },
            Next::Usage(usage) => {
                this.next = Next::Done;
                this.chunks.usage_chunk(usage)
            }
            Next::Done => {
                this.next = Next::Nothing;
                "[DONE]".to_owned()
            }
            Next::Nothing => return Poll::Ready(None),
        };
        Poll::Ready(Some(sse::Event::Data(sse::Data::new(data))))
    }
}
