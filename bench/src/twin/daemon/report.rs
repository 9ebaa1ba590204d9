//! What a daemon says of what it did.

use cadenced::ids::RequestId;
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::request::{Outcome, RequestSpec};
use cadenced::logic::time::Timestamp;

use super::super::admission::Admission;
use super::super::cost::Composition;
use super::super::job::Job;

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned {
    /// A step is in flight.
    Step(Composition),
    /// There is nothing to do, until a request comes or this moment does.
    Idle { ask_again: Option<Timestamp> },
}

/// A request at the door.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Entry {
    /// How it ended at once; `None` if it waits from now on.
    pub refused: Option<Outcome>,
    /// `None` if it did not come so far, or nobody decides.
    pub decision: Option<Decision>,
    /// When its client is told to come again, if it is refused for now and the daemon tells.
    pub retry_after_s: Option<u32>,
}

/// A request that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    pub id: RequestId,
    pub outcome: Outcome,
    pub generated: u32,
    /// `None` if it never started.
    pub cached_tokens: Option<u32>,
}

/// A request leaves: admission hears of it.
pub(super) fn depart(
    admission: &mut Option<Admission>,
    spec: &RequestSpec,
    outcome: Outcome,
    job: Job,
    now: Timestamp,
) -> Departure {
    if let (Some(admission), Some(admitted)) = (admission, &job.admitted) {
        admission.ended(admitted, outcome, now);
    }
    Departure {
        id: spec.id,
        outcome,
        generated: job.generated,
        // Who is told of an error is told no more.
        cached_tokens: job.cached_tokens.filter(|_| outcome != Outcome::Expired),
    }
}
