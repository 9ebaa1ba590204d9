//! What a piece of work costs its thread: CPU time, which is the work's own, and wall time, in which others
//! may have had the core.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::metrics::Decisions;

/// Started on the thread that does the work, and read there.
pub struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    /// Starts.
    #[must_use]
    pub fn start() -> Self {
        Self {
            wall: Instant::now(),
            cpu: thread_cpu(),
        }
    }

    /// Reads it into the histograms of a decision's cost.
    pub fn observe(&self, into: &Decisions) {
        let cpu = thread_cpu().saturating_sub(self.cpu);
        into.cpu.observe(cpu.as_secs_f64());
        into.wall.observe(self.wall.elapsed().as_secs_f64());
    }
}

fn thread_cpu() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
}
