//! Reading a request's body, within its limit and its time, with a seat held for its bytes beforehand.

use std::time::Duration;

use actix_web::error::PayloadError;
use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use actix_web::{HttpRequest, web};
use bytes::BytesMut;
use futures_util::StreamExt as _;

use super::door::Door;
use super::state::AppState;
use crate::error::ServeError;
use crate::logic::capacity::{CapacityExceeded, Reservation};

/// Takes a seat for the request, then reads its body.
///
/// # Errors
/// 415, 413, 408, 400 or 503, without reading more than the limit.
pub async fn read(
    state: &AppState,
    request: &HttpRequest,
    payload: &mut web::Payload,
) -> Result<(BytesMut, Reservation), ServeError> {
    json_only(request)?;
    let limit = state.config.server.body_bytes_max;
    let declared = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<usize>().ok());
    if declared.is_some_and(|n| n > limit) {
        return Err(ServeError::BodyTooLarge { limit });
    }
    // A body of unknown length may come to be as long as is allowed.
    let mut reservation = state
        .seats(Door::of(request))
        .reserve(declared.unwrap_or(limit))
        .map_err(|reason| overloaded(state, reason))?;
    let mut body = BytesMut::with_capacity(declared.unwrap_or(0).min(1 << 16));
    let reading = async {
        while let Some(chunk) = payload.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                // The client left, which is no fault of its request: this handler is dropped with the
                // connection, and until then it waits.
                Err(PayloadError::Incomplete(_)) => std::future::pending().await,
                Err(e) => {
                    let why = format!("the body could not be read: {e}");
                    return Err(ServeError::invalid_body(why));
                }
            };
            if body.len() + chunk.len() > limit {
                return Err(ServeError::BodyTooLarge { limit });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(())
    };
    let time = Duration::from_secs(state.config.server.request_timeout_s);
    tokio::time::timeout(time, reading)
        .await
        .map_err(|_| ServeError::RequestTimeout)??;
    reservation.shrink_bytes(body.len());
    Ok((body, reservation))
}

/// The 503 for a full house.
pub fn overloaded(state: &AppState, reason: CapacityExceeded) -> ServeError {
    ServeError::Overloaded {
        retry_after: state.retry_after(),
        code: reason.code(),
    }
}

/// JSON only: a browser may send text and form types to any server without asking first.
fn json_only(request: &HttpRequest) -> Result<(), ServeError> {
    let essence = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .unwrap_or("");
    if essence.trim().eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(ServeError::UnsupportedMediaType)
    }
}
