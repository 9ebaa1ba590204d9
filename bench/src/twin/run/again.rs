//! Clients that were refused for now and come again, once, when they were told to. They have all the time in the world.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::cost::PS_PER_US;
use super::super::engine::{Request, Return};
use super::Run;

/// See the module's text.
#[derive(Default)]
pub struct Again {
    /// When, in microseconds, and which of `returns`.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    pub returns: Vec<Return>,
}

impl Again {
    /// The next one comes at this moment, in picoseconds.
    pub fn next(&self) -> Option<u64> {
        let Reverse((at_us, _)) = self.due.peek()?;
        Some(at_us * PS_PER_US)
    }

    /// The request with this index was told to come again in so many seconds.
    pub fn tell(&mut self, index: usize, request: &Request, after_s: u32) {
        let at_us = request.at_us + u64::from(after_s) * 1_000_000;
        self.due.push(Reverse((at_us, self.returns.len())));
        self.returns.push(Return {
            index,
            at_us,
            after_s,
            decision: None,
        });
    }
}

impl Run<'_> {
    /// The next of them comes.
    pub fn come_again(&mut self) {
        self.land();
        let Some(Reverse((at_us, which))) = self.again.due.pop() else {
            return;
        };
        let index = self.again.returns[which].index;
        let request = Request {
            at_us,
            ..self.requests[index]
        };
        let entry = self.submit(self.requests.len() + index, &request);
        self.again.returns[which].decision = entry.decision;
        self.wake(&entry);
    }
}
