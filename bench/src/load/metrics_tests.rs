//! Summaries of runs that can be counted by hand.

use super::*;
use crate::load::occupancy::tests::run;

fn whole(records: &[Record]) -> Span {
    Span {
        from_us: 0,
        to_us: Span::of_arrivals(records).to_us,
    }
}

#[test]
fn a_plain_run_adds_up() {
    // 100 a second for 10 s, 30 ms each, ten tokens each.
    let records = run(1000, 10_000, |_| 30_000);
    let s = summarize(&records, whole(&records), Some(0.03));
    assert_eq!(
        (s.requests, s.completed, s.shed, s.failed, s.censored),
        (1000, 1000, 0, 0, 0)
    );
    assert!((s.offered_per_s - 100.0).abs() < 0.2);
    assert!((s.completed_per_s - 100.0).abs() < 0.5);
    assert!((s.output_tokens_per_s - 1000.0).abs() < 5.0);
    assert!((s.mean_in_flight - 3.0).abs() < 0.02);
    assert_eq!(s.e2e.p99, Some(0.03));
    assert_eq!(
        (s.frame_gap.n, s.token_gap.n, s.tokens_per_frame),
        (9000, 1000, Some(1.0))
    );
    let slo = s.slo.unwrap();
    assert_eq!((slo.within, slo.attainment_of_all), (1000, Some(1.0)));
    assert!(!s.queue_grows && s.split.is_none());
}

#[test]
fn the_run_is_divided_by_its_window_and_not_by_residency() {
    // Four at once for a second, ten tokens each: 40 tokens a second, however long they were together.
    let s = summarize(
        &run(4, 0, |_| 1_000_000),
        Span {
            from_us: 0,
            to_us: 0,
        },
        None,
    );
    assert!((s.output_tokens_per_s - 40.0).abs() < 1e-6);
    assert!((s.mean_in_flight - 4.0).abs() < 1e-6);
}

#[test]
fn warm_up_and_cool_down_are_excluded_by_flag_and_not_dropped() {
    let mut records = run(100, 10_000, |i| if i < 20 { 500_000 } else { 30_000 });
    let window = window(1.0, 0.2, 0.1);
    for r in &mut records {
        r.measured = window.contains(r.intended_us);
    }
    let s = summarize(&records, window, Some(0.1));
    assert_eq!((s.requests, s.measured, s.completed), (100, 70, 70));
    assert_eq!(s.e2e.max, Some(0.03));
    assert!((s.slo.unwrap().goodput_per_s - 100.0).abs() < 1e-6);
    assert!(
        s.mean_in_flight > 8.0,
        "the whole run counts: {}",
        s.mean_in_flight
    );
}

#[test]
fn goodput_is_of_what_was_offered_and_refusals_are_told_by_reason() {
    let mut records = run(100, 10_000, |i| if i % 2 == 0 { 30_000 } else { 300_000 });
    for (i, r) in records.iter_mut().enumerate().take(60) {
        let code = if i < 40 {
            Some("queue_full".to_owned())
        } else {
            None
        };
        *r = Record {
            status: Some(503),
            code,
            first_frame_us: None,
            ..r.clone()
        };
    }
    let s = summarize(&records, whole(&records), Some(0.1));
    assert_eq!(s.shed, 60);
    assert_eq!(
        s.shed_by_reason,
        BTreeMap::from([("503".to_owned(), 20), ("queue_full".to_owned(), 40)])
    );
    let slo = s.slo.unwrap();
    assert_eq!(slo.within, 20);
    assert_eq!(
        (slo.attainment_of_all, slo.attainment_of_admitted),
        (Some(0.2), Some(0.5))
    );
    assert_eq!((s.ttft.n, s.e2e.n), (40, 40));
    // Any target can be asked for afterwards.
    let measured: Vec<&Record> = records.iter().collect();
    assert_eq!(slo_at(&measured, 1.0), 40);
}

fn slo_at(measured: &[&Record], slo_s: f64) -> usize {
    slo(measured, slo_s, 1.0).within
}

#[test]
fn timeouts_are_in_the_percentiles_as_lower_bounds_and_failures_are_not() {
    let mut records = run(10, 10_000, |_| 30_000);
    for r in &mut records[8..] {
        *r = Record {
            censored: true,
            first_frame_us: None,
            finish_us: r.intended_us + 300_000_000,
            ..r.clone()
        };
    }
    records[0].error = Some("cut off".into());
    records[1].error = Some("the deadline passed".into());
    records[1].code = Some("slo_expired".into());
    let s = summarize(&records, whole(&records), Some(4.0));
    assert_eq!((s.completed, s.censored, s.failed), (6, 2, 2));
    assert_eq!((s.e2e.n, s.e2e.censored, s.e2e.p99), (8, 2, Some(300.0)));
    assert_eq!((s.ttft.n, s.ttft.censored), (8, 2));
    assert_eq!(
        s.failed_by_error,
        BTreeMap::from([("cut off".to_owned(), 1), ("slo_expired".to_owned(), 1)])
    );
    assert_eq!(s.slo.unwrap().attainment_of_all, Some(0.6));
}

#[test]
fn the_servers_split_gives_the_queues_share_of_the_time_to_first_token() {
    let mut records = run(4, 10_000, |_| 100_009);
    for r in &mut records {
        (r.queue_ms, r.prefill_ms, r.first_decode_ms) = (Some(75.0), Some(20.0), Some(5.0));
        (r.prompt_tokens, r.cached_tokens) = (Some(100), Some(64));
    }
    let s = summarize(&records, whole(&records), None);
    let split = s.split.unwrap();
    assert!((split.queue_share.unwrap() - 0.75).abs() < 1e-6);
    assert_eq!(
        (split.prefill_ms.p50, s.cached_share),
        (Some(20.0), Some(0.64))
    );
}

#[test]
fn nothing_can_be_summarised_too() {
    let s = summarize(
        &[],
        Span {
            from_us: 0,
            to_us: 0,
        },
        Some(1.0),
    );
    assert_eq!((s.requests, s.offered_per_s, s.e2e.p99), (0, 0.0, None));
}
