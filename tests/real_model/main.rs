//! The real models, through the library and through the daemon, and the real clients against it.
//!
//! The models are those that `make test-models` fetches; without them these tests fail. Whatever computes
//! takes its turn ([`support::turn`]), so that no test starves another. None asserts how long something took.

#[path = "../common/mod.rs"]
mod common;

mod agreement;
mod batching;
mod cancel;
mod clients;
mod control_tokens;
mod gemma;
mod long_prompts;
mod prefix;
mod prefix_gemma;
mod prefix_logits;
mod reference;
mod sampling;
mod startup;
mod support;
mod text;
mod units;
mod utf8;
