//! The actors: thin shells that turn messages into calls of [`crate::logic`] and its answers into messages.
//! Each holds `Recipient`s, never addresses, so that any peer can be a fake in a test.

pub mod admission;
pub mod handoff;
pub mod kv_manager;
pub mod model_runner;
pub mod prefix_cache;
pub mod scheduler;
pub mod wait_queue;
