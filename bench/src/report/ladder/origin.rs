//! Where the numbers of a table come from, for the line below it.

use super::Ladder;
use crate::load::meta::Meta;

/// What `of` says of all of them, each word once.
pub fn all<'a>(metas: impl Iterator<Item = &'a Meta>, of: fn(&Meta) -> Option<&str>) -> String {
    let mut values: Vec<&str> = metas.filter_map(of).collect();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() {
        "unknown".into()
    } else {
        values.join(", ")
    }
}

/// The machine, what served on it, and when the first of these runs began. Nothing for none.
pub fn setting<'a>(metas: impl Iterator<Item = &'a Meta> + Clone) -> String {
    let Some(first) = metas.clone().next() else {
        return String::new();
    };
    let machine = &first.machine;
    let started = metas.clone().map(|m| m.started.as_str()).min();
    let short = |text: &str| text.chars().take(10).collect::<String>();
    format!(
        "{}, {} cores, {:.0} GiB; backend {}; model {}; revision {}, engine {}; {}",
        machine["cpu"].as_str().unwrap_or("?"),
        machine["cores"],
        machine["memory_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 30),
        all(metas.clone(), |m| m.server.backend.as_deref()),
        all(metas.clone(), |m| m.server.model.as_deref()),
        short(&first.revision),
        all(metas, |m| m.engine_fingerprint.as_deref()),
        short(started.unwrap_or("?")),
    )
}

impl Ladder {
    /// Where its numbers come from, in a line.
    pub fn origin(&self) -> String {
        let mut seeds: Vec<u64> = self.cells.iter().map(|c| c.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        let lags = self.cells.iter().map(|c| c.summary.send_lag.p99);
        let lag_ms = lags.flatten().fold(0.0, f64::max) * 1e3;
        let cells = self.cells.len();
        let of = match self.planned {
            Some(planned) if planned > cells => format!(" of {planned}, **unfinished**"),
            _ => String::new(),
        };
        format!(
            "<sub>{}: {cells} cells{of}, {} seeds, send lag p99 at most {lag_ms:.1} ms; {}.</sub>\n",
            self.name,
            seeds.len(),
            setting(self.cells.iter().map(|c| &c.meta)),
        )
    }
}
