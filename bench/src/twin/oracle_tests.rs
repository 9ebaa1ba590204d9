//! The bound against trying everything, and against engines.

use super::*;
use crate::twin::cost::CostModel;
use crate::twin::rung::Rung;
use crate::twin::text::Text;
use proptest::prelude::*;

fn feasible(jobs: &[Job], slo: u64) -> bool {
    let mut free = 0;
    jobs.iter().all(|j| {
        free = j.release.max(free) + j.work;
        free <= j.release + slo
    })
}

/// The size of a largest feasible subset, by trying all of them.
fn by_trying(jobs: &[Job], slo: u64) -> usize {
    (0..1u32 << jobs.len())
        .map(|set| {
            let chosen: Vec<Job> = jobs
                .iter()
                .enumerate()
                .filter(|(i, _)| set & (1 << i) != 0)
                .map(|(_, j)| *j)
                .collect();
            if feasible(&chosen, slo) {
                chosen.len()
            } else {
                0
            }
        })
        .max()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_set_is_feasible_and_none_is_larger(
        gaps_and_work in prop::collection::vec((0..4u64, 1..7u64), 0..11), slo in 1..12u64,
    ) {
        let mut release = 0;
        let jobs: Vec<Job> = gaps_and_work
            .into_iter()
            .enumerate()
            .map(|(index, (gap, work))| {
                release += gap;
                Job { index, release, work }
            })
            .collect();
        let mut schedule = OnTime::new(slo);
        jobs.iter().for_each(|j| schedule.offer(*j));
        prop_assert!(feasible(&schedule.jobs, slo));
        prop_assert_eq!(schedule.jobs.len(), by_trying(&jobs, slo));
    }

    /// Whatever the costs, the load and the rung.
    #[test]
    fn no_rung_answers_more_in_time(
        costs in (0..40u32, 0..20u32, 0..20u32, 0..3u32),
        sizes in prop::collection::vec((0..3000u64, 1..40u32, 1..30u32, 1..30u32), 1..60),
        slo_us in 100..20_000u64,
    ) {
        let model = CostModel {
            step_us: costs.0.into(),
            prefill_token_us: costs.1.into(),
            decode_seq_us: costs.2.into(),
            cached_token_us: f64::from(costs.3) * 0.1,
        };
        let mut at_us = 0;
        let requests: Vec<Request> = sizes
            .into_iter()
            .map(|(gap, prompt_tokens, max_tokens, answer_tokens)| {
                at_us += gap;
                Request { at_us, prompt_tokens, text: Text { own: at_us, ..Text::default() }, max_tokens, answer_tokens }
            })
            .collect();
        let bounds = Bounds { cost: model.into(), rows_max: 16, kv_cells: 16_384, prefix_cache: true };
        let most = bounds.most_on_time(&requests, slo_us);
        let trials: Vec<Trial> = Rung::ladder()
            .into_iter()
            .map(|rung| Trial { slo_us: Some(slo_us), ..Trial::new(rung, bounds.cost) })
            .collect();
        for trial in &trials {
            let on_time = count_within(&trial.run(&requests), &requests, slo_us);
            prop_assert!(on_time <= most, "{}: {on_time} of at most {most}", trial.rung.name);
        }
        prop_assert!(achievable(&bounds, &trials, &requests, slo_us) <= most);
    }
}

#[test]
fn the_least_work_of_a_request_can_be_counted() {
    let bounds = Bounds {
        cost: StepCost {
            step_ps: 400,
            prefill_token_ps: 10,
            decode_seq_ps: 30,
            cached_token_ps: 1,
        },
        rows_max: 4,
        kv_cells: 1000,
        prefix_cache: false,
    };
    let request = Request {
        at_us: 0,
        prompt_tokens: 5,
        text: Text::default(),
        max_tokens: 3,
        answer_tokens: 9,
    };
    // Two decodes, which find 5 and 6 tokens.
    let tokens = 5 * 10 + 2 * 30 + 11;
    assert_eq!(bounds.least(&request, 0), (tokens + 300, tokens + 1200));
    assert_eq!(bounds.least(&request, 4).0, tokens + 300 - 40);
}
