//! llama.cpp's own tokenizer as its C interface has it, for comparison.

use std::ffi::CString;

use cadenced::ids::TokenId;

/// A model of which only the vocabulary is loaded; it lives as long as the process.
pub struct Tokenizer {
    vocab: *const llama_cpp_sys_2::llama_vocab,
}

impl Tokenizer {
    pub fn load(path: &str) -> Self {
        let path = CString::new(path).expect("a path without NUL");
        // SAFETY: a plain struct of defaults; the path is NUL-terminated and outlives the call. The model is
        // never freed, so its vocabulary stays valid.
        let vocab = unsafe {
            let mut params = llama_cpp_sys_2::llama_model_default_params();
            params.vocab_only = true;
            let model = llama_cpp_sys_2::llama_model_load_from_file(path.as_ptr(), params);
            assert!(!model.is_null(), "the vocabulary does not load");
            llama_cpp_sys_2::llama_model_get_vocab(model)
        };
        Self { vocab }
    }

    /// The tokens of a text in which control tokens count as such, with what the model puts before any text.
    pub fn tokenize(&self, text: &str) -> Vec<TokenId> {
        let mut tokens = vec![0; text.len() + 8];
        // SAFETY: the vocabulary is valid, and both lengths are those of what the pointers point to.
        let n = unsafe {
            llama_cpp_sys_2::llama_tokenize(
                self.vocab,
                text.as_ptr().cast(),
                text.len() as i32,
                tokens.as_mut_ptr(),
                tokens.len() as i32,
                true,
                true,
            )
        };
        tokens.truncate(usize::try_from(n).expect("room for all tokens"));
        tokens.into_iter().map(TokenId).collect()
    }
}
