//! What a configuration must satisfy beyond its types: each rule names its key, and plans that can't work are
//! refused before anything is started.

use std::ops::RangeInclusive;

use super::{
    AdmissionMode, Backend, Config, ConfigError, FlashAttention, KvLayout, KvType, PolicyName,
};
use crate::logic::kv::BLOCK_TOKENS;

/// llama.cpp's own bound (`LLAMA_MAX_SEQ`).
pub const SEQUENCES_MAX: u32 = 256;

/// Of any time.
const DAY_S: u64 = 86_400;

/// Beyond what any machine's descriptors allow.
const REQUESTS_MAX: usize = 1 << 20;

/// Two files of a line each.
const TRACE_BYTES_MIN: u64 = 4096;

/// Levels that can be promised: below, a promise is a coin's; above, the 256 scores that are kept never support it.
pub const CONFIDENCE: RangeInclusive<f64> = 0.5..=0.996;

pub(super) fn validate(c: &Config) -> Result<(), ConfigError> {
    let rule = |holds: bool, key: &str, message: String| {
        if holds {
            Ok(())
        } else {
            Err(ConfigError(format!("{key}: {message}")))
        }
    };
    let at_least_1 = |key: &str, n: u64| rule(n >= 1, key, format!("{n} is less than 1"));

    if let Some(admin) = c.server.admin_listen {
        rule(
            admin.ip().is_loopback(),
            "server.admin_listen",
            format!("{admin} is no loopback address, and who reaches it is refused nothing"),
        )?;
        rule(
            admin != c.server.listen || admin.port() == 0,
            "server.admin_listen",
            format!("{admin} is server.listen as well"),
        )?;
    }
    at_least_1("server.body_bytes_max", c.server.body_bytes_max as u64)?;
    for (key, seconds) in [
        ("server.sse_keep_alive_s", c.server.sse_keep_alive_s),
        ("server.keep_alive_s", c.server.keep_alive_s),
        ("server.request_timeout_s", c.server.request_timeout_s),
        ("lifecycle.step_age_limit_s", c.lifecycle.step_age_limit_s),
        ("lifecycle.drain_limit_s", c.lifecycle.drain_limit_s),
    ] {
        rule(
            (1..=DAY_S).contains(&seconds),
            key,
            format!("{seconds} is not between 1 and {DAY_S}"),
        )?;
    }
    for (key, ms) in [
        ("scheduler.fill_timeout_ms", c.scheduler.fill_timeout_ms),
        ("lifecycle.drain_grace_ms", c.lifecycle.drain_grace_ms),
        ("slo.e2e_ms", c.slo.e2e_ms),
        ("slo.ttft_ms", c.slo.ttft_ms),
    ] {
        rule(
            ms <= DAY_S * 1000,
            key,
            format!("{ms} is more than a day, {}", DAY_S * 1000),
        )?;
    }
    rule(
        c.server.workers <= 256,
        "server.workers",
        format!("{} is more than 256", c.server.workers),
    )?;
    rule(
        c.model.backend == Backend::Fake || !c.model.path.as_os_str().is_empty(),
        "model.path",
        "is empty; name a GGUF file".into(),
    )?;
    for (key, threads) in [
        ("runner.threads", c.runner.threads),
        ("runner.threads_batch", c.runner.threads_batch),
    ] {
        let n = threads.or(1);
        rule(
            (1..=512).contains(&n),
            key,
            format!("{n} is not between 1 and 512"),
        )?;
    }
    at_least_1("runner.n_ubatch", c.runner.n_ubatch.into())?;
    rule(
        c.runner.n_ubatch <= c.runner.n_batch,
        "runner.n_ubatch",
        format!(
            "{} is more than runner.n_batch = {}",
            c.runner.n_ubatch, c.runner.n_batch
        ),
    )?;
    let cells = c.kv.cells.or(256);
    rule(
        cells >= BLOCK_TOKENS && cells.is_multiple_of(256),
        "kv.cells",
        format!("{cells} is not a positive multiple of 256, which is llama.cpp's grain"),
    )?;
    rule(
        c.kv.utilisation > 0.0 && c.kv.utilisation <= 1.0,
        "kv.utilisation",
        format!("{} is not above 0 and at most 1", c.kv.utilisation),
    )?;
    rule(
        c.runner.flash_attention != FlashAttention::Off
            || !matches!(c.kv.type_v, KvType::Q8_0 | KvType::Q4_0),
        "kv.type_v",
        "a quantised V cache needs runner.flash_attention".into(),
    )?;
    rule(
        (0.0..=0.5).contains(&c.kv.watermark),
        "kv.watermark",
        format!("{} is not between 0 and 0.5", c.kv.watermark),
    )?;
    rule(
        !c.may_reuse() || c.memory_shares(),
        "prefix.reuse",
        "needs kv.reservation = \"paged\" or \"request\": contiguous memory can't be shared".into(),
    )?;
    scheduler(c, rule)?;
    let slab = c.kv.cells.or(u32::MAX) / c.sequences();
    rule(
        c.kv.layout.resolved() == KvLayout::Unified || slab >= 256,
        "kv.cells",
        format!(
            "{cells} cells in {} streams are {slab} tokens for each, less than 256",
            c.sequences()
        ),
    )?;
    rule(
        (1..=REQUESTS_MAX).contains(&c.limits.requests),
        "limits.requests",
        format!("{} is not between 1 and {REQUESTS_MAX}", c.limits.requests),
    )?;
    at_least_1("limits.tokens", c.limits.tokens)?;
    at_least_1("limits.request_bytes", c.limits.request_bytes as u64)?;
    rule(
        (0.0..=1.0).contains(&c.limits.best_effort_share),
        "limits.best_effort_share",
        format!("{} is not between 0 and 1", c.limits.best_effort_share),
    )?;
    at_least_1("limits.unread_bytes", c.limits.unread_bytes as u64)?;
    at_least_1(
        "limits.max_output_tokens",
        c.limits.max_output_tokens.into(),
    )?;
    at_least_1(
        "limits.default_max_tokens",
        c.limits.default_max_tokens.into(),
    )?;
    rule(
        c.limits.default_max_tokens <= c.limits.max_output_tokens,
        "limits.default_max_tokens",
        format!(
            "{} is more than limits.max_output_tokens = {}",
            c.limits.default_max_tokens, c.limits.max_output_tokens
        ),
    )?;
    rule(
        (1..=60).contains(&c.limits.retry_after_s_max),
        "limits.retry_after_s_max",
        format!("{} is not between 1 and 60", c.limits.retry_after_s_max),
    )?;
    for (key, x, max) in [
        ("sampling.temperature", c.sampling.temperature, 2.0),
        ("sampling.top_p", c.sampling.top_p, 1.0),
        ("sampling.min_p", c.sampling.min_p, 1.0),
    ] {
        rule(
            (0.0..=max).contains(&x),
            key,
            format!("{x} is not between 0 and {max}"),
        )?;
    }
    let a = &c.admission;
    rule(
        CONFIDENCE.contains(&a.confidence),
        "admission.confidence",
        format!(
            "{} is not between {} and {}",
            a.confidence,
            CONFIDENCE.start(),
            CONFIDENCE.end()
        ),
    )?;
    rule(
        a.mode != AdmissionMode::Static || !a.artifact.as_os_str().is_empty(),
        "admission.artifact",
        "is empty, and admission.mode = \"static\" learns nothing by itself".into(),
    )?;
    rule(
        a.trace_bytes_max >= TRACE_BYTES_MIN,
        "admission.trace_bytes_max",
        format!("{} is less than {TRACE_BYTES_MIN}", a.trace_bytes_max),
    )?;
    at_least_1("admission.learn_completions", a.learn_completions as u64)?;
    rule(
        c.fake.length_min >= 1 && c.fake.length_min <= c.fake.length_max,
        "fake.length_min",
        format!("{} is not between 1 and fake.length_max", c.fake.length_min),
    )?;
    for (key, x) in [
        ("fake.step_us", c.fake.step_us),
        ("fake.prefill_token_us", c.fake.prefill_token_us),
        ("fake.decode_seq_us", c.fake.decode_seq_us),
        ("fake.cached_token_us", c.fake.cached_token_us),
        ("fake.length_log_sd", c.fake.length_log_sd),
    ] {
        rule(
            x >= 0.0 && x.is_finite(),
            key,
            format!("{x} is not a number of at least 0"),
        )?;
    }
    Ok(())
}

fn scheduler(
    c: &Config,
    rule: impl Fn(bool, &str, String) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let s = &c.scheduler;
    rule(
        (1..=SEQUENCES_MAX).contains(&s.max_running),
        "scheduler.max_running",
        format!(
            "{} is not between 1 and {SEQUENCES_MAX}, llama.cpp's number of sequences",
            s.max_running
        ),
    )?;
    rule(
        s.prefill_budget >= 1,
        "scheduler.prefill_budget",
        format!("{} is less than 1", s.prefill_budget),
    )?;
    rule(
        (0.0..=10.0).contains(&s.lane_slowdown),
        "scheduler.lane_slowdown",
        format!("{} is not between 0 and 10", s.lane_slowdown),
    )?;
    let rows = if s.policy == PolicyName::Fifo {
        1
    } else {
        s.max_running
    };
    rule(
        u64::from(s.prefill_budget) + u64::from(rows) <= u64::from(c.runner.n_batch),
        "scheduler.prefill_budget",
        format!(
            "{} prompt tokens and {rows} decode rows do not fit into runner.n_batch = {}",
            s.prefill_budget, c.runner.n_batch
        ),
    )
}
