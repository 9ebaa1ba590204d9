//! The HTTP side: OpenAI's API and the operator's routes. It parses, submits and relays; it decides nothing.

pub mod admin;
pub mod body;
pub mod chat;
pub mod errors;
pub mod models;
pub mod openai;
pub mod reply;
pub mod server;
pub mod state;
