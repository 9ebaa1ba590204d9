//! The account of how requests ended: each once.

use cadenced::ids::RequestId;
use cadenced::logic::request::{FinishReason, Outcome};

use crate::turn_driver::Talk;

/// How requests ended.
#[derive(Default, Debug)]
pub struct Ends {
    pub finished: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// Given up with a part of a reply, and with none.
    pub cut: u64,
    pub expired: u64,
    /// By id: whether it has.
    pub ended: Vec<bool>,
}

impl Ends {
    pub fn take(&mut self, id: RequestId, outcome: Outcome, talk: &Talk) {
        let before = std::mem::replace(&mut self.ended[id.0 as usize], true);
        assert!(!before, "{id} ended twice");
        match outcome {
            Outcome::Finished(FinishReason::Slo) => self.cut += 1,
            Outcome::Expired => self.expired += 1,
            Outcome::Finished(_) => {
                self.finished += 1;
                assert_eq!(
                    talk.generated.len() as u32,
                    talk.says,
                    "{id} is not complete"
                );
            }
            Outcome::Cancelled => self.cancelled += 1,
            Outcome::Failed => self.failed += 1,
            other => panic!("{id} ended as {other:?}"),
        }
    }
}
