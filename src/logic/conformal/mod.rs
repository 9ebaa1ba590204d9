//! Conformal admission: a promise about each admitted request, and the arithmetic that keeps it.
//!
//! ```text
//! AdmitContext ─┐  features    predictor     online             policy
//! Snapshot ─────┴► Features ─► Estimate ──► U(x) ─────────────► Decision ──► the queue, or a refusal
//!    ▲ ledger                  (quantile)   (holds with 1 − α)     │          with a counter-offer
//!    └ admitted, unseen                        ▲                   ▼
//!                                              └── score ◄── outcome (its Latency)
//! ```
//!
//! U(x) is a calibrated upper bound on a request's end-to-end latency: whatever the model is worth, at most a
//! share α of the requests exceeds it, as long as they are like those it was calibrated on. Where that can't
//! be said there is no bound: too few observations for the level, or a state that was never calibrated.
//!
//! | file | what |
//! | --- | --- |
//! | `snapshot`, `pace`, `features`, `ledger` | what is known at admission |
//! | `boosting`, `histogram`, `forest` | the quantile booster, behind linfa's traits |
//! | `baselines`, `predictor` | the two baselines, and the three of them as one type |
//! | `calibration`, `classes`, `support` | from an estimate to a bound, for whom, and where |
//! | `online`, `tally` | how the bound follows what happens, and the record of promises |
//! | `history`, `lessons` | what models are learnt from, where no calibration was given |
//! | `controller`, `policy`, `exploration`, `offer` | the decision, who runs without a promise, and what a refusal offers |
//! | `receipt` | what the caller is told |
//! | `artifact` | a calibration as a file |
//! | `trace`, `rounds` | what calibrations are made of: rows, how they are collected, and their folds |
//! | `evaluation` | what a bound is worth on requests that it was not made of |
//!
//! Times are milliseconds, counts are tokens, unless a name says otherwise.

pub mod artifact;
pub mod baselines;
pub mod boosting;
pub mod calibration;
pub mod classes;
pub mod controller;
pub mod evaluation;
mod exploration;
pub mod features;
pub mod forest;
pub mod histogram;
mod history;
mod lane_delay;
pub mod ledger;
mod lessons;
pub mod offer;
pub mod online;
pub mod pace;
pub mod policy;
pub mod predictor;
pub mod receipt;
pub mod rounds;
pub mod snapshot;
pub mod support;
pub mod tally;
#[cfg(test)]
mod testing;
pub mod trace;
