//! llama.cpp's log: passed on to tracing, and read for the facts that its API does not offer — why a load
//! failed, how large the buffers are, whether flash attention was chosen.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

/// What was read since the last [`take`].
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Facts {
    pub last_error: Option<String>,
    pub compute_bytes: u64,
    pub kv_bytes: u64,
    /// What `auto` was resolved to; `None` if it was not asked.
    pub flash_attention: Option<bool>,
    /// Whether all sequences share one pool.
    unified: bool,
}

static FACTS: Mutex<Facts> = Mutex::new(Facts {
    last_error: None,
    compute_bytes: 0,
    kv_bytes: 0,
    flash_attention: None,
    unified: false,
});

/// Routes the log here.
pub fn install() {
    // SAFETY: the callback is a static function that needs no user data, and stays valid for ever.
    unsafe { llama_cpp_sys_2::llama_log_set(Some(on_line), std::ptr::null_mut()) }
}

/// The facts read so far, and a fresh start.
pub fn take() -> Facts {
    std::mem::take(&mut *FACTS.lock().unwrap_or_else(PoisonError::into_inner))
}

unsafe extern "C" fn on_line(
    level: llama_cpp_sys_2::ggml_log_level,
    text: *const c_char,
    _: *mut c_void,
) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives for the length of the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = text.trim();
    if line.is_empty() || line == "." {
        return;
    }
    let error = level == llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR;
    let expected = {
        let mut facts = FACTS.lock().unwrap_or_else(PoisonError::into_inner);
        read(&mut facts, line, error);
        is_expected(&facts, line)
    };
    match level {
        _ if expected => tracing::debug!(target: "llama.cpp", "{line}"),
        llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR => tracing::error!(target: "llama.cpp", "{line}"),
        llama_cpp_sys_2::GGML_LOG_LEVEL_WARN => tracing::warn!(target: "llama.cpp", "{line}"),
        // llama.cpp's "info" is what a developer of it wants to see.
        _ => tracing::debug!(target: "llama.cpp", "{line}"),
    }
}

fn read(facts: &mut Facts, line: &str, error: bool) {
    // The first error is the cause; those after it say that something failed because of it.
    if error && facts.last_error.is_none() {
        facts.last_error = Some(
            line.split_once(": ")
                .map_or(line, |(_, rest)| rest)
                .to_owned(),
        );
    }
    let mib = |key: &str| -> Option<u64> {
        let rest = line.split_once(key)?.1.trim_start();
        let number = rest.split_whitespace().next()?.parse::<f64>().ok()?;
        Some((number * f64::from(1 << 20)) as u64)
    };
    facts.compute_bytes += mib("compute buffer size =").unwrap_or(0);
    facts.kv_bytes += mib("KV buffer size =").unwrap_or(0);
    if line.ends_with("Flash Attention enabled") {
        facts.flash_attention = Some(true);
    } else if line.contains("Flash Attention not supported")
        || line.contains("flash_attn is not compatible")
    {
        facts.flash_attention = Some(false);
    }
    facts.unified |= line.contains("kv_unified") && line.ends_with("true");
}

/// Whether a warning is about what is meant: a pool that all sequences share is longer than the context that the model
/// was trained on, which bounds each request all the same.
fn is_expected(facts: &Facts, line: &str) -> bool {
    facts.unified && line.contains("n_ctx_seq (") && line.contains("> n_ctx_train (")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_off_the_lines_that_llama_cpp_prints() {
        let mut f = Facts::default();
        read(
            &mut f,
            "llama_context:        CPU compute buffer size =    98.25 MiB",
            false,
        );
        read(
            &mut f,
            "llama_kv_cache:        CPU KV buffer size =   360.00 MiB",
            false,
        );
        read(&mut f, "resolve_fused_ops: Flash Attention enabled", false);
        read(
            &mut f,
            "llama_model_load: error loading model: tensor 'x' is not within the file bounds",
            true,
        );
        read(
            &mut f,
            "llama_model_load_from_file_impl: failed to load model",
            true,
        );
        assert_eq!(f.compute_bytes, 103_022_592);
        assert_eq!(f.kv_bytes, 360 << 20);
        assert_eq!(f.flash_attention, Some(true));
        assert_eq!(
            f.last_error.as_deref(),
            Some("error loading model: tensor 'x' is not within the file bounds")
        );
    }

    #[test]
    fn a_shared_pool_longer_than_the_trained_context_is_expected() {
        let warning = "llama_context: n_ctx_seq (16384) > n_ctx_train (8192) -- possible training context overflow";
        let mut f = Facts::default();
        read(
            &mut f,
            "llama_context: kv_unified            = false",
            false,
        );
        assert!(!is_expected(&f, warning));
        read(&mut f, "llama_context: kv_unified            = true", false);
        assert!(is_expected(&f, warning));
        assert!(!is_expected(
            &f,
            "llama_context: n_ctx is not divisible by n_seq_max"
        ));
    }
}
