use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::trace::tests::row;
use super::*;

/// A round of a few rows a block; each row's latency is its own, so that it can be told in a fold.
fn round(plan: &Plan, round: u32, rows: u32) -> Vec<RoundRow> {
    let blocks = plan.blocks(round).enumerate();
    blocks
        .flat_map(|(place, block)| {
            let own = |i: u32| {
                let id = u64::from(round) << 16 | (place as u64) << 8 | u64::from(i);
                TraceRow {
                    run: u64::from(round),
                    arrival_s: f64::from(i),
                    ..row(id, (i % 5 != 4).then_some(id as f64))
                }
            };
            of_block(place as u32, &block, (0..rows).map(own).collect())
        })
        .collect()
}

fn loads(rows: &[RoundRow]) -> BTreeSet<u64> {
    rows.iter().map(|r| r.load.to_bits()).collect()
}

proptest! {
    /// No request of one run in two folds, none twice, and every fold spans the range of load.
    #[test]
    fn whole_rounds_become_folds(rounds in ROUNDS_MIN..20, rows in 1u32..30, minutes in 0.1f64..90.0) {
        let plan = Plan { minutes, rounds, seed: 1 };
        let all: Vec<Vec<RoundRow>> = (0..rounds).map(|r| round(&plan, r, rows)).collect();
        let folds = Folds::of_rounds(all.iter().map(Vec::as_slice));
        let mut seen = BTreeSet::new();
        for fold in Fold::ALL {
            let runs: BTreeSet<u64> = folds.rows(fold).iter().map(|r| r.latency.ms() as u64 >> 16).collect();
            for run in runs {
                prop_assert_eq!(Fold::of(run as u32), fold);
            }
            for row in folds.rows(fold) {
                prop_assert!(seen.insert(row.latency.ms() as u64));
            }
            let mut spanned = BTreeSet::new();
            for (r, rows) in (0..).zip(&all) {
                if Fold::of(r) == fold {
                    spanned.extend(loads(rows));
                }
            }
            prop_assert_eq!(spanned.len(), LOADS.len(), "{:?}", fold);
        }
        let counted: usize = Fold::ALL.map(|f| {
            let c = folds.counts(f);
            assert_eq!(c.completions + c.censored, folds.rows(f).len());
            c.completions + c.censored + c.dropped + c.refused
        }).iter().sum();
        prop_assert_eq!(counted, all.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn blocks_fill_the_time_and_their_order_rotates(rounds in ROUNDS_MIN..20, minutes in 0.1f64..90.0) {
        let plan = Plan { minutes, rounds, seed: 1 };
        let planned = plan.probe_s() + f64::from(rounds) * plan.block_s() * LOADS.len() as f64;
        prop_assert!((planned - 60.0 * minutes).abs() < 1e-6);
        let mut first = BTreeSet::new();
        for round in 0..rounds {
            let blocks: Vec<Block> = plan.blocks(round).collect();
            first.insert(blocks[0].load.to_bits());
            for b in &blocks {
                // At saturation's pace, what arrives is done when the block's time is over.
                prop_assert!(b.arrivals_s * b.load.max(1.0) <= plan.block_s() + 1e-9);
                prop_assert!(b.dropped_s <= 20.0 && b.dropped_s <= b.arrivals_s / 5.0);
            }
        }
        prop_assert_eq!(first.len(), LOADS.len().min(rounds as usize));
    }
}

#[test]
fn folds_are_two_to_one_to_one() {
    let of = |fold| (0..8).filter(|r| Fold::of(*r) == fold).count();
    assert_eq!(Fold::ALL.map(of), [4, 2, 2]);
    let smallest: BTreeSet<Fold> = (0..ROUNDS_MIN).map(Fold::of).collect();
    assert_eq!(smallest.len(), 3);
}

#[test]
fn arrivals_come_at_their_rate_and_no_two_blocks_have_the_same() {
    let mut rng = SplitMix64::new(3);
    let at = arrivals(&mut rng, 50.0, 100.0);
    // Five standard deviations of a Poisson count.
    assert!(
        (at.len() as f64 - 5000.0).abs() < 5.0 * 5000.0_f64.sqrt(),
        "{}",
        at.len()
    );
    assert!(at.is_sorted() && at.iter().all(|t| (0.0..100.0).contains(t)));
    let plan = Plan {
        minutes: 1.0,
        rounds: 8,
        seed: 0,
    };
    let seeds: BTreeSet<u64> = (0..8)
        .flat_map(|r| plan.blocks(r))
        .map(|b| b.seed)
        .collect();
    assert_eq!(seeds.len(), 8 * LOADS.len());
}

#[test]
fn what_arrives_while_the_queue_fills_is_dropped_and_the_idle_pace_is_of_idle_blocks() {
    let block = |load, dropped_s| Block {
        load,
        arrivals_s: 60.0,
        dropped_s,
        seed: 0,
    };
    let rows =
        |from: u64| -> Vec<TraceRow> { (from..from + 12).map(|i| row(i, Some(1.0))).collect() };
    let idle = of_block(0, &block(0.0, 10.0), rows(100));
    assert_eq!(idle.iter().filter(|r| r.dropped).count(), 10);
    assert!(!idle[10].dropped, "ten seconds after the first");
    let mut busy = of_block(1, &block(2.0, 0.0), rows(200));
    for r in &mut busy {
        r.trace.features.0 = r.trace.features.0.map(|x| 100.0 * x);
    }
    let pace = idle_pace(busy.iter().chain(&idle)).unwrap();
    let x = &idle[0].trace.features;
    assert_eq!(pace.step_ms as f32, x.get(Feature::StepMs));
    assert_eq!(pace.tokens_per_s as f32, x.get(Feature::TokensPerS));
    assert_eq!(idle_pace(&busy), None);
}
