//! The HTTP server: routes, limits and connection handling.

use std::net::TcpListener;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Server, ServiceRequest, ServiceResponse};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{self, Data};
use actix_web::{App, HttpServer};
use actix_web_lab::middleware::CatchPanic;

use super::door::Door;
use super::state::AppState;
use super::{admin, chat, errors, models, quote};
use crate::error::ServeError;
use crate::lifecycle::Phase;

/// Everybody's server on `listener`; it serves once it is awaited or spawned.
///
/// # Errors
/// When the listener can't be used.
pub fn server(state: Data<AppState>, listener: TcpListener) -> std::io::Result<Server> {
    let workers = match state.config.server.workers {
        0 => std::thread::available_parallelism().map_or(1, |n| (n.get() / 4).max(1)),
        n => n,
    };
    open(state, listener, Door::Public, workers, routes)
}

/// The operator's server on `listener`.
///
/// # Errors
/// When the listener can't be used.
pub fn admin(state: Data<AppState>, listener: TcpListener) -> std::io::Result<Server> {
    open(state, listener, Door::Admin, 1, admin_routes)
}

fn open(
    state: Data<AppState>,
    listener: TcpListener,
    door: Door,
    workers: usize,
    routes: fn(&mut web::ServiceConfig),
) -> std::io::Result<Server> {
    let config = state.config.server.clone();
    let server = HttpServer::new(move || {
        App::new()
            .app_data(state.clone())
            .app_data(door)
            .wrap(from_fn(close_while_draining))
            .wrap(CatchPanic::default())
            .wrap(from_fn(errors_are_json))
            .configure(routes)
            .default_service(web::to(errors::not_found))
    })
    .workers(workers)
    .keep_alive(Duration::from_secs(config.keep_alive_s))
    .client_request_timeout(Duration::from_secs(config.request_timeout_s))
    // A client that half-closes has left; noticed at once instead of at the next write.
    .h1_allow_half_closed(false)
    .tcp_nodelay(true)
    // The daemon has its own signal handling and its own drain; this is for what is left after it.
    .disable_signals()
    .shutdown_timeout(1)
    .listen(listener)?;
    Ok(server.run())
}

fn get(path: &'static str, route: actix_web::Route) -> actix_web::Resource {
    web::resource(path)
        .route(route)
        .default_service(errors::only("GET"))
}

fn routes(app: &mut web::ServiceConfig) {
    admin_routes(app);
    app.service(
        web::resource("/v1/admission/quote")
            .route(web::post().to(quote::quote))
            .default_service(errors::only("POST")),
    )
    .service(get("/v1/models", web::get().to(models::models)))
    .service(get("/v1/models/{model:.+}", web::get().to(models::model)));
}

fn admin_routes(app: &mut web::ServiceConfig) {
    app.service(
        web::resource("/v1/chat/completions")
            .route(web::post().to(chat::chat))
            .default_service(errors::only("POST")),
    )
    .service(get("/health", web::get().to(admin::health)))
    .service(get("/ready", web::get().to(admin::ready)))
    .service(get("/stats", web::get().to(admin::stats)))
    .service(get("/metrics", web::get().to(admin::metrics)));
}

/// What the framework answers by itself (a handler that panicked, a path that can't be decoded) is in the
/// envelope too.
async fn errors_are_json(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    next.call(request).await.map_err(|e| {
        let status = e.as_response_error().status_code();
        if e.as_error::<ServeError>().is_some() {
            e
        } else if status.is_server_error() {
            ServeError::Internal.into()
        } else {
            ServeError::NotFound.into()
        }
    })
}

/// In a drain every response ends its connection, so that no client keeps sending on an old one.
async fn close_while_draining(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let state = request.app_data::<Data<AppState>>().cloned();
    let mut response = next.call(request).await?;
    if state.is_some_and(|s| s.lifecycle.phase() >= Phase::Leaving) {
        response
            .response_mut()
            .head_mut()
            .set_connection_type(actix_web::http::ConnectionType::Close);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test;

    #[actix_web::test]
    async fn a_handler_that_panics_is_a_500_in_the_envelope() {
        async fn broken() -> actix_web::HttpResponse {
            panic!("on purpose")
        }
        let app = test::init_service(
            App::new()
                .wrap(CatchPanic::default())
                .wrap(from_fn(errors_are_json))
                .route("/", web::get().to(broken)),
        )
        .await;
        let request = test::TestRequest::get().uri("/").to_request();
        let error = match test::try_call_service(&app, request).await {
            Ok(response) => panic!("{}", response.status()),
            Err(e) => e.error_response(),
        };
        assert_eq!(error.status(), 500);
        let body = actix_web::body::to_bytes(error.into_body()).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "internal_error", "{body}");
    }
}
