//! Where a collection is: a bar of the time it takes, with what is going on, and a line for each thing done. The
//! bar is hidden where standard error is no terminal; the lines are written there in any case.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(200);

/// See the module's text.
pub struct Progress {
    bar: ProgressBar,
    done_s: f64,
}

impl Progress {
    /// Of a collection that takes `seconds`, of which `done_s` are over.
    pub fn begin(seconds: f64, done_s: f64) -> Self {
        let bar = ProgressBar::new(seconds.ceil() as u64).with_position(done_s as u64);
        let template = "{spinner} [{bar:30}] {elapsed} of {len} s, {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self { bar, done_s }
    }

    /// Shows the time go by while `work` goes on, which is expected to take `seconds`.
    pub async fn during<T>(
        &mut self,
        what: &str,
        seconds: f64,
        work: impl Future<Output = T>,
    ) -> T {
        self.bar.set_message(what.to_owned());
        let began = Instant::now();
        let (bar, done_s) = (self.bar.clone(), self.done_s);
        let ticking = async {
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
                let over = began.elapsed().as_secs_f64().min(seconds);
                bar.set_position((done_s + over) as u64);
            }
        };
        let done =
            tokio::select! { done = work => done, () = ticking => unreachable!("it never ends") };
        self.done_s += seconds;
        done
    }

    /// Writes a line above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
