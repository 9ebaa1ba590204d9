//! `POST /v1/admission/quote`: what would the answer be to this chat request? Nothing runs, nothing is changed
//! by asking, and nothing is promised by the answer: it holds for as long as the engine stays as it is.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};

use super::errors;
use super::intake::{Intake, take_in};
use super::promise;
use super::state::AppState;
use crate::error::ServeError;
use crate::logic::conformal::features::NAMES;
use crate::logic::conformal::policy::Verdict;
use crate::logic::request::Lane;
use crate::messages::{Position, Quote, Quoted};

/// The route.
pub async fn quote(state: Data<AppState>, request: HttpRequest, payload: Payload) -> HttpResponse {
    let arrival = state.shared.clock.now();
    let asked = take_in(&state, &request, payload, arrival).await;
    let answered = match asked {
        Ok(intake) => answer(&state, intake).await,
        Err(e) => Err(e),
    };
    answered.unwrap_or_else(|e| errors::response(&e))
}

async fn answer(state: &AppState, intake: Intake) -> Result<HttpResponse, ServeError> {
    let Intake {
        served,
        beginnings,
        mut spec,
        wish,
        mut reservation,
        ..
    } = intake;
    // As a request would: what the server can't hold it can't promise.
    let lane = match wish.best_effort {
        true => Lane::BestEffort,
        false => Lane::Promised,
    };
    reservation
        .move_to(lane)
        .and_then(|()| reservation.add_tokens(u64::from(spec.cells_max())))
        .map_err(|reason| super::body::overloaded(state, reason))?;
    let gone = |e: actix::MailboxError| ServeError::Engine {
        message: format!("admission is gone: {e}"),
    };
    let quote = Quote {
        spec,
        wish,
        beginnings,
    };
    let Quoted { answer, refusal } = served.engine.quote.send(quote).await.map_err(gone)?;
    if answer.decision.verdict == Verdict::BestEffort {
        spec.terms.lane = Lane::BestEffort;
    }
    let position = served.engine.position.send(Position(spec));
    let position = position.await.map_err(gone)?;
    let decision = &answer.decision;
    let features: Map<String, Value> = NAMES
        .iter()
        .zip(decision.features.0)
        .map(|(name, x)| ((*name).to_owned(), x.into()))
        .collect();
    let mut body = json!({
        "object": "cadenced.quote",
        "verdict": decision.verdict.label(),
        "admitted": decision.verdict.admits(),
        "assessed": decision.assessed.label(),
        "bound_ms": answer.bound_ms(),
        "no_bound": decision.bound_ms.err().map(|why| why.to_string()),
        "confidence": decision.confidence(),
        "slo_e2e_ms": wish.slo.map(|slo| slo.as_millis() as u64),
        "queue_position": position,
        "features": features,
    });
    if let Some(refusal) = refusal {
        let error = ServeError::Unpromised(Box::new(refusal));
        body["error"] = error.to_json()["error"].take();
        body["retry_after_s"] = error.retry_after().into();
    }
    let mut response = HttpResponse::Ok().json(body);
    promise::tell(response.headers_mut(), &answer);
    Ok(response)
}
