//! From the bytes of a chat request to what admission can decide on: read, parsed, rendered, tokenized, with a
//! seat held. Whatever can be refused without deciding is refused here.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::web::{Data, Payload};

use super::body;
use super::openai::{self, ChatRequest};
use super::reply::InFlight;
use super::state::{AppState, Served};
use crate::error::ServeError;
use crate::ids::TokenId;
use crate::job::Wish;
use crate::lifecycle::Phase;
use crate::logic::capacity::Reservation;
use crate::logic::conformal::calibration::Alpha;
use crate::logic::prefix::Beginnings;
use crate::logic::request::{RequestSpec, Terms};
use crate::logic::time::Timestamp;
use crate::model::ModelFront;

/// Conversations longer than this are rendered and tokenized on a thread that may block.
const INLINE_BYTES: usize = 64 << 10;

/// A request that could run.
pub struct Intake {
    pub chat: ChatRequest,
    pub served: Arc<Served>,
    pub prompt: Arc<[TokenId]>,
    pub beginnings: Beginnings,
    pub spec: RequestSpec,
    pub wish: Wish,
    pub reservation: Reservation,
    pub in_flight: InFlight,
}

/// Takes a request in, which arrived at `arrival`.
///
/// # Errors
/// Whatever is wrong with it, or with the moment.
pub async fn take_in(
    state: &Data<AppState>,
    request: &HttpRequest,
    mut payload: Payload,
    arrival: Timestamp,
) -> Result<Intake, ServeError> {
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
    let spec = RequestSpec {
        id: state.next_id(),
        arrival,
        deadline: deadline(arrival, &chat.slo),
        prompt_tokens,
        max_tokens: chat.max_tokens.min(served.front.context - prompt_tokens),
        preempted: false,
        terms: terms(arrival, &chat.slo),
    };
    let wish = Wish {
        messages: chat.messages.as_array().map_or(1, Vec::len) as u32,
        slo: chat.slo.e2e_ms.map(Duration::from_millis),
        alpha: chat.slo.confidence.map(Alpha::of_confidence),
        best_effort: chat.slo.best_effort,
    };
    Ok(Intake {
        chat,
        served,
        beginnings: Beginnings::of(&prompt),
        prompt: prompt.into(),
        spec,
        wish,
        reservation,
        in_flight,
    })
}

async fn encode(
    front: &ModelFront,
    chat: &ChatRequest,
    bytes: usize,
) -> Result<Vec<TokenId>, ServeError> {
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

/// What the SLO says beside the queue's order. In which lane it runs is admission's to say.
fn terms(arrival: Timestamp, slo: &openai::Slo) -> Terms {
    let e2e = slo.e2e_ms.map(|ms| arrival + Duration::from_millis(ms));
    Terms {
        due: e2e.unwrap_or(Timestamp::NEVER),
        drop_at: e2e.filter(|_| slo.stop_on_miss).unwrap_or(Timestamp::NEVER),
        ..Terms::default()
    }
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
