//! llama.cpp's own quantiser: makes a model file of another format from one that it can read.

use std::ffi::CString;
use std::path::Path;

use anyhow::{Context as _, bail};

/// Writes `source` as Q4_0 to `target`. The same input and llama.cpp give the same bytes.
///
/// # Errors
/// When llama.cpp refuses the file or can't write.
pub fn to_q4_0(source: &Path, target: &Path) -> anyhow::Result<()> {
    super::llama::library()?;
    let c_path = |path: &Path| {
        CString::new(path.as_os_str().as_encoded_bytes()).context("a path with a NUL byte")
    };
    let (from, to) = (c_path(source)?, c_path(target)?);
    super::llama_log::take();
    // SAFETY: a plain struct of defaults, whose pointers are null.
    let mut params = unsafe { llama_cpp_sys_2::llama_model_quantize_default_params() };
    params.ftype = llama_cpp_sys_2::LLAMA_FTYPE_MOSTLY_Q4_0;
    // The source is quantised already; what that costs in quality is measured in bench/README.md.
    params.allow_requantize = true;
    // SAFETY: both paths are NUL-terminated and outlive the call, and so does `params`.
    let code = unsafe {
        llama_cpp_sys_2::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params)
    };
    if code != 0 {
        let why = super::llama_log::take()
            .last_error
            .unwrap_or_else(|| format!("code {code}"));
        bail!("llama.cpp's quantiser: {why}");
    }
    Ok(())
}
