//! What a reader must know of a ladder's figures: how fast requests really came, what a p99 of few requests is, and what
//! goodput is where the arrivals took hardly longer than an answer may.

use super::{Cell, Ladder};

/// Fewer requests have no p99 but their longest.
const P99_MIN: usize = 100;
/// Arrivals that last fewer SLOs are short.
const SLOS: f64 = 5.0;

/// Lines to stand under a table.
pub fn of(ladder: &Ladder) -> String {
    let rates = ladder.rates();
    let came: Vec<String> = rates.iter().map(|rate| offered(ladder, *rate)).collect();
    let mut text = format!(
        "Rates are those asked for; by the seeds' arrivals they were {}.\n",
        came.join(", ")
    );
    if ladder.cells.iter().any(|c| c.summary.completed < P99_MIN) {
        text += &format!(
            "p99 of a cell that completed fewer than {P99_MIN} is its longest; the median over the seeds is of those.\n"
        );
    }
    let Some(slo_s) = ladder.slo_s else {
        return text;
    };
    let short: Vec<String> = rates
        .iter()
        .filter_map(|rate| {
            let s = lowest(ladder, *rate, |c| c.summary.window_s);
            (s < SLOS * slo_s).then(|| format!("{rate} ({s:.1} s)"))
        })
        .collect();
    if !short.is_empty() {
        text += &format!(
            "Goodput is by the time in which requests came. Where that was short, it counts answers after it, and exceeds what \
             could be kept up: at {}/s.\n",
            short.join(", ")
        );
    }
    text
}

fn offered(ladder: &Ladder, rate: f64) -> String {
    let least = lowest(ladder, rate, |c| c.summary.offered_per_s);
    let most = -lowest(ladder, rate, |c| -c.summary.offered_per_s);
    format!("{least:.1}–{most:.1} at {rate}")
}

fn lowest(ladder: &Ladder, rate: f64, of: impl Fn(&Cell) -> f64) -> f64 {
    let cells = ladder.cells.iter().filter(|c| c.rate == rate);
    cells.map(of).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::super::tests::small;
    use super::*;

    #[test]
    fn rates_few_requests_and_short_cells_are_told() {
        let mut ladder = small();
        let text = of(&ladder);
        assert!(
            text.starts_with("Rates are those asked for; by the seeds' arrivals they were 10."),
            "{text}"
        );
        assert!(!text.contains("p99"), "{text}");
        // 200 requests at 100/s are there in two seconds.
        ladder.slo_s = Some(0.5);
        assert!(of(&ladder).contains("at 100 (2.0 s)/s"), "{}", of(&ladder));
        ladder.slo_s = Some(0.1);
        assert!(!of(&ladder).contains("at 100 ("), "{}", of(&ladder));
        ladder.cells[0].summary.completed = 99;
        assert!(of(&ladder).contains("p99"), "{}", of(&ladder));
    }
}
