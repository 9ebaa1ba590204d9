//! Shares, caps and sequences of the mixes.

use super::*;
use std::collections::BTreeMap;

fn take(mix: Mix, n: usize) -> Vec<Ask> {
    Workload::new(mix, 1, &[]).take(n).collect()
}

#[test]
fn the_standard_mix_has_the_shares_and_caps_that_it_names() {
    let asks = take(Mix::Standard, 20_000);
    let shared = asks.iter().filter(|a| a.class == Class::Shared).count() as f64 / 20_000.0;
    assert!((shared - 0.7).abs() < 0.012, "{shared}");
    let caps: Vec<f64> = asks.iter().map(|a| f64::from(a.max_tokens)).collect();
    assert!(caps.iter().all(|c| (16.0..=512.0).contains(c)));
    let mean = caps.iter().sum::<f64>() / 20_000.0;
    assert!((mean - 133.0).abs() < 4.0, "{mean}");
    let below = caps.iter().filter(|c| **c <= 99.5).count() as f64 / 20_000.0;
    assert!((below - 0.5).abs() < 0.012, "the median is e^4.6: {below}");
    for group in 0..SYSTEM_PROMPTS {
        assert!(asks.iter().filter(|a| a.group == group).count() > 4_500);
    }
}

#[test]
fn a_longer_sequence_begins_as_a_shorter_one_and_another_seed_is_another_sequence() {
    for mix in [Mix::Standard, Mix::MultiTurn, Mix::Agent, Mix::Uniform] {
        assert_eq!(take(mix, 100), take(mix, 200)[..100]);
        let other: Vec<Ask> = Workload::new(mix, 2, &[]).take(100).collect();
        assert_ne!(take(mix, 100), other);
    }
}

#[test]
fn dialogues_go_turn_by_turn_and_several_are_alive() {
    for (mix, longest) in [(Mix::MultiTurn, 6), (Mix::Agent, 8)] {
        let asks = take(mix, 2_000);
        let mut turns: BTreeMap<u32, u32> = BTreeMap::new();
        let mut interleaved = 0;
        for pair in asks.windows(2) {
            interleaved += usize::from(pair[0].group != pair[1].group);
        }
        for ask in &asks {
            let next = turns.entry(ask.group).or_insert(0);
            assert_eq!(ask.turn, *next);
            *next += 1;
        }
        assert!(turns.values().all(|n| *n <= longest));
        assert!(turns.values().filter(|n| **n >= 2).count() + ALIVE >= turns.len());
        assert!(interleaved > 1_000);
    }
}

#[test]
fn the_short_mix_is_short() {
    let asks = take(Mix::Short, 2_000);
    assert!(asks.iter().all(|a| a.class == Class::Short));
    let caps: Vec<u32> = asks.iter().map(|a| a.max_tokens).collect();
    assert!(caps.iter().all(|c| (8..=32).contains(c)));
    let mean = f64::from(caps.iter().sum::<u32>()) / 2_000.0;
    assert!((mean - 17.4).abs() < 0.5, "{mean}");
}

#[test]
fn the_control_is_all_alike() {
    assert!(
        take(Mix::Uniform, 50)
            .iter()
            .all(|a| a.max_tokens == UNIFORM_CAP)
    );
}

#[test]
fn a_trace_is_replayed_in_order_and_begins_again() {
    let row = |answer_tokens| Row {
        at_s: 0.0,
        prompt_tokens: 5,
        answer_tokens,
    };
    let rows = [row(1), row(2)];
    let caps: Vec<u32> = Workload::new(Mix::Trace, 0, &rows)
        .take(3)
        .map(|a| a.max_tokens)
        .collect();
    assert_eq!(caps, [1, 2, 1]);
    assert_eq!(Workload::new(Mix::Trace, 0, &[]).next(), None);
}

#[test]
fn labels_name_classes() {
    for (class, label) in Class::ALL {
        assert_eq!(
            (class.label(), Class::from_label(label)),
            (label, Some(class))
        );
    }
}
