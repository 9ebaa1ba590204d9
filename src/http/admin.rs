//! The operator's routes: `/health`, `/ready`, `/stats`, `/metrics`. None asks the engine anything, so all
//! answer while a decode blocks.

use std::sync::atomic::Ordering::Relaxed;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;

use super::errors;
use super::state::AppState;
use crate::error::ServeError;
use crate::lifecycle::Phase;
use crate::logic::capacity::Held;
use crate::logic::request::{Lane, Outcome};
use crate::telemetry::metrics::results;

/// Alive: also while starting and draining, since restarting would help neither.
pub async fn health() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "ok" }))
}

/// Whether new work should be sent here.
pub async fn ready(state: Data<AppState>) -> HttpResponse {
    match state.lifecycle.phase() {
        Phase::Ready => HttpResponse::Ok().json(json!({ "status": "ready" })),
        Phase::Starting => errors::response(&ServeError::NotReady { retry_after: 2 }),
        Phase::Leaving | Phase::Draining => errors::response(&ServeError::Draining {
            retry_after: state.retry_after(),
        }),
    }
}

/// The daemon's state as JSON.
pub async fn stats(state: Data<AppState>) -> HttpResponse {
    let p = &state.shared.published;
    let (kv, prefixes) = (p.kv(), p.prefixes());
    let ended: serde_json::Map<String, serde_json::Value> = Outcome::ALL
        .iter()
        .map(|o| (o.label().to_owned(), state.shared.accounts.ended(*o).into()))
        .collect();
    let served = state.served.get();
    HttpResponse::Ok().json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "rung": state.config.rung(),
        "backend": state.config.model.backend,
        "model": served.map(|s| &s.name),
        "context": served.map(|s| s.front.context),
        "phase": format!("{:?}", state.lifecycle.phase()).to_lowercase(),
        "waiting": p.lane(Lane::Promised).waiting.requests(),
        "running": p.lane(Lane::Promised).running.requests(),
        "best_effort": {
            "waiting": p.lane(Lane::BestEffort).waiting.requests(),
            "running": p.lane(Lane::BestEffort).running.requests(),
            "held": held_json(state.capacity.held_by(Lane::BestEffort)),
        },
        "in_flight": state.lifecycle.in_flight(),
        "held": held_json(state.capacity.held()),
        "requests": ended,
        "admin_requests": state.shared.accounts.metrics.admin_requests.get(),
        "kv": {
            "blocks_total": kv.blocks_total,
            "blocks_free": kv.blocks_free,
            "blocks_cached": kv.blocks_cached,
            "block_tokens": crate::logic::kv::BLOCK_TOKENS,
            "fragmentation": kv.fragmentation(),
            "copies": kv.copies,
            "preemptions": p.preemptions.load(Relaxed),
            "plan": served.and_then(|s| s.kv_plan),
        },
        "sequences": {
            "total": kv.sequences_total,
            "free": kv.sequences_free,
            "cached": kv.sequences_cached,
        },
        "prefix": {
            "lookup_tokens": p.lookup_tokens.load(Relaxed),
            "hit_tokens": p.hit_tokens.load(Relaxed),
            "tokens": prefixes.tokens_held,
            "nodes": prefixes.nodes,
            "evictions": prefixes.evictions,
        },
        "admission": admission(&state),
        "engine": {
            "steps": p.steps.load(Relaxed),
            "stale_steps": p.stale_steps.load(Relaxed),
            "step_ms": p.step_ms(),
            "tokens_per_s": p.tokens_per_s(),
            "generated_tokens": state.shared.accounts.metrics.generated.get(),
            "prefilled_tokens": state.shared.accounts.metrics.prefilled.get(),
        },
        "effective": served.map(|s| &s.engine.effective),
    }))
}

fn held_json(held: Held) -> serde_json::Value {
    json!({ "requests": held.requests, "bytes": held.bytes, "tokens": held.tokens })
}

/// Whether promises are made, at which level, and what became of them.
fn admission(state: &AppState) -> serde_json::Value {
    let config = &state.config.admission;
    let now = state.shared.published.admission();
    let bounds: serde_json::Map<String, serde_json::Value> = results(&now.tally)
        .into_iter()
        .map(|(result, n)| (result.to_owned(), n.into()))
        .collect();
    json!({
        "mode": config.mode,
        "confidence": config.confidence,
        "armed": now.armed,
        "artifact_mismatch": now.mismatch,
        "bounds": bounds,
        "coverage": now.tally.promised.coverage(),
        "observed_coverage": now.tally.observed.coverage(),
        "explored": now.tally.explored,
        "unbounded": now.tally.unbounded,
        "best_effort": now.tally.best_effort,
        "demoted": now.tally.demoted,
        "revoked": now.tally.revoked,
        "predicted_misses": state.shared.published.late.load(Relaxed),
    })
}

/// Prometheus' exposition.
pub async fn metrics(state: Data<AppState>) -> HttpResponse {
    match state
        .shared
        .accounts
        .metrics
        .render(&state.shared.published)
    {
        Ok(text) => HttpResponse::Ok()
            .content_type("text/plain; version=0.0.4")
            .body(text),
        Err(e) => errors::response(&ServeError::Engine {
            message: e.to_string(),
        }),
    }
}
