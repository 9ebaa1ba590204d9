//! A clairvoyant ceiling: how many of some requests could be answered within the SLO by anybody who knows
//! every arrival, every answer's length and the cost model.
//!
//! # The relaxation, and why it is a bound
//!
//! Take any schedule of steps in which a step has at most `rows_max` rows, at most one of them a request's,
//! and let S be the requests that it answers in time. Divide the duration of each step among its rows: a
//! row pays for its own tokens and their cached tokens, and an equal part of the step's fixed cost. The
//! parts add up to the step, so they can be laid one after the other within it: a schedule of one machine
//! that works on one request at a time. Nothing of a request is done before it arrived, and if it is in S
//! everything is done by its deadline. How much is that at least? A request with P prompt tokens and an
//! answer of A tokens needs at least A rows, one of which ends its prompt while the
//! others decode:
//!
//! - P (less what it has in common with any other request, if there is a cache; that somebody must compute it once
//!   is left out) times the price of a prompt token, or of a decoding row where that is less (a chunk of one token is
//!   one),
//! - A - 1 times the price of a decoding row, which find P, P + 1, … P + A - 2 tokens in the cache,
//! - A times the `rows_max`-th part of the fixed cost, since no step has more rows.
//!
//! So S is on time on a single machine with these amounts of work, preemption allowed, and the largest set
//! that is on time there is at least as large as S. A request whose shortest possible time alone exceeds
//! the SLO (A whole steps, since no step gives it two tokens) is in no S and left out. Since all requests
//! have the same time from arrival to deadline, who comes later is due later: earliest deadline first, which
//! is optimal, then never interrupts anybody, so preemption gains nothing, and the largest set is found
//! exactly by the algorithm of Kise, Ibaraki and Mine (Operations Research 26, 1978) in O(n²).
//!
//! What it leaves out makes it optimistic: that batches are rarely full, that memory is finite, that chunks
//! read the chunks before them, and that who decodes alone pays the whole fixed cost.

use super::cost::{PS_PER_US, StepCost};
use super::engine::{Request, Trial, count_within};
use super::text;

/// What the relaxation knows of the engines that it bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub cost: StepCost,
    /// The most sequences that any of them runs at once.
    pub rows_max: u32,
    /// The most tokens that one request may have.
    pub kv_cells: u32,
    /// One of them caches prefixes.
    pub prefix_cache: bool,
}

impl Bounds {
    /// The least work that `request` is, of whose prompt so many tokens may be cached, and the least time that it
    /// takes alone; in picoseconds.
    fn least(&self, request: &Request, cached_tokens: u32) -> (u64, u64) {
        let cost = &self.cost;
        let rows = u64::from(request.sampled(self.kv_cells));
        let prompt = u64::from(request.prompt_tokens);
        let computed = prompt - u64::from(cached_tokens);
        let decodes = rows.saturating_sub(1);
        let cached = decodes * prompt + decodes * decodes.saturating_sub(1) / 2;
        let tokens = computed * cost.prefill_token_ps.min(cost.decode_seq_ps)
            + decodes * cost.decode_seq_ps
            + cached * cost.cached_token_ps;
        let shared = rows * cost.step_ps / u64::from(self.rows_max);
        (tokens + shared, tokens + rows * cost.step_ps)
    }

    /// The numbers of a largest set of requests that could be on time, each being `slack` times its least
    /// work (1 for the bound).
    fn largest_on_time(&self, requests: &[Request], slo_us: u64, slack: f64) -> Vec<usize> {
        let mut schedule = OnTime::new(slo_us * PS_PER_US);
        let shared = text::shared_tokens(requests);
        for (index, (request, shared)) in requests.iter().zip(shared).enumerate() {
            let cached = if self.prefix_cache { shared } else { 0 };
            let (work, alone) = self.least(request, cached);
            if alone <= slo_us * PS_PER_US {
                let work = if slack > 1.0 {
                    (work as f64 * slack) as u64
                } else {
                    work
                };
                schedule.offer(Job {
                    index,
                    release: request.at_us * PS_PER_US,
                    work,
                });
            }
        }
        schedule.jobs.iter().map(|j| j.index).collect()
    }

    /// No engine answers more of `requests`, which are in order of arrival, within `slo_us` than so many.
    pub fn most_on_time(&self, requests: &[Request], slo_us: u64) -> usize {
        self.largest_on_time(requests, slo_us, 1.0).len()
    }
}

/// How much more than its least a request is taken to be, when a set is chosen to be really run.
const SLACKS: [f64; 9] = [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 2.0];

/// So many could be answered in time for sure: each of `trials` is given a set that the relaxation thinks
/// possible and nothing else, for several degrees of caution, and the best of all counts.
pub fn achievable(bounds: &Bounds, trials: &[Trial], requests: &[Request], slo_us: u64) -> usize {
    let on_time = |slack: f64| {
        let chosen = bounds.largest_on_time(requests, slo_us, slack);
        let chosen: Vec<Request> = chosen.into_iter().map(|i| requests[i]).collect();
        let of = |trial: &Trial| count_within(&trial.run(&chosen), &chosen, slo_us);
        trials.iter().map(of).max().unwrap_or(0)
    };
    SLACKS.into_iter().map(on_time).max().unwrap_or(0)
}

/// A job of the single machine, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Job {
    index: usize,
    release: u64,
    work: u64,
}

/// A largest set of the jobs offered so far that is on time, and among those one that is done earliest.
struct OnTime {
    slo: u64,
    /// In order of release, which is that of the deadlines.
    jobs: Vec<Job>,
    /// When each of them ends.
    ends: Vec<u64>,
}

impl OnTime {
    fn new(slo: u64) -> Self {
        Self {
            slo,
            jobs: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Takes the next job in; if it would be late, that job goes without which all is done earliest.
    fn offer(&mut self, job: Job) {
        self.jobs.push(job);
        self.reckon(self.jobs.len() - 1);
        if self.ends[self.jobs.len() - 1] > job.release + self.slo {
            let out = self.dearest();
            self.jobs.remove(out);
            self.ends.truncate(out);
            self.reckon(out);
        }
    }

    /// Ends of the jobs from the `from`-th on.
    fn reckon(&mut self, from: usize) {
        self.ends.truncate(from);
        let mut free = self.ends.last().copied().unwrap_or(0);
        for job in &self.jobs[from..] {
            free = free.max(job.release) + job.work;
            self.ends.push(free);
        }
    }

    /// The job without which the last one ends earliest.
    fn dearest(&self) -> usize {
        let last = self.jobs.len() - 1;
        let end_before = |i: usize| if i == 0 { 0 } else { self.ends[i - 1] };
        // Without the last one, the end is that of the one before it.
        let (mut dearest, mut most) = (last, self.ends[last] - end_before(last));
        // By how much everything behind a job could begin earlier, as far as releases let it.
        let mut behind = u64::MAX;
        for i in (0..last).rev() {
            let start = self.ends[i + 1] - self.jobs[i + 1].work;
            behind = behind.min(start - self.jobs[i + 1].release);
            let gain = behind.min(start - end_before(i));
            if gain > most {
                (dearest, most) = (i, gain);
            }
        }
        dearest
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
