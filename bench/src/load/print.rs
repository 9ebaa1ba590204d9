//! A run's summary for a reader at a terminal: every percentile with its n, every flag in words.

use super::meta::Cell;
use super::metrics::Summary;
use super::quantile::Quantiles;
use super::soundness;

/// Prints to standard output what came of `cell`.
pub fn summary(cell: &Cell, s: &Summary) {
    println!("asked for    {}, seed {}", cell.asked(), cell.schedule.seed);
    println!("{}", text(s));
}

fn text(s: &Summary) -> String {
    let mut lines = vec![
        format!(
            "requests     {} in {:.1} s, {} measured: {} completed, {} shed, {} gave up, {} failed",
            s.requests, s.run_s, s.measured, s.completed, s.shed, s.censored, s.failed
        ),
        format!(
            "rates, 1/s   offered {:.3}, completed {:.3}, output tokens {:.1}",
            s.offered_per_s, s.completed_per_s, s.output_tokens_per_s
        ),
        format!("in flight    {:.2} in the mean", s.mean_in_flight),
    ];
    for (reason, n) in &s.shed_by_reason {
        lines.push(format!(
            "shed         {n} × {reason} ({:.1}%)",
            percent(*n, s.measured)
        ));
    }
    for (error, n) in &s.failed_by_error {
        lines.push(format!("failed       {n} × {error}"));
    }
    if let Some(slo) = &s.slo {
        let of = |share: Option<f64>| {
            share.map_or_else(|| "none".into(), |x| format!("{:.1}%", x * 100.0))
        };
        lines.push(format!(
            "SLO {:.2} s   goodput {:.3}/s, met by {} of all and {} of the admitted (n={})",
            slo.slo_s,
            slo.goodput_per_s,
            of(slo.attainment_of_all),
            of(slo.attainment_of_admitted),
            s.measured
        ));
    }
    let mut row = |name: &str, q: &Quantiles, factor: f64, digits: usize| {
        if q.n > 0 {
            lines.push(format!("{name:<12} {}", q.scaled(factor).show(digits)));
        }
    };
    row("TTFT, s", &s.ttft, 1.0, 3);
    row("E2E, s", &s.e2e, 1.0, 3);
    row("frames, ms", &s.frame_gap, 1e3, 1);
    row("tokens, ms", &s.token_gap, 1e3, 1);
    if let Some(split) = &s.split {
        row("queue, ms", &split.queue_ms, 1.0, 1);
        row("prefill, ms", &split.prefill_ms, 1.0, 1);
        row("decode, ms", &split.first_decode_ms, 1.0, 1);
    }
    row("accept, ms", &s.hand_over, 1e3, 2);
    if let Some(x) = s.tokens_per_frame {
        lines.push(format!("tokens       {x:.3} a frame"));
    }
    if s.queue_grows {
        lines.push("queue        STILL GROWING at the end: latencies are the run's length, not the server's".into());
    } else {
        lines.push(format!(
            "middle 60%   {:.1} output tokens/s, {:.3} requests/s",
            s.capacity.tokens_per_s, s.capacity.requests_per_s
        ));
    }
    lines.push(soundness::self_check(&s.send_lag).1);
    lines.join("\n")
}

fn percent(n: usize, of: usize) -> f64 {
    n as f64 / of.max(1) as f64 * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::metrics::summarize;
    use crate::load::occupancy::{Span, tests::run};

    #[test]
    fn every_percentile_has_its_n_and_a_growing_queue_is_no_capacity() {
        let calm = run(200, 10_000, |_| 30_000);
        let calm = text(&summarize(&calm, Span::of_arrivals(&calm), Some(1.0)));
        assert!(
            calm.contains("middle 60%") && !calm.contains("GROWING"),
            "{calm}"
        );
        for line in calm.lines().filter(|l| l.contains("p99 ")) {
            assert!(line.contains("(n="), "{line}");
        }
        let flooded = run(200, 10_000, |i| 20_000 * (i + 1) - 10_000 * i);
        let flooded = text(&summarize(&flooded, Span::of_arrivals(&flooded), None));
        assert!(
            flooded.contains("GROWING") && !flooded.contains("middle 60%"),
            "{flooded}"
        );
    }
}
