//! What must hold for every plan. Named, so that the property tests and, behind `engine.check_invariants`,
//! the running daemon call the same checks.

use super::Scheduler;
use super::step::{RowPlan, StepPlan, Work};
use crate::logic::request::Lane;

/// Checks a plan that has just been made.
///
/// # Panics
/// With the invariant's name, if one does not hold.
pub fn assert_plan<P>(scheduler: &Scheduler<P>, plan: &StepPlan) {
    one_row_for_each_running_sequence(scheduler, plan);
    never_decoded_while_prefilling(scheduler, plan);
    within_budgets(scheduler, plan);
    removed_sequences_do_not_run(plan);
    cells_within_lease(scheduler, plan);
    promised_before_best_effort(scheduler, plan);
}

/// Nobody of the best-effort lane computes a prompt while one of the others' gets less than it could, and
/// nobody of it decodes while one of the others waits.
fn promised_before_best_effort<P>(scheduler: &Scheduler<P>, plan: &StepPlan) {
    let of = |row: &RowPlan| &scheduler.running()[row.index];
    let prefills = |row: &&RowPlan| matches!(row.work, Work::Prefill { .. });
    let lane = |row: &&RowPlan| of(row).spec.yields();
    if !plan.rows.iter().any(|r| lane(&r)) {
        return;
    }
    let lane_prefills = plan.rows.iter().filter(prefills).any(|r| lane(&r));
    for s in scheduler.of(Lane::Promised) {
        let row = plan.rows.iter().find(|r| r.request == s.spec.id);
        assert!(
            row.is_some() || s.prefilling(),
            "{} waits for the best-effort lane",
            s.spec.id
        );
        let whole = row.is_some_and(|r| r.work.samples().is_some());
        assert!(
            !lane_prefills || whole,
            "{}'s prompt waits for one of the best-effort lane",
            s.spec.id
        );
    }
}

fn one_row_for_each_running_sequence<P>(scheduler: &Scheduler<P>, plan: &StepPlan) {
    for (i, row) in plan.rows.iter().enumerate() {
        let s = scheduler
            .running()
            .iter()
            .find(|s| s.spec.id == row.request);
        assert!(
            s.is_some_and(|s| s.lease.seq == row.seq),
            "row for {} which does not run as that sequence",
            row.request
        );
        assert!(
            plan.rows[..i].iter().all(|r| r.seq != row.seq),
            "two rows for sequence {:?}",
            row.seq
        );
    }
}

fn never_decoded_while_prefilling<P>(scheduler: &Scheduler<P>, plan: &StepPlan) {
    for row in &plan.rows {
        let Some(s) = scheduler
            .running()
            .iter()
            .find(|s| s.spec.id == row.request)
        else {
            continue;
        };
        match row.work {
            Work::Decode { .. } => assert!(
                !s.prefilling(),
                "{} is decoded while it prefills",
                row.request
            ),
            Work::Prefill {
                start,
                len,
                samples,
            } => {
                assert_eq!(
                    start, s.num_computed,
                    "{}: a hole in the prefill",
                    row.request
                );
                assert!(len > 0, "{}: an empty chunk", row.request);
                assert_eq!(
                    samples.is_some(),
                    start + len == s.prefill_end,
                    "{}: wrong end",
                    row.request
                );
            }
        }
    }
}

fn within_budgets<P>(scheduler: &Scheduler<P>, plan: &StepPlan) {
    let limits = scheduler.limits();
    let prefill: u32 = plan
        .rows
        .iter()
        .filter(|r| matches!(r.work, Work::Prefill { .. }))
        .map(|r| r.work.tokens())
        .sum();
    assert!(
        prefill <= limits.prefill_budget,
        "{prefill} prompt tokens exceed the prefill budget"
    );
    assert!(
        plan.tokens() <= limits.n_batch,
        "{} tokens exceed n_batch",
        plan.tokens()
    );
}

fn removed_sequences_do_not_run(plan: &StepPlan) {
    for seq in plan.emptied() {
        assert!(
            plan.rows.iter().all(|r| r.seq != seq),
            "{seq:?} is removed and runs"
        );
    }
}

fn cells_within_lease<P>(scheduler: &Scheduler<P>, plan: &StepPlan) {
    for row in &plan.rows {
        let Some(s) = scheduler
            .running()
            .iter()
            .find(|s| s.spec.id == row.request)
        else {
            continue;
        };
        let end = row.work.position() + row.work.tokens();
        assert!(
            end <= s.lease.capacity(),
            "{} writes token {end} beyond its lease",
            row.request
        );
    }
}
