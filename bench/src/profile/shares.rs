//! Samples by component, by thread and by function.
//!
//! Self: a sample belongs to the first component that is met from the innermost frame outwards. Inclusive: it
//! counts for every component that is anywhere on its stack.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::components::{self, COMPONENTS, COMPUTE, DECODE, OTHER, SPIN};
use super::stacks::Stacks;

const TOP_OTHER: usize = 5;
const TOP_FUNCTIONS: usize = 12;
const TOP_OPERATIONS: usize = 8;
/// What runs the operations of llama.cpp's graph.
const GRAPH: &str = "ggml_graph_compute_thread";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub own: u64,
    pub inclusive: u64,
}

/// A function by the samples in which it was innermost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    pub component: String,
    pub samples: u64,
}

/// Threads of one role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    pub role: String,
    pub threads: usize,
    pub samples: u64,
    pub compute: u64,
    pub spin: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shares {
    pub samples: u64,
    /// Samples whose stack goes all the way to where its thread began.
    pub whole_stacks: u64,
    pub components: Vec<Row>,
    pub threads: Vec<Threads>,
    /// llama.cpp's operations, all that they call included: what its graph calls directly.
    pub operations: Vec<Function>,
    pub functions: Vec<Function>,
    /// The functions behind `other`.
    pub other: Vec<Function>,
}

impl Shares {
    pub fn of(stacks: &Stacks) -> Self {
        let mut own = [0; COMPONENTS.len()];
        let mut inclusive = [0; COMPONENTS.len()];
        let (mut other, mut decode) = (0, 0);
        let mut functions: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut operations: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut threads: BTreeMap<&str, Threads> = BTreeMap::new();
        for stack in &stacks.stacks {
            let n = stack.samples;
            let found: Vec<usize> = stack
                .frames
                .iter()
                .rev()
                .filter_map(|f| components::of(f))
                .collect();
            let component = match found.first() {
                Some(&i) => {
                    own[i] += n;
                    COMPONENTS[i].name
                }
                None => {
                    other += n;
                    OTHER
                }
            };
            for (i, sum) in inclusive.iter_mut().enumerate() {
                *sum += if found.contains(&i) { n } else { 0 };
            }
            let is_decode = |i: &usize| [COMPUTE, SPIN].contains(&COMPONENTS[*i].name);
            decode += if found.iter().any(is_decode) { n } else { 0 };
            let innermost = stack.frames.last().map_or("[unknown]", String::as_str);
            *functions.entry((innermost, component)).or_default() += n;
            let mut inwards = stack.frames.iter().skip_while(|f| !f.starts_with(GRAPH));
            if let (Some(graph), operation) = (inwards.next(), inwards.next()) {
                let operation = operation.filter(|f| components::of(f).is_some());
                *operations
                    .entry((operation.unwrap_or(graph), component))
                    .or_default() += n;
            }
            let thread = threads.entry(&stack.role).or_insert_with(|| Threads {
                role: stack.role.clone(),
                threads: stacks.threads.get(&stack.role).copied().unwrap_or(0),
                samples: 0,
                compute: 0,
                spin: 0,
            });
            thread.samples += n;
            thread.compute += if component == COMPUTE { n } else { 0 };
            thread.spin += if component == SPIN { n } else { 0 };
        }
        let row = |name: &str, own, inclusive| Row {
            name: name.to_owned(),
            own,
            inclusive,
        };
        let mut rows: Vec<Row> = COMPONENTS
            .iter()
            .enumerate()
            .map(|(i, c)| row(c.name, own[i], inclusive[i]))
            .collect();
        let both = rows.iter().filter(|r| [COMPUTE, SPIN].contains(&&*r.name));
        let both = both.map(|r| r.own).sum();
        rows.push(row(DECODE, both, decode));
        rows.push(row(OTHER, other, other));
        let functions = ranked(functions);
        let of_other = functions.iter().filter(|f| f.component == OTHER);
        let mut threads: Vec<Threads> = threads.into_values().collect();
        threads.sort_by_key(|t| std::cmp::Reverse(t.samples));
        Self {
            samples: stacks.samples(),
            whole_stacks: stacks.whole,
            components: rows,
            threads,
            other: of_other.take(TOP_OTHER).cloned().collect(),
            operations: ranked(operations)
                .into_iter()
                .take(TOP_OPERATIONS)
                .collect(),
            functions: functions.into_iter().take(TOP_FUNCTIONS).collect(),
        }
    }
}

/// Most samples first.
fn ranked(counts: BTreeMap<(&str, &str), u64>) -> Vec<Function> {
    let mut functions: Vec<Function> = counts
        .into_iter()
        .map(|((name, component), samples)| Function {
            name: name.to_owned(),
            component: component.to_owned(),
            samples,
        })
        .collect();
    functions.sort_by_key(|f| std::cmp::Reverse(f.samples));
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(folded: &str) -> Shares {
        Shares::of(&Stacks::read(folded).unwrap())
    }

    fn row(shares: &Shares, name: &str) -> (u64, u64) {
        let row = shares.components.iter().find(|r| r.name == name).unwrap();
        (row.own, row.inclusive)
    }

    #[test]
    fn the_innermost_rule_takes_the_sample_and_all_on_the_stack_include_it() {
        let s = shares(
            "rt-1/2;start_thread;tokio::run;actix_http::poll;cadenced::http::chat;\
             minijinja::render;malloc 10\n\
             rt-1/2;start_thread;tokio::run;actix_http::poll;__send;entry_SYSCALL_64_[k];tcp_sendmsg_[k] 5\n",
        );
        assert_eq!(row(&s, "tokenizer, template"), (10, 10));
        assert_eq!(row(&s, "http"), (5, 15));
        assert_eq!(row(&s, "runtime"), (0, 15));
        assert_eq!(row(&s, OTHER), (0, 0));
    }

    #[test]
    fn waiting_in_libgomp_is_not_compute_and_decode_is_both() {
        let s = shares(
            "rt-1/3;[libgomp.so.1.0.0];ggml_graph_compute_thread;gemm_q4 70\n\
             rt-1/3;[unknown];[libgomp.so.1.0.0] 20\n\
             rt-1/3;[libgomp.so.1.0.0];ggml_graph_compute_thread;ggml_flash;expf 3\n\
             rt-1/4;start_thread;tokio::run;<cadenced::actors::model_runner::ModelRunner as H>::handle;\
             llama_decode;memset 6\n\
             rt-1/4;start_thread;<cadenced::actors::model_runner::ModelRunner as H>::handle;\
             cadenced::model::sampling::nucleus 4\n",
        );
        assert_eq!(row(&s, COMPUTE), (79, 79));
        assert_eq!(row(&s, SPIN), (20, 20));
        assert_eq!(row(&s, DECODE), (99, 99));
        assert_eq!(row(&s, "sampling"), (4, 4));
        assert_eq!(row(&s, "runner"), (0, 10));
        let worker = &s.threads[0];
        assert_eq!(
            (&*worker.role, worker.compute, worker.spin),
            ("OpenMP worker", 73, 20)
        );
        let operations: Vec<(&str, u64)> = s
            .operations
            .iter()
            .map(|o| (o.name.as_str(), o.samples))
            .collect();
        assert_eq!(operations, [("gemm_q4", 70), ("ggml_flash", 3)]);
    }

    #[test]
    fn what_no_rule_matches_is_other_and_told_by_name() {
        let s = shares(
            "rt-1/2;start_thread;mystery 9\nrt-1/2;start_thread;riddle 1\nrt-1/2;tokio::x 4\n",
        );
        assert_eq!(row(&s, OTHER), (10, 10));
        let names: Vec<&str> = s.other.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["mystery", "riddle"]);
        let own: u64 = s
            .components
            .iter()
            .filter(|r| r.name != DECODE)
            .map(|r| r.own)
            .sum();
        assert_eq!(own, s.samples, "every sample is in one row");
    }
}
