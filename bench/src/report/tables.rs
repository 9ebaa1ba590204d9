//! One function for each table: results in, Markdown out.

use serde_json::Value;

use super::markdown::Table;
use crate::stats::Spread;

pub type Render = fn(&Value) -> String;

/// Name in the markers, file of results, renderer.
pub const ALL: &[(&str, &str, Render)] = &[
    ("raw", "raw.json", raw),
    ("knobs-format", "knobs.json", knobs_format),
    ("knobs-layout", "knobs.json", knobs_layout),
    ("knobs-threads", "knobs.json", knobs_threads),
    ("reuse", "reuse.json", reuse),
    ("micro", "micro.json", micro),
    ("occupancy", "occupancy.json", occupancy),
    ("quality", "quality.json", quality),
    ("host-work", "host-work.json", host_work),
    ("memory", "memory.json", memory),
];

/// Where the numbers come from, in a line.
pub fn origin(file: &str, p: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_owned();
    let machine = &p["machine"];
    let models: Vec<String> = rows(&p["models"])
        .iter()
        .map(|m| text(&m["file"]))
        .collect();
    let models = if models.is_empty() {
        String::new()
    } else {
        format!(" {};", models.join(", "))
    };
    let canary: Vec<f64> = rows(&p["canary"]["ms"])
        .iter()
        .map(|v| v.as_f64().unwrap_or(0.0))
        .collect();
    format!(
        "<sub>{file}: {}, {} cores, {:.0} GiB;{models} {} of {}; canary {} ms{}.</sub>\n",
        text(&machine["cpu"]),
        machine["cores"],
        machine["memory_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 30),
        text(&p["revision"]).chars().take(10).collect::<String>(),
        text(&p["started"]).chars().take(10).collect::<String>(),
        Spread::of(&canary).show(1),
        if p["canary"]["disturbed"] == true {
            ", **disturbed**"
        } else {
            ""
        },
    )
}

fn raw(results: &Value) -> String {
    let mut t = Table::new(&[
        "streams",
        "bare loop, tok/s",
        "daemon over HTTP, tok/s",
        "daemon / bare",
        "daemon / spinning bare",
        "host work in a step",
        "client's CPU",
    ]);
    for r in rows(results) {
        let step_us = number(&r["batch"]) * 1e6 / spread(&r["daemon_tokens_per_s"]).median;
        let host = spread(&r["host_us"]).median;
        t.row([
            r["batch"].to_string(),
            spread(&r["bare_tokens_per_s"]).show(1),
            spread(&r["daemon_tokens_per_s"]).show(1),
            spread(&r["ratio"]).show(3),
            spread(&r["ratio_to_spinning"]).show(3),
            format!("{host:.0} µs = {:.2}%", 100.0 * host / step_us),
            format!("{:.1}% of a core", 100.0 * spread(&r["client_cpu"]).median),
        ]);
    }
    t.text
}

const DECODE: [&str; 5] = ["prefill", "b1", "b4", "b8", "b16"];

fn rates(r: &Value) -> Vec<String> {
    let decode = rows(&r["decode_tokens_per_s"]);
    std::iter::once(&r["prefill_tokens_per_s"])
        .chain(decode)
        .map(|v| {
            let s = spread(v);
            s.show(if s.median < 10.0 { 1 } else { 0 })
        })
        .collect()
}

fn knobs_format(results: &Value) -> String {
    let mut t = Table::new(&[&["model file", "KV", "flash attention"], &DECODE[..]].concat());
    for r in rows(results)
        .iter()
        .filter(|r| r["knobs"]["group"] == "format")
    {
        let k = &r["knobs"];
        let head = [
            string(&k["model"]),
            string(&k["kv"]),
            on_off(&k["flash_attention"]),
        ];
        t.row(head.into_iter().chain(rates(r)));
    }
    t.text
}

fn knobs_layout(results: &Value) -> String {
    let mut t = Table::new(&[&["KV", "layout"], &DECODE[..]].concat());
    for r in rows(results)
        .iter()
        .filter(|r| r["knobs"]["group"] == "layout")
    {
        let k = &r["knobs"];
        let head = [string(&k["kv"]), string(&k["layout"])];
        t.row(head.into_iter().chain(rates(r)));
    }
    t.text
}

fn reuse(r: &Value) -> String {
    let mut t = Table::new(&[
        "requests",
        "prompt tokens out of the cache",
        "at most",
        "working set ÷ pool",
        "TTFT of a hit, ms",
        "TTFT of a miss, ms",
        "hit ÷ miss (medians)",
    ]);
    let percent = |v: &Value| format!("{:.1}%", 100.0 * number(v));
    t.row([
        format!("{} ({} hits)", r["requests"], r["hits"]),
        percent(&r["hit_rate"]),
        percent(&r["ceiling"]),
        format!(
            "{} ÷ {} tokens = {:.2}",
            r["working_set_tokens"],
            r["pool_tokens"],
            number(&r["working_set_tokens"]) / number(&r["pool_tokens"])
        ),
        spread(&r["ttft_hit_ms"]).show(0),
        spread(&r["ttft_miss_ms"]).show(0),
        format!("{:.3}", number(&r["ttft_ratio"])),
    ]);
    t.text
}

fn micro(results: &Value) -> String {
    let mut t = Table::new(&["benchmark", "mean", "95% interval"]);
    let time = |v: &Value| {
        let ns = number(v);
        match ns {
            _ if ns < 1e3 => format!("{ns:.0} ns"),
            _ if ns < 1e6 => format!("{:.2} µs", ns * 1e-3),
            _ => format!("{:.2} ms", ns * 1e-6),
        }
    };
    for r in rows(results) {
        let interval = format!("{} – {}", time(&r["low_ns"]), time(&r["high_ns"]));
        t.row([string(&r["id"]), time(&r["mean_ns"]), interval]);
    }
    t.text
}

fn knobs_threads(results: &Value) -> String {
    let mut t = Table::new(&[&["threads", "waiting", "busy neighbour"], &DECODE[..]].concat());
    for r in rows(results)
        .iter()
        .filter(|r| r["knobs"]["group"] == "threads")
    {
        let k = &r["knobs"];
        let neighbour = if k["neighbour"] == true { "yes" } else { "no" };
        let head = [
            k["threads"].to_string(),
            string(&k["wait"]),
            neighbour.to_owned(),
        ];
        t.row(head.into_iter().chain(rates(r)));
    }
    t.text
}

fn occupancy(results: &Value) -> String {
    let all = rows(results);
    let step = |others: &Value, flash: bool| {
        let of = |r: &&Value| r["cells_of_others"] == *others && r["flash_attention"] == flash;
        all.iter()
            .find(of)
            .map_or("–".into(), |r| spread(&r["step_ms"]).show(1))
    };
    let mut t = Table::new(&[
        "cells held by others",
        "flash attention on, ms a step",
        "flash attention off, ms a step",
    ]);
    for r in all.iter().filter(|r| r["flash_attention"] == true) {
        let others = &r["cells_of_others"];
        t.row([
            format!("{others} of {}", r["cells"]),
            step(others, true),
            step(others, false),
        ]);
    }
    t.text
}

fn quality(results: &Value) -> String {
    let mut t = Table::new(&[
        "model file",
        "KV",
        "perplexity",
        "same most likely token as the first row",
        "KL divergence from it",
    ]);
    for r in rows(results) {
        t.row([
            string(&r["model"]),
            string(&r["kv"]),
            format!("{:.2}", number(&r["perplexity"])),
            format!("{:.1}%", 100.0 * number(&r["top_token_agreement"])),
            format!("{:.4}", number(&r["kl_divergence"])),
        ]);
    }
    t.text
}

fn host_work(results: &Value) -> String {
    let mut t = Table::new(&[
        "streams",
        "model's part of a step",
        "mean, µs",
        "p50, µs",
        "p99, µs",
    ]);
    for r in rows(results) {
        t.row([
            r["batch"].to_string(),
            format!("{} ms", number(&r["step_us"]) / 1e3),
            spread(&r["mean_us"]).show(0),
            spread(&r["p50_us"]).show(0),
            spread(&r["p99_us"]).show(0),
        ]);
    }
    t.text
}

fn memory(m: &Value) -> String {
    let mib = |key: &str| format!("{:.0}", number(&m[key]));
    let mut t = Table::new(&["model", "KV", "compute", "resident", "besides"]);
    let keys = [
        "model_mib",
        "kv_mib",
        "compute_mib",
        "resident_mib",
        "overhead_mib",
    ];
    t.row(keys.map(|k| mib(k) + " MiB"));
    let mut flat = Table::new(&["requests (fake model)", "resident"]);
    for p in rows(&m["flat"]) {
        flat.row([
            p["requests"].to_string(),
            format!("{:.1} MiB", number(&p["resident_mib"])),
        ]);
    }
    t.text + "\n" + &flat.text
}

pub fn rows(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

pub fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or(f64::NAN)
}

pub fn string(v: &Value) -> String {
    v.as_str().unwrap_or("?").to_owned()
}

fn spread(v: &Value) -> Spread {
    serde_json::from_value(v.clone()).unwrap_or_default()
}

fn on_off(v: &Value) -> String {
    if *v == true { "on" } else { "off" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_occupancy_pair_flash_attention_on_and_off() {
        let row = |flash: bool, ms: f64| {
            serde_json::json!({
                "flash_attention": flash, "cells_of_others": 0, "cells": 512,
                "step_ms": { "median": ms, "min": ms, "max": ms },
            })
        };
        let text = occupancy(&serde_json::json!([row(true, 1.0), row(false, 2.0)]));
        assert!(
            text.ends_with("| 0 of 512 | 1.0 (1.0–1.0) | 2.0 (2.0–2.0) |\n"),
            "{text}"
        );
    }
}
