//! README.md of the results: made of shares.json and of notes.md, which is written by hand.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Profile;
use super::components::{COMPONENTS, COMPUTE, DECODE, OTHER, SPIN};
use super::shares::{Function, Row};

/// Writes README.md from what is in `folder`.
pub fn write(folder: &Path) -> Result<()> {
    let text = render(folder)?;
    let path = folder.join("README.md");
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("written: {}", path.display());
    Ok(())
}

/// What README.md must be.
pub fn render(folder: &Path) -> Result<String> {
    let path = folder.join("shares.json");
    let json = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let mut file: Value = serde_json::from_str(&json)?;
    let profile: Profile = serde_json::from_value(file["results"].take())?;
    let notes = std::fs::read_to_string(folder.join("notes.md")).unwrap_or_default();
    Ok(page(&file["provenance"], &profile, notes.trim()))
}

fn page(provenance: &Value, profile: &Profile, notes: &str) -> String {
    let mut out = String::from(
        "# Where the daemon's CPU time goes\n\n\
         Made by `make profile`; do not edit (notes.md is the part that is written by hand).\n\n",
    );
    if !notes.is_empty() {
        out += &format!("{notes}\n\n");
    }
    out += "[![flamegraph](flamegraph.svg)](flamegraph.svg)\n\n\
            Boxes are coloured by component; opened by itself the picture can be searched and zoomed. \
            folded.txt has the stacks, shares.json the counts.\n\n";
    components(&mut out, profile);
    threads(&mut out, profile);
    functions(&mut out, profile);
    sampling(&mut out, provenance, profile);
    out
}

fn components(out: &mut String, profile: &Profile) {
    let samples = profile.shares.samples;
    *out += "## By component\n\n\
        | component | self | inclusive | CPU per reply token | samples | |\n\
        | --- | ---: | ---: | ---: | ---: | --- |\n";
    let find = |name: &str| profile.shares.components.iter().find(|r| r.name == name);
    let mut line = |label: &str, row: Option<&Row>, what: &str| {
        let Some(row) = row else { return };
        let tokens = profile.load.reply_tokens.max(1) as f64;
        let cores = profile.sampling.daemon_cores;
        let seconds = profile.load.seconds * cores * row.own as f64 / samples.max(1) as f64;
        let _ = writeln!(
            out,
            "| {label} | {} | {} | {:.1} µs | {} | {what} |",
            percent(row.own, samples),
            percent(row.inclusive, samples),
            seconds / tokens * 1e6,
            row.own
        );
    };
    line(DECODE, find(DECODE), "llama.cpp: the two rows below");
    let mut ordered: Vec<_> = COMPONENTS.iter().collect();
    ordered.sort_by_key(|c| match c.name {
        COMPUTE => 0,
        SPIN => 1,
        _ => 2,
    });
    for c in ordered {
        let part = c.name.strip_prefix("decode: ");
        let label = part.map_or(c.name.to_owned(), |part| format!("– {part}"));
        line(&label, find(c.name), c.what);
    }
    line(OTHER, find(OTHER), &told(&profile.shares.other));
    *out += "\nSelf: the first component met from the innermost frame outwards has the sample. Inclusive: any \
             frame of the component on the stack. ";
    let _ = writeln!(
        out,
        "{} of the stacks reach the start of their thread; the others end in libgomp or libc, which are built \
         without frame pointers, so that inclusive shares of what calls llama.cpp or the kernel through them \
         are lower bounds. A share near 1 % has a standard error of {:.2} %. CPU per reply token: the \
         component's own CPU time, prompts included, over the tokens that were generated.\n",
        percent(profile.shares.whole_stacks, samples),
        (0.01 * 0.99 / samples.max(1) as f64).sqrt() * 100.0
    );
}

fn threads(out: &mut String, profile: &Profile) {
    *out += "## By thread\n\n| thread | threads | share | computes | waits in libgomp |\n\
             | --- | ---: | ---: | ---: | ---: |\n";
    for t in &profile.shares.threads {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            t.role,
            t.threads,
            percent(t.samples, profile.shares.samples),
            percent(t.compute, t.samples),
            percent(t.spin, t.samples)
        );
    }
    *out += "\nThe last two columns are of the thread's own samples. Threads are named by what they were seen to \
             do; one that never ran is not listed.\n\n";
}

fn functions(out: &mut String, profile: &Profile) {
    let mut table = |title: &str, head: &str, functions: &[Function]| {
        let _ = writeln!(
            out,
            "## {title}\n\n| {head} | component | share |\n| --- | --- | ---: |"
        );
        for f in functions {
            let share = percent(f.samples, profile.shares.samples);
            let _ = writeln!(out, "| `{}` | {} | {share} |", f.name, f.component);
        }
        out.push('\n');
    };
    table(
        "By operation of llama.cpp",
        "what its graph calls, with all that this calls",
        &profile.shares.operations,
    );
    table(
        "By function",
        "innermost function",
        &profile.shares.functions,
    );
}

fn sampling(out: &mut String, provenance: &Value, profile: &Profile) {
    let (s, load) = (&profile.sampling, &profile.load);
    let text = |path: &str| match provenance.pointer(path) {
        Some(Value::String(s)) => s.clone(),
        Some(other) => other.to_string(),
        None => "unknown".into(),
    };
    let deviation = 100.0 * (s.samples as f64 / s.samples_expected.max(1.0) - 1.0);
    let environment = match provenance["environment"].as_array() {
        Some(set) if !set.is_empty() => (set.iter().filter_map(Value::as_str))
            .map(|variable| format!("`{variable}`"))
            .collect::<Vec<_>>()
            .join(" "),
        _ => "no variable for OpenMP or the daemon is set".into(),
    };
    let canary = provenance["canary"]["ms"].as_array();
    let canary: Vec<String> = (canary.into_iter().flatten())
        .map(|ms| format!("{:.1}", ms.as_f64().unwrap_or(0.0)))
        .collect();
    let rows = [
        ("command", format!("`{}`", text("/command"))),
        ("revision", text("/revision")),
        (
            "machine",
            format!("{} × {}", text("/machine/cores"), text("/machine/cpu")),
        ),
        ("model", text("/models/0/file")),
        (
            "engine",
            format!(
                "{} threads, flash attention {}, KV {}/{}",
                text("/effective/threads"),
                text("/effective/flash_attention"),
                text("/effective/kv_type_k"),
                text("/effective/kv_type_v")
            ),
        ),
        ("environment", environment),
        ("taken", text("/finished")),
        (
            "sampler",
            format!("{}, cpu-clock, frame pointers", s.sampler),
        ),
        ("time", format!("{:.1} s", s.seconds)),
        (
            "daemon's CPU time",
            format!("{:.1} s ({:.2} cores)", s.daemon_cpu_s, s.daemon_cores),
        ),
        (
            "rate",
            format!(
                "{} Hz asked, {:.1} Hz achieved, of a running thread's time",
                s.rate_hz, s.achieved_hz
            ),
        ),
        (
            "samples",
            format!(
                "{}; {:.0} expected of that CPU time at that rate ({deviation:+.1} %); perf reports {} lost",
                s.samples, s.samples_expected, s.samples_lost
            ),
        ),
        (
            "load",
            format!(
                "{} streaming clients, {} replies ended; {} steps, {} prompt tokens computed, {} reply tokens \
                 ({:.0}/s)",
                load.clients,
                load.replies,
                load.steps,
                load.prompt_tokens,
                load.reply_tokens,
                load.reply_tokens as f64 / load.seconds.max(1e-9)
            ),
        ),
        ("clients' CPU", format!("{:.3} cores", s.client_cores)),
        (
            "disturbance",
            format!(
                "{:.2} CPU s stolen by the hypervisor; canary {} ms{}",
                s.stolen_s,
                canary.join(", "),
                if provenance["canary"]["disturbed"] == true {
                    ": **the machine was disturbed**"
                } else {
                    ""
                }
            ),
        ),
    ];
    *out += "## How it was taken\n\n| | |\n| --- | --- |\n";
    for (what, value) in rows {
        let _ = writeln!(out, "| {what} | {value} |");
    }
    *out += "\nThe timer counts a thread's time on a core; where fewer samples came than that time at that rate \
             would give, the shares take what was missed to be like what was seen.\n";
}

fn told(functions: &[Function]) -> String {
    let list: Vec<String> = functions
        .iter()
        .map(|f| format!("`{}` {}", f.name, f.samples))
        .collect();
    let list = if list.is_empty() {
        "nothing".to_owned()
    } else {
        list.join(", ")
    };
    format!("what no rule matches, by innermost function: {list}")
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / whole.max(1) as f64)
}
