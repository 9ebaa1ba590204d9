//! OpenAI's wire format: what a chat request means and what a reply looks like. Pure: bytes in, bytes out.
//!
//! ```text
//! body ─► json (bounded tree) ─► request ─┬─ fields       one typed value at a time
//!                                         ├─ unsupported  what is refused rather than ignored
//!                                         ├─ messages     ─ tools
//!                                         └─ slo
//! reply ─► response (chunks, completion)
//! ```
//!
//! The rule for requests: lenient where OpenAI is (unknown fields, explicit nulls, `8.0` for 8), strict where silence
//! would change the meaning of the reply.

mod fields;
mod json;
mod messages;
mod request;
mod response;
mod slo;
mod tools;
mod unsupported;

pub use request::{ChatRequest, RequestLimits, parse_chat};
pub use response::{Chunk, ChunkWriter, Completion, DONE, completion_json, new_completion_id};
pub use slo::Slo;
