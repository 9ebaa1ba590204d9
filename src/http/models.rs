//! `GET /v1/models`.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;

use super::errors;
use super::state::AppState;
use crate::error::ServeError;

/// The one model that is served, with the most tokens that one request may have.
pub async fn models(state: Data<AppState>) -> HttpResponse {
    let Some(served) = state.served.get() else {
        let retry_after = 2;
        return errors::response(&ServeError::NotReady { retry_after });
    };
    HttpResponse::Ok().json(json!({
        "object": "list",
        "data": [{
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "cadenced",
            "max_model_len": served.front.context,
        }],
    }))
}
