//! Every decision, and nothing else: no actors, no sockets, no model, no clock, no unseeded randomness.
//! `now` is an argument. The actors translate messages into calls of these types, a simulation can make
//! the same calls under a clock of its own, and a test needs neither.

pub mod admission;
pub mod capacity;
pub mod conformal;
pub mod ewma;
pub mod kv;
pub mod output;
pub mod prefix;
pub mod request;
pub mod rng;
pub mod scheduler;
pub mod time;
pub mod turn;
pub mod wait_queue;
