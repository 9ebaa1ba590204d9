//! The two sides of `raw`: the daemon driven by streams, and the bare loop beside the idle daemon.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use serde::Serialize;

use crate::child;
use crate::client::{self, Moment};
use crate::cpu::{self, Share};
use crate::daemon::Daemon;
use crate::effective::{self, Mismatch};
use crate::engine::BareSettings;
use crate::prometheus::Histogram;
use crate::raw_loop::{Outcome, Spec};
use crate::sse::Reply;
use crate::window::{Window, mean_context};
use crate::workload::Prompt;

/// The daemon's side of a repeat.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    pub tokens_per_s: f64,
    pub steps: usize,
    pub mean_context: f64,
    pub step_ms: f64,
    /// Mean host work of all steps of the run, from the daemon's own histogram.
    pub host_us: f64,
    pub daemon_cpu: Share,
    pub client_cpu: f64,
    /// Until the last of the streams had its first text.
    pub ttft_ms_max: f64,
    #[serde(skip)]
    positions: Vec<usize>,
}

/// What both sides share.
pub struct Cells {
    pub daemon: Daemon,
    pub settings: BareSettings,
    pub prompts: Vec<Prompt>,
    /// Tokens of each reply.
    pub decode: usize,
}

impl Cells {
    /// Drives the daemon with `batch` streams.
    pub fn serve(&self, batch: usize) -> Result<Served> {
        let prompts = &self.prompts[..batch];
        let bodies: Vec<String> = prompts.iter().map(|p| p.request(self.decode)).collect();
        let samples = Rc::new(RefCell::new(Vec::new()));
        let (taken, pid) = (Rc::clone(&samples), self.daemon.pid());
        let before = Histogram::read(&self.daemon.metrics()?, "cadenced_step_host_seconds");
        let recordings = client::stream_all(self.daemon.addr, &bodies, move |_: Moment| {
            taken
                .borrow_mut()
                .push((cpu::sample(pid), cpu::sample(std::process::id())));
        })?;
        let after = Histogram::read(&self.daemon.metrics()?, "cadenced_step_host_seconds");
        let replies = recordings
            .iter()
            .map(Reply::read)
            .collect::<Result<Vec<_>>>()?;
        for (reply, prompt) in replies.iter().zip(prompts) {
            let same = reply.prompt_tokens == prompt.tokens.len()
                && reply.completion_tokens == self.decode;
            ensure!(
                same,
                Mismatch(format!("the daemon counts other tokens: {reply:?}"))
            );
        }
        let window = Window::of(&replies)?;
        let positions = window.positions(&replies);
        let samples = samples.borrow();
        let [(daemon_a, client_a), (daemon_b, client_b)] = samples.as_slice() else {
            bail!("the streams never ran all together");
        };
        Ok(Served {
            tokens_per_s: window.tokens_per_s(),
            steps: window.steps,
            mean_context: mean_context(&positions, window.steps),
            step_ms: window.seconds * 1e3 / window.steps as f64,
            host_us: after.since(&before).mean() * 1e6,
            daemon_cpu: daemon_a.until(daemon_b),
            client_cpu: client_a.until(client_b).total,
            ttft_ms_max: replies.iter().map(ttft_ms).fold(0.0, f64::max),
            positions,
        })
    }

    /// Runs the bare loop over the window of `like`, beside the idle daemon.
    /// The second result is what that used of the CPU: nothing.
    pub fn bare(&self, like: &Served, wait_policy: &str) -> Result<(Outcome, Share)> {
        let contexts = like.positions.iter().zip(&self.prompts);
        let mut settings = self.settings.clone();
        settings.effective.wait_policy = wait_policy.to_owned();
        let spec = Spec {
            settings,
            // What the replies add is filled up with the prompt's own tokens.
            contexts: contexts
                .map(|(n, p)| p.tokens.iter().copied().cycle().take(*n).collect())
                .collect(),
            steps: like.steps,
        };
        let before = self.daemon.cpu();
        let outcome: Outcome = child::call("raw-loop", &spec, wait_policy)?;
        let idle = before.until(&self.daemon.cpu());
        effective::check_same(&spec.settings.effective, &outcome.effective)?;
        Ok((outcome, idle))
    }
}

fn ttft_ms(reply: &Reply) -> f64 {
    reply
        .texts
        .first()
        .map_or(0.0, |t| (*t - reply.sent).as_secs_f64() * 1e3)
}
