//! `GET /v1/models` and `GET /v1/models/{model}`.

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};
use serde_json::{Value, json};

use super::state::{AppState, Served};
use crate::error::ServeError;

/// The one model that is served.
pub async fn models(state: Data<AppState>) -> Result<HttpResponse, ServeError> {
    let model = describe(served(&state)?);
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": [model] })))
}

/// The same by its name, which may have slashes in it.
pub async fn model(state: Data<AppState>, name: Path<String>) -> Result<HttpResponse, ServeError> {
    let (served, model) = (served(&state)?, name.into_inner());
    if model != served.name {
        return Err(ServeError::ModelNotFound { model });
    }
    Ok(HttpResponse::Ok().json(describe(served)))
}

fn served(state: &AppState) -> Result<&Served, ServeError> {
    let retry_after = 2;
    state
        .served
        .get()
        .map(AsRef::as_ref)
        .ok_or(ServeError::NotReady { retry_after })
}

/// With the most tokens that one request may have.
fn describe(served: &Served) -> Value {
    json!({
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "cadenced",
        "max_model_len": served.front.context,
    })
}
