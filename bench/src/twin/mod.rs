//! The virtual-time twin: the ladder without its clock. The daemon's own `logic` decides, a cost model says
//! what a step takes, and hours of load take seconds, the same to the last digit every time.
//!
//! `arrivals` draws what the load generator draws; `engine` says what a cell is, and a `run` takes it through a
//! `daemon`, which is `logic` without actors, set up as a `rung`; or it runs on the real `actors`. `cost` prices steps
//! and `fit` learns the prices from measured ones; `admission` decides by a bound, with the daemon's controller, on a
//! calibration that is `fitted` in virtual time;
//! `oracle` says what the best of all schedulers could do. `simulate` runs the grid of `cell`s that a `lab`
//! sets up, `table` shows it, `lane` judges what best effort costs, and `again` asks whether coming again helps; `coverage` asks whether promises are kept; `soak` runs very many requests.
//!
//! What it leaves out: the host's work between steps and the wire, other than as part of a step's fixed
//! cost; ticks of the timer; failures.

pub mod actors;
mod admission;
pub mod again;
pub mod arrivals;
pub mod cell;
pub mod cost;
pub mod coverage;
pub mod daemon;
pub mod engine;
pub mod fit;
pub mod fitted;
mod job;
pub mod lab;
pub mod lane;
pub mod oracle;
mod run;
pub mod rung;
pub mod simulate;
mod soak;
mod table;
pub mod text;
