//! Steps that are all alike, taken at once, up to whatever a client does.

use super::{Phase, Run};

impl Run<'_> {
    /// Begins steps that are all alike, as many as begin before a client can change anything.
    pub(super) fn skip(&mut self) -> bool {
        let Some(steady) = self.daemon.steady() else {
            return false;
        };
        let ends_with_an_arrival = steady.ends_with_an_arrival || self.daemon.watches();
        let arrival = self.next_arrival().filter(|_| ends_with_an_arrival);
        let clients = [arrival, self.next_leave(), self.again.next()];
        let client = clients.into_iter().flatten().min();
        let within = client.map_or(u64::MAX, |at| at - self.now);
        let cost = &self.trial.cost;
        let steps = cost.decodes_begun(steady.first, steady.steps, within);
        let took = cost.of_decodes(steady.first, steps);
        self.phase = Phase::Skipping {
            first: steady.first,
            steps,
            last_ps: took - cost.of_decodes(steady.first, steps.saturating_sub(1)),
            until: self.now + took,
        };
        true
    }

    /// Before a client does something in the last of several steps that are all alike: that one is begun as any
    /// other, if what is decided now depends on it.
    pub(super) fn land(&mut self) {
        let Phase::Skipping {
            first,
            steps,
            last_ps,
            until,
        } = self.phase
        else {
            return;
        };
        if !self.daemon.watches() {
            return;
        }
        let now = std::mem::replace(&mut self.now, until - last_ps);
        let cost = self.trial.cost;
        self.daemon.skip(cost.decodes(first, steps - 1));
        self.turn();
        self.now = now;
    }
}
