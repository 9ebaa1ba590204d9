//! What the daemon tells of itself: logs, metrics, the published state of the engine, the account of outcomes.

pub mod accounts;
pub mod logging;
pub mod metrics;
pub mod published;
pub mod stopwatch;
pub mod traces;
