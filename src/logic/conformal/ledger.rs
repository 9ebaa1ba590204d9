//! What was admitted and is not yet in the published snapshot.
//!
//! During one long decode the engine publishes nothing, and every arrival would be judged by the same stale
//! queue: all of them fit, one by one, and not together. The ledger adds what was admitted meanwhile.
//!
//! The epoch is a count. Admission is the queue's only sender and a mailbox keeps its order, so "the engine
//! had taken in `k` admissions" (`Snapshot::admissions_seen`) names exactly which ones; no clock, no race.
//! It holds at most what the capacity cap lets in; `with_unseen` is O(1).

use std::collections::VecDeque;

use super::snapshot::{AdmitContext, LaneLoad, Snapshot};

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Admissions so far, settled ones included.
    admitted: u64,
    /// Those that no snapshot has shown yet, oldest first, with their lane.
    unseen: VecDeque<(AdmitContext, bool)>,
    promised: LaneLoad,
    best_effort: LaneLoad,
}

impl Ledger {
    /// Enters a request that was handed to the queue. Call it for each one, in the order of handing over.
    pub fn admit(&mut self, request: AdmitContext, best_effort: bool) {
        self.admitted += 1;
        self.unseen.push_back((request, best_effort));
        let lane = self.lane(best_effort);
        *lane = lane.with_waiting(&request);
    }

    /// Drops what the engine has seen.
    pub fn settle(&mut self, admissions_seen: u64) {
        let unseen = self.admitted.saturating_sub(admissions_seen);
        while self.unseen.len() as u64 > unseen {
            let Some((request, best_effort)) = self.unseen.pop_front() else {
                return;
            };
            let lane = self.lane(best_effort);
            lane.waiting -= 1;
            lane.output_tokens -= u64::from(request.max_tokens);
            lane.prefill_tokens -= u64::from(request.new_prefill_tokens());
        }
    }

    /// The snapshot, with what is in the ledger waiting in it. [`Self::settle`] comes first.
    #[must_use]
    pub fn with_unseen(&self, snapshot: &Snapshot) -> Snapshot {
        let add = |a: LaneLoad, b: LaneLoad| LaneLoad {
            waiting: a.waiting + b.waiting,
            running: a.running,
            output_tokens: a.output_tokens + b.output_tokens,
            prefill_tokens: a.prefill_tokens + b.prefill_tokens,
        };
        Snapshot {
            promised: add(snapshot.promised, self.promised),
            best_effort: add(snapshot.best_effort, self.best_effort),
            ..*snapshot
        }
    }

    fn lane(&mut self, best_effort: bool) -> &mut LaneLoad {
        if best_effort {
            &mut self.best_effort
        } else {
            &mut self.promised
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::Pace;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of everything ever admitted, of which the engine has seen a prefix. The engine's
        /// count may be ahead of the ledger's: it can take a request in before its sender has entered it.
        #[test]
        fn adds_exactly_what_the_engine_has_not_seen(
            ops in prop::collection::vec((0u32..3, 0u64..4), 0..60),
        ) {
            let idle = Snapshot::idle(Pace { step_ms: 1.0, tokens_per_s: 1.0 });
            let mut ledger = Ledger::default();
            let mut all: Vec<(AdmitContext, bool)> = Vec::new();
            let mut seen = 0;
            for (op, n) in ops {
                if op < 2 {
                    let request = AdmitContext {
                        prompt_tokens: n as u32,
                        cached_prefix_tokens: op,
                        max_tokens: 1 + n as u32,
                        messages: 1,
                    };
                    ledger.admit(request, op == 1);
                    all.push((request, op == 1));
                } else {
                    seen = (seen + n).min(all.len() as u64 + 1);
                    ledger.settle(seen);
                }
                let shown = ledger.with_unseen(&idle);
                ledger.settle(seen);
                let mut expected = idle;
                for (request, best_effort) in all.iter().skip(seen as usize) {
                    let lane = if *best_effort { &mut expected.best_effort } else { &mut expected.promised };
                    *lane = lane.with_waiting(request);
                }
                prop_assert_eq!(ledger.with_unseen(&idle), expected);
                if op == 2 { prop_assert_eq!(shown, expected); }
            }
        }
    }
}
