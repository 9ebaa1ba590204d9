//! What the best-effort lane may do in a step so that no promise breaks by it.
//!
//! Each of its rows makes the step longer for the others. What that costs is judged by the steps' own pace,
//! on the safe side: a step grows at most in proportion to its rows, and a prompt token costs at most what a
//! row does. A promised request needs, beyond its prompt, what is left of its cap times the share of their
//! caps that replies have used of late: an expectation, since nobody knows how long a reply gets. While one
//! would not make it at the pace of a step with the lane in it, rows of the lane pause: they keep their seat
//! and their memory (which is taken from them first) and are left out of the plan.

use super::Sequence;
use crate::logic::ewma::Ewma;
use crate::logic::request::RequestSpec;
use crate::logic::time::Timestamp;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// So many of its requests may have a row.
    pub rows: usize,
    /// Prompt tokens of all of them together.
    pub prefill_tokens: u32,
}

impl Allowance {
    /// Nobody is in its way.
    pub const ALL: Self = Self {
        rows: usize::MAX,
        prefill_tokens: u32::MAX,
    };
}

/// How fast the engine goes, about the last 20 steps and replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    step_us: Ewma,
    rows: Ewma,
    /// What replies used of their caps.
    used: Ewma,
}

impl Default for Pace {
    fn default() -> Self {
        let recent = Ewma::new(0.05);
        Self {
            step_us: recent,
            rows: recent,
            used: recent,
        }
    }
}

/// What a promised request has left and what it needs, in microseconds.
struct Need {
    left: f64,
    need: f64,
}

impl Pace {
    /// Takes a step in.
    pub fn observe_step(&mut self, step_us: f64, rows: usize) {
        self.step_us.observe(step_us);
        self.rows.observe(rows as f64);
    }

    /// Takes a reply in that ended by itself or at its cap.
    pub fn observe_reply(&mut self, spec: &RequestSpec, generated: u32) {
        self.used
            .observe(f64::from(generated) / f64::from(spec.max_tokens.max(1)));
    }

    /// Of a step; 0 before the first.
    fn step_us(&self) -> f64 {
        self.step_us.get().unwrap_or(0.0)
    }

    fn row_us(&self) -> f64 {
        self.step_us() / self.rows.get().unwrap_or(1.0).max(1.0)
    }

    /// `None` for who has nothing to lose any more, or never had.
    fn need<P>(&self, s: &Sequence<P>, now: Timestamp) -> Option<Need> {
        if s.spec.yields() || s.ended.is_some() {
            return None;
        }
        // Once the promise is broken there still is the deadline.
        let by = [s.spec.terms.due, s.spec.deadline];
        let by = by.into_iter().find(|by| *by > now)?;
        if by == Timestamp::NEVER {
            return None;
        }
        let prompt = s.prefill_end.saturating_sub(s.num_computed);
        let cap = s.spec.max_tokens.saturating_sub(s.num_generated);
        let reply = (f64::from(cap) * self.used.get().unwrap_or(1.0)).max(1.0);
        Some(Need {
            left: by.since(now).as_micros() as f64,
            need: reply * self.step_us() + f64::from(prompt) * self.row_us(),
        })
    }

    /// What the lane may do beside `running`. O(running).
    pub fn allowance<P>(&self, running: &[Sequence<P>], now: Timestamp) -> Allowance {
        let promised = running.iter().filter(|s| !s.spec.yields()).count();
        let mut stretch = f64::INFINITY;
        let mut spare_us = f64::INFINITY;
        for Need { left, need } in running.iter().filter_map(|s| self.need(s, now)) {
            stretch = stretch.min(left / need);
            spare_us = spare_us.min(left - need);
        }
        // Nobody can lose anything, or nothing was measured yet.
        if stretch == f64::INFINITY || self.step_us() == 0.0 {
            return Allowance::ALL;
        }
        let rows = self.rows.get().unwrap_or(1.0).max(1.0) * stretch;
        let tokens = spare_us / self.row_us();
        Allowance {
            rows: (rows as usize).saturating_sub(promised),
            prefill_tokens: tokens as u32,
        }
    }

    /// How many of `running` are not expected to be done in time.
    pub fn late<P>(&self, running: &[Sequence<P>], now: Timestamp) -> usize {
        let is_late = |s: &&Sequence<P>| {
            let promised = !s.spec.yields() && s.ended.is_none();
            let over = s.spec.terms.due <= now;
            promised && (over || self.need(s, now).is_some_and(|n| n.need > n.left))
        };
        running.iter().filter(is_late).count()
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
