//! The load generator: an open loop against any OpenAI-compatible server, and what may be said of its records.
//!
//! `arrivals` (when) and `mix` + `prompts` (what) make a plan; `driver` carries it out against a `target` and
//! gets [`record::Record`]s through `http1` → `sse` → `chunk` → `answer`; `metrics` summarises them, `soundness`
//! refuses a report, `parquet` and `meta` keep them. What touches neither sockets nor files is pure.

pub mod again;
pub mod answer;
pub mod arrivals;
pub mod bodies;
pub mod chunk;
pub mod descriptors;
pub mod driver;
pub mod http1;
pub mod loops;
pub mod meta;
pub mod metrics;
pub mod mix;
pub mod occupancy;
pub mod parquet;
pub mod print;
pub mod prompts;
pub mod quantile;
pub mod record;
pub mod run;
pub mod soundness;
pub mod sse;
pub mod stub;
pub mod target;
pub mod trace;
pub mod validate;
