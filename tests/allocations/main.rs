//! What must not allocate in the steady state: the KV books, and a decode step in the engine's logic.

mod counting;
mod kv;
mod turn;
#[allow(dead_code, reason = "each test crate uses a part of it")]
#[path = "../turn_driver/mod.rs"]
mod turn_driver;
