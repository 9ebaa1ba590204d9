//! cadenced: an SLO-aware LLM serving daemon.
//!
//! One process: an OpenAI-compatible HTTP front ([`http`]), an actor system behind it ([`actors`], wired in
//! [`system`], speaking [`messages`]), llama.cpp in process under it ([`model`]). Every decision lives in
//! [`logic`], which knows no actor, socket, clock or model. ARCHITECTURE.md has the map, the owners of
//! everything, and the invariants.

pub mod actors;
pub mod calibrate;
pub mod check;
pub mod clock;
pub mod config;
pub mod error;
pub mod http;
pub mod hub;
pub mod ids;
pub mod job;
pub mod lifecycle;
pub mod listen;
pub mod logic;
pub mod messages;
pub mod model;
pub mod notify;
pub mod promises;
pub mod pull;
pub mod reply;
pub mod serve;
pub mod stdout;
pub mod system;
pub mod telemetry;
pub mod wait_policy;
pub mod warm_up;
pub mod watchdog;
