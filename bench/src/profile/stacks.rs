//! Folded stacks: what inferno makes of perf's output, by thread, with libgomp's nameless frames named.
//!
//! libgomp is built without symbols and without frame pointers. Where it is innermost, a thread waits for others
//! (or starts them); where llama.cpp's code is further in, it only called that code. The frames say which. Stacks
//! that pass through it end there.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};

pub const WAITS: &str = "[libgomp waits]";
pub const REGION: &str = "[libgomp region]";
/// inferno's mark of the kernel's functions.
const KERNEL: &str = "_[k]";

/// Threads are named by what they are seen to do; the first that fits.
const ROLES: [(&str, &str); 6] = [
    ("runner", "cadenced::actors::model_runner"),
    ("engine", "cadenced::actors::"),
    ("http", "actix_http"),
    ("http", "actix_server::worker"),
    ("main", "cadenced::main"),
    ("OpenMP worker", "[libgomp"),
];

/// How a stack that was not cut off begins.
const BEGINNINGS: [&str; 5] = ["start_thread", "_start", "main", "clone", "__libc_start"];

/// One stack of one kind of thread, outermost frame first.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    pub role: String,
    pub frames: Vec<String>,
    pub samples: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Stacks {
    pub stacks: Vec<Stack>,
    /// How many threads of each role were seen to run.
    pub threads: BTreeMap<String, usize>,
    /// Samples whose stack goes all the way to where its thread began.
    pub whole: u64,
}

impl Stacks {
    /// Folds the text of `perf script`.
    pub fn fold(script: &str) -> Result<Self> {
        let mut options = Options::default();
        options.include_tid = true;
        options.annotate_kernel = true;
        let mut folded = Vec::new();
        Folder::from(options)
            .collapse(script.as_bytes(), &mut folded)
            .context("folding")?;
        Self::read(&String::from_utf8_lossy(&folded))
    }

    /// Reads lines of `COMM-PID/TID;FRAME;...;FRAME SAMPLES`.
    pub fn read(folded: &str) -> Result<Self> {
        let mut by_thread: BTreeMap<&str, Vec<(Vec<String>, u64)>> = BTreeMap::new();
        let mut all = Self::default();
        for line in folded.lines() {
            let (stack, samples) = line.rsplit_once(' ').context("a stack without a count")?;
            let samples: u64 = samples.parse().context("a stack without a count")?;
            let (thread, frames) = stack.split_once(';').unwrap_or((stack, "[unknown]"));
            let frames = tidy(frames.split(';'));
            if BEGINNINGS.iter().any(|b| frames[0].starts_with(b)) {
                all.whole += samples;
            }
            by_thread.entry(thread).or_default().push((frames, samples));
        }
        let mut merged: BTreeMap<(String, Vec<String>), u64> = BTreeMap::new();
        for (thread, stacks) in by_thread {
            let role = role(thread, &stacks);
            *all.threads.entry(role.clone()).or_default() += 1;
            for (frames, samples) in stacks {
                *merged.entry((role.clone(), frames)).or_default() += samples;
            }
        }
        let stack = |((role, frames), samples)| Stack {
            role,
            frames,
            samples,
        };
        all.stacks = merged.into_iter().map(stack).collect();
        Ok(all)
    }

    pub fn samples(&self) -> u64 {
        self.stacks.iter().map(|s| s.samples).sum()
    }

    /// One line for each stack, sorted; the thread is its first frame.
    pub fn text(&self) -> String {
        let line = |s: &Stack| format!("{};{} {}\n", s.role, s.frames.join(";"), s.samples);
        self.stacks.iter().map(line).collect()
    }
}

fn tidy<'a>(frames: impl Iterator<Item = &'a str>) -> Vec<String> {
    // What is called by no known code is no frame but what the walk found beyond the last frame pointer.
    let mut frames: Vec<String> = frames
        .skip_while(|f| *f == "[unknown]")
        .map(str::to_owned)
        .collect();
    let mut innermost = true;
    for frame in frames.iter_mut().rev().filter(|f| !f.ends_with(KERNEL)) {
        if is_libgomp(frame) {
            *frame = if innermost { WAITS } else { REGION }.to_owned();
        } else {
            innermost = false;
        }
    }
    frames.dedup_by(|a, b| a == b && (a == WAITS || a == REGION));
    if frames.is_empty() {
        frames.push("[unknown]".to_owned());
    }
    frames
}

fn is_libgomp(frame: &str) -> bool {
    let names = ["[libgomp.", "GOMP_", "gomp_", "omp_"];
    names.iter().any(|name| frame.starts_with(name))
}

fn role(thread: &str, stacks: &[(Vec<String>, u64)]) -> String {
    let does = |what: &str| {
        stacks
            .iter()
            .any(|(frames, _)| frames.iter().any(|f| f.contains(what)))
    };
    match ROLES.iter().find(|(_, what)| does(what)) {
        Some((role, _)) => (*role).to_owned(),
        // COMM-PID/TID
        None => thread
            .rsplit_once('-')
            .map_or(thread, |(comm, _)| comm)
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libgomp_waits_where_it_is_innermost_and_calls_elsewhere() {
        let stacks = Stacks::read(
            "rt-7/8;[unknown];[libgomp.so.1.0.0] 5\n\
             rt-7/8;[unknown];[libgomp.so.1.0.0];ggml_gemm;[libm.so.6] 7\n\
             rt-7/8;GOMP_barrier;[libgomp.so.1.0.0];do_futex_[k] 2\n",
        )
        .unwrap();
        assert_eq!(
            stacks.text(),
            "OpenMP worker;[libgomp region];ggml_gemm;[libm.so.6] 7\n\
             OpenMP worker;[libgomp waits] 5\n\
             OpenMP worker;[libgomp waits];do_futex_[k] 2\n"
        );
    }

    #[test]
    fn threads_are_named_by_what_they_do_and_otherwise_by_their_name() {
        let stacks = Stacks::read(
            "rt-7/8;start_thread;<cadenced::actors::model_runner::ModelRunner as H>::handle 1\n\
             rt-7/8;[libgomp.so.1.0.0] 3\n\
             rt-7/9;start_thread;actix_http::h1::poll 1\n\
             rt-7/10;start_thread;epoll_wait 1\nrt-7/11;[unknown] 1\n",
        )
        .unwrap();
        let threads: Vec<(&str, usize)> = stacks
            .threads
            .iter()
            .map(|(role, n)| (role.as_str(), *n))
            .collect();
        assert_eq!(threads, [("http", 1), ("rt", 2), ("runner", 1)]);
        assert_eq!((stacks.samples(), stacks.whole), (7, 3));
        assert!(stacks.text().contains("rt;[unknown] 1\n"));
    }

    #[test]
    fn perfs_output_is_folded_and_its_paths_are_gone() {
        let stacks = Stacks::fold(
            "actix-rt|system 26869/26870  2952.569424: cpu-clock: \n\
             \t           1f7da [unknown] (/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0)\n\
             \t28401c1000000000 [unknown] ([unknown])\n\n",
        )
        .unwrap();
        assert_eq!(stacks.text(), "OpenMP worker;[libgomp waits] 1\n");
    }
}
