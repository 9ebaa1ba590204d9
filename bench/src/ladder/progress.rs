//! Where a sweep is: a bar with the time that is left, and a line for each cell. The bar is hidden where standard
//! error is no terminal; the lines go to standard output in any case.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// See the module's text.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Seconds that the cells to come are expected to take, and those that are done were.
    left_s: f64,
    done_s: f64,
}

impl Progress {
    /// Of a sweep with `cells`, `left_s` of which are still to be run.
    ///
    /// # Errors
    /// Never in practice: the bar's template is a constant.
    pub fn begin(cells: usize, done: usize, left_s: f64) -> Result<Self> {
        let style =
            ProgressStyle::with_template("{spinner} [{bar:30}] {pos}/{len} {elapsed} {msg}")?;
        let bar = ProgressBar::new(cells as u64)
            .with_style(style)
            .with_position(done as u64);
        bar.enable_steady_tick(Duration::from_millis(250));
        Ok(Self {
            bar,
            began: Instant::now(),
            left_s,
            done_s: 0.0,
        })
    }

    /// A cell is run now.
    pub fn cell(&self, name: &str) {
        self.bar
            .set_message(format!("{name}, {} left", self.time_left()));
    }

    /// A cell that was expected to take `expected_s` is done.
    pub fn done(&mut self, expected_s: f64, line: &str) {
        self.left_s -= expected_s;
        self.done_s += expected_s;
        self.bar.inc(1);
        self.say(&format!("{line}; {} left", self.time_left()));
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }

    fn time_left(&self) -> String {
        show(left_s(
            self.left_s,
            self.done_s,
            self.began.elapsed().as_secs_f64(),
        ))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What is left takes as much longer than expected as what is done took.
fn left_s(expected_s: f64, done_s: f64, took_s: f64) -> f64 {
    let slower = if done_s > 0.0 { took_s / done_s } else { 1.0 };
    (expected_s * slower).max(0.0)
}

fn show(seconds: f64) -> String {
    match seconds.round() as u64 {
        s @ 0..100 => format!("{s} s"),
        s @ 100..6000 => format!("{} min", s.div_ceil(60)),
        s => format!("{:.1} h", s as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_what_cells_took() {
        assert_eq!(left_s(100.0, 0.0, 0.0), 100.0);
        assert_eq!(left_s(100.0, 50.0, 75.0), 150.0);
        assert_eq!(left_s(-0.1, 50.0, 75.0), 0.0);
        assert_eq!(
            [show(42.4), show(130.0), show(9000.0)],
            ["42 s", "3 min", "2.5 h"]
        );
    }
}
