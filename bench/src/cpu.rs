//! CPU time of processes and of their threads, from the scheduler's own nanosecond counters
//! (`/proc/PID/task/*/schedstat`): rusage ticks are too coarse for windows of a second.

use std::collections::BTreeMap;
use std::time::Instant;

/// CPU seconds by thread name at a moment. Threads of one name are summed.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Instant,
    threads: BTreeMap<String, f64>,
}

/// What a process used between two samples, in cores (1.0 = one core all the time).
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Share {
    pub total: f64,
    pub threads: BTreeMap<String, f64>,
}

/// Reads process `pid`; a process that is gone has used nothing.
pub fn sample(pid: u32) -> Sample {
    let mut threads = BTreeMap::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    for task in tasks {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let nanos = read("schedstat")
            .split_whitespace()
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0);
        *threads.entry(read("comm").trim().to_owned()).or_insert(0.0) += nanos as f64 * 1e-9;
    }
    Sample {
        at: Instant::now(),
        threads,
    }
}

impl Sample {
    /// What was used from here to `later`.
    pub fn until(&self, later: &Self) -> Share {
        let wall = (later.at - self.at).as_secs_f64().max(1e-9);
        let threads: BTreeMap<String, f64> = later
            .threads
            .iter()
            .map(|(name, cpu)| {
                let before = self.threads.get(name).copied().unwrap_or(0.0);
                (name.clone(), ((cpu - before) / wall).max(0.0))
            })
            .filter(|(_, share)| *share > 0.0005)
            .collect();
        Share {
            total: threads.values().sum(),
            threads,
        }
    }
}

/// Seconds that this process's threads have been ready to run without getting a core.
pub fn waited_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let nanos = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 * 1e-9
}

/// Seconds that the hypervisor has given to others while this machine wanted to run, all cores together.
pub fn stolen_seconds() -> f64 {
    machine_seconds(&[8])
}

/// Seconds in which the machine's cores did anything for anybody, all of them together.
pub fn busy_seconds() -> f64 {
    // user, nice, system, irq, softirq
    machine_seconds(&[1, 2, 3, 6, 7])
}

/// The sum of some columns of the machine's own account.
fn machine_seconds(columns: &[usize]) -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu: Vec<&str> = stat
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = columns
        .iter()
        .filter_map(|i| cpu.get(*i)?.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// CPU seconds of this process, threads that have ended included.
pub fn process_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in brackets that may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |i: usize| fields.split_whitespace().nth(i)?.parse::<f64>().ok();
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}
