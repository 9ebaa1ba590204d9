//! The HTTP side: OpenAI's API and the operator's routes. It parses, submits and relays; it decides nothing.

pub mod admin;
pub mod body;
pub mod chat;
mod door;
pub mod errors;
pub mod events;
pub mod intake;
pub mod models;
pub mod openai;
pub mod promise;
pub mod quote;
pub mod reply;
pub mod server;
pub mod state;
