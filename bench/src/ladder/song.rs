//! The canary of a sweep: the same small generation before and after each cell, by the daemon that is measured
//! while nothing else is asked of it, through its admin listener, so that no admission can refuse it and none learns
//! from it. Its pace moves only if the machine's does. Beside it stands how much of the machine others used while the
//! cell ran.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client;
use crate::cpu;
use crate::daemon::Daemon;
use crate::sse::Reply;
use crate::stats::Spread;

const TOKENS: usize = 40;
/// A song slower or faster than the sweep's median by more than this marks a disturbed cell.
const TOLERANCE: f64 = 0.15;
/// So do others that used more than this part of the machine meanwhile.
const OTHERS: f64 = 0.05;
/// Songs that make a median.
const FEW: usize = 3;

/// What a daemon must be told to be sung by.
pub fn door() -> (String, String) {
    ("server.admin_listen".into(), "127.0.0.1:0".into())
}

/// Milliseconds between two tokens, in the median.
///
/// # Errors
/// When the daemon has no [`door`] or does not sing.
pub fn sing(daemon: &Daemon) -> Result<f64> {
    daemon.rest()?;
    let body = json!({
        "messages": [{ "role": "user", "content": "Sing the same song as always." }],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    let door = daemon.admin.context("the daemon has no admin listener")?;
    let recordings = client::stream_all(door, &[body.to_string()], |_| {})?;
    let reply = Reply::read(&recordings[0]).context("the canary")?;
    let gaps = reply.texts.windows(2).map(|w| w[1] - w[0]);
    let ms: Vec<f64> = gaps.map(|gap| gap.as_secs_f64() * 1e3).collect();
    Ok(Spread::of(&ms).median)
}

/// What the machine was like around one cell.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Weather {
    pub before_ms: f64,
    pub after_ms: f64,
    /// Cores that neither the daemon nor the generator used, of those that this machine has.
    pub others: f64,
    pub cores: f64,
    /// CPU seconds that the hypervisor gave to others.
    pub stolen_s: f64,
}

impl Weather {
    /// Why the cell is disturbed, if it is. `songs` are the sweep's so far.
    pub fn complaint(&self, songs: &[f64]) -> Option<String> {
        if self.others > OTHERS * self.cores {
            return Some(format!(
                "others used {:.2} of {} cores",
                self.others, self.cores
            ));
        }
        let median = Spread::of(songs).median;
        let is_off = |ms: &&f64| (*ms / median - 1.0).abs() > TOLERANCE;
        let off = [self.before_ms, self.after_ms];
        let off = off.iter().find(is_off).filter(|_| songs.len() >= FEW)?;
        Some(format!(
            "a canary of {off:.1} ms, and the median is {median:.1}"
        ))
    }
}

/// Measures what others use from now on.
pub struct Watch {
    pid: u32,
    daemon: cpu::Sample,
    own_s: f64,
    busy_s: f64,
    stolen_s: f64,
    began: std::time::Instant,
}

impl Watch {
    pub fn begin(daemon: &Daemon) -> Self {
        Self {
            pid: daemon.pid(),
            daemon: daemon.cpu(),
            own_s: cpu::process_seconds(),
            busy_s: cpu::busy_seconds(),
            stolen_s: cpu::stolen_seconds(),
            began: std::time::Instant::now(),
        }
    }

    /// The songs are to be added.
    pub fn end(self) -> Weather {
        let seconds = self.began.elapsed().as_secs_f64();
        let daemon = self.daemon.until(&cpu::sample(self.pid)).total;
        // Threads that have ended count as well.
        let own = (cpu::process_seconds() - self.own_s) / seconds;
        let busy = (cpu::busy_seconds() - self.busy_s) / seconds;
        Weather {
            others: (busy - daemon - own).max(0.0),
            cores: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
            stolen_s: cpu::stolen_seconds() - self.stolen_s,
            ..Weather::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weather(after_ms: f64, others: f64) -> Weather {
        Weather {
            before_ms: 10.0,
            after_ms,
            others,
            cores: 2.0,
            stolen_s: 0.0,
        }
    }

    #[test]
    fn a_song_off_the_median_or_a_busy_neighbour_disturbs_a_cell() {
        let songs = [10.0, 10.0, 10.2, 9.9];
        assert_eq!(weather(10.5, 0.05).complaint(&songs), None);
        assert!(
            weather(12.0, 0.0)
                .complaint(&songs)
                .unwrap()
                .contains("12.0 ms")
        );
        assert!(weather(8.0, 0.0).complaint(&songs).is_some());
        assert!(
            weather(10.0, 0.5)
                .complaint(&songs)
                .unwrap()
                .contains("0.50 of 2")
        );
        // Two songs are no median: which of them is off?
        assert_eq!(weather(15.0, 0.0).complaint(&[10.0, 15.0]), None);
    }
}
