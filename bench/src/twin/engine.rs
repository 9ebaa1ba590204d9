//! One cell in virtual time: requests arrive as they were drawn, the daemon decides, and each step takes
//! what the cost model says. No clock and no randomness: the same requests give the same answer, to the
//! microsecond.

use std::sync::Arc;

use cadenced::logic::conformal::artifact::Artifact;
use cadenced::logic::conformal::controller::Controller;
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::request::{FinishReason, Outcome};

use super::cost::StepCost;
use super::run::Run;
use super::rung::Rung;
use super::text::Text;

/// A request as nobody in the daemon knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it arrives, in microseconds; requests are in this order.
    pub at_us: u64,
    pub prompt_tokens: u32,
    pub text: Text,
    /// Its cap, which the daemon is told.
    pub max_tokens: u32,
    /// Tokens that the model would sample if nothing stopped it, the end token included.
    pub answer_tokens: u32,
}

impl Request {
    /// Tokens that are sampled for it, the bill, when no request may have more than `kv_cells`.
    pub fn sampled(&self, kv_cells: u32) -> u32 {
        let room = kv_cells.saturating_sub(self.prompt_tokens);
        self.answer_tokens.min(self.max_tokens).min(room)
    }
}

/// What became of a request. Times in microseconds, rounded up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fate {
    pub outcome: Outcome,
    pub first_token_us: Option<u64>,
    pub end_us: u64,
    pub generated: u32,
    /// Prompt tokens that came out of the prefix cache; `None` if it never started.
    pub cached_tokens: Option<u32>,
    /// What was decided on it; `None` where nobody does, and if the capacity cap refused it.
    pub decision: Option<Decision>,
}

impl Fate {
    /// Whether the whole answer came within `slo_us` of the arrival of `request`.
    pub fn is_within(&self, request: &Request, slo_us: u64) -> bool {
        let cut = Outcome::Finished(FinishReason::Slo);
        let is_whole = matches!(self.outcome, Outcome::Finished(_)) && self.outcome != cut;
        is_whole && self.end_us - request.at_us <= slo_us
    }

    /// Whether it was given up at its deadline.
    pub fn is_dropped(&self) -> bool {
        let cut = Outcome::Finished(FinishReason::Slo);
        self.outcome == cut || self.outcome == Outcome::Expired
    }
}

/// A client that was refused for now, and comes again once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Return {
    /// Which of the requests.
    pub index: usize,
    /// When it comes: so many seconds later, as it was told.
    pub at_us: u64,
    pub after_s: u32,
    /// What is decided on it then; `None` if the capacity cap refuses it.
    pub decision: Option<Decision>,
}

/// How many of `fates` are within the SLO, the requests being theirs.
pub fn count_within(fates: &[Fate], requests: &[Request], slo_us: u64) -> usize {
    let pairs = fates.iter().zip(requests);
    pairs.filter(|(f, r)| f.is_within(r, slo_us)).count()
}

/// A cell without its requests.
#[derive(Clone, Debug)]
pub struct Trial {
    pub rung: Rung,
    pub cost: StepCost,
    /// Decides behind the capacity cap; each run begins with a copy of it. None: the cap alone, whatever the rung's
    /// configuration says.
    pub controller: Option<Controller>,
    /// What it was calibrated with, for actors, who make a controller of their own.
    pub artifact: Option<Arc<Artifact>>,
    /// The deadline that each request brings, after its arrival.
    pub slo_us: Option<u64>,
    /// A client leaves so long after it came.
    pub patience_us: Option<u64>,
    /// Who is refused for now, with a `Retry-After`, comes again once at that time. Not for actors.
    pub come_again: bool,
    /// Take steps in which nothing can change at once. Changes nothing but the speed.
    pub skip: bool,
}

impl Trial {
    /// A cell whose clients have no deadline and all the time in the world.
    pub fn new(rung: Rung, cost: StepCost) -> Self {
        Self {
            rung,
            cost,
            controller: None,
            artifact: None,
            slo_us: None,
            patience_us: None,
            come_again: false,
            skip: true,
        }
    }

    /// Runs until the last of `requests` has ended: one fate for each, in their order.
    ///
    /// # Panics
    /// If the daemon lost a request or kept some of its memory, which no run may survive.
    pub fn run(&self, requests: &[Request]) -> Vec<Fate> {
        self.run_with_returns(requests).0
    }

    /// The same, and what became of those that came again, in the order in which they were told to.
    ///
    /// # Panics
    /// See [`Self::run`].
    pub fn run_with_returns(&self, requests: &[Request]) -> (Vec<Fate>, Vec<Return>) {
        let mut run = Run::new(self, requests);
        while run.advance() {}
        run.fates()
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
