//! `Vocab`: what the daemon needs to know of a model's vocabulary, as plain data.
//!
//! It is read from the model once, by [`VocabBuilder`], and then shared by `Arc` with whoever
//! turns tokens into text; the model itself stays with the thread that runs it. All pieces lie in
//! one arena, token `i` between `offsets[i]` and `offsets[i + 1]` (the layout of a sparse matrix
//! in CSR form, or of an Arrow string column), so a vocabulary of 262,144 tokens is three
//! allocations and some 3 MiB.
//!
//! - [`Vocab::piece`], [`Vocab::is_eog`]: `O(1)`, no allocation; any id is answered.
//! - [`VocabBuilder::push`], [`VocabBuilder::push_control`]: amortised `O(length)`.

use crate::ids::TokenId;

/// The tokens of a model, their text and their roles.
#[derive(Debug, Default)]
pub struct Vocab {
    bytes: Vec<u8>,
    /// One more than there are tokens.
    offsets: Vec<u32>,
    eog: Vec<u64>,
    special_texts: Vec<String>,
    bos: Option<Named>,
    eos: Option<Named>,
    add_bos: bool,
}

#[derive(Debug)]
struct Named {
    id: TokenId,
    text: String,
}

impl Vocab {
    /// The bytes that a token adds to the reply, which need not be whole characters. Empty for
    /// control tokens, which never appear as text, and for ids out of range.
    pub fn piece(&self, token: TokenId) -> &[u8] {
        self.range(token)
            .and_then(|range| self.bytes.get(range))
            .unwrap_or_default()
    }

    fn range(&self, token: TokenId) -> Option<std::ops::Range<usize>> {
        let at = usize::try_from(token.0).ok()?;
        let end = *self.offsets.get(at.checked_add(1)?)?;
        Some(self.offsets[at] as usize..end as usize)
    }

    /// Whether a reply ends with this token.
    pub fn is_eog(&self, token: TokenId) -> bool {
        let word = |at: usize| {
            self.eog
                .get(at / 64)
                .is_some_and(|word| word >> (at % 64) & 1 == 1)
        };
        usize::try_from(token.0).is_ok_and(word)
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The texts that stand for a control token wherever special tokens are parsed.
    pub fn special_texts(&self) -> &[String] {
        &self.special_texts
    }

    pub fn bos(&self) -> Option<TokenId> {
        self.bos.as_ref().map(|bos| bos.id)
    }

    pub fn eos(&self) -> Option<TokenId> {
        self.eos.as_ref().map(|eos| eos.id)
    }

    /// Empty if the model has no beginning-of-sequence token.
    pub fn bos_text(&self) -> &str {
        self.bos.as_ref().map_or("", |bos| &bos.text)
    }

    /// Empty if the model has no end-of-sequence token.
    pub fn eos_text(&self) -> &str {
        self.eos.as_ref().map_or("", |eos| &eos.text)
    }

    /// Whether the model wants a prompt to begin with its beginning-of-sequence token.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }
}

/// Collects a [`Vocab`], token by token in the order of their ids.
pub struct VocabBuilder {
    vocab: Vocab,
}

impl Default for VocabBuilder {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl VocabBuilder {
    /// `tokens` is how many there will be.
    pub fn with_capacity(tokens: usize) -> Self {
        let mut vocab = Vocab::default();
        vocab.offsets.reserve_exact(tokens + 1);
        vocab.offsets.push(0);
        vocab.bytes.reserve(tokens * 8); // pieces are some 6 bytes long on average
        Self { vocab }
    }

    /// The next token, one that appears as text.
    pub fn push(&mut self, piece: &[u8]) -> TokenId {
        let id = self.vocab.len();
        self.vocab.bytes.extend_from_slice(piece);
        // 4 GiB of pieces are no vocabulary; token ids are `i32` in llama.cpp.
        let end =
            u32::try_from(self.vocab.bytes.len()).expect("the pieces of a vocabulary fit in 4 GiB");
        self.vocab.offsets.push(end);
        TokenId(i32::try_from(id).expect("the ids of a vocabulary fit in an i32"))
    }

    /// The next token, one that never appears as text: `text` names it in a chat template.
    pub fn push_control(&mut self, text: &str) -> TokenId {
        if !text.is_empty() {
            self.vocab.special_texts.push(text.to_owned());
        }
        self.push(&[])
    }

    /// Marks a token pushed already as one that ends a reply.
    pub fn mark_eog(&mut self, token: TokenId) {
        let Some(at) = usize::try_from(token.0)
            .ok()
            .filter(|&at| at < self.vocab.len())
        else {
            return;
        };
        if self.vocab.eog.len() <= at / 64 {
            self.vocab.eog.resize(at / 64 + 1, 0);
        }
        self.vocab.eog[at / 64] |= 1 << (at % 64);
    }

    pub fn set_bos(&mut self, id: TokenId, text: &str) {
        self.vocab.bos = Some(Named {
            id,
            text: text.to_owned(),
        });
    }

    pub fn set_eos(&mut self, id: TokenId, text: &str) {
        self.vocab.eos = Some(Named {
            id,
            text: text.to_owned(),
        });
    }

    pub fn set_add_bos(&mut self, add_bos: bool) {
        self.vocab.add_bos = add_bos;
    }

    pub fn build(mut self) -> Vocab {
        // Two ids may share a text; what matters is which texts there are.
        self.vocab.special_texts.sort_unstable();
        self.vocab.special_texts.dedup();
        self.vocab.bytes.shrink_to_fit();
        self.vocab
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small() -> Vocab {
        let mut builder = VocabBuilder::with_capacity(4);
        let bos = builder.push_control("<s>");
        builder.push(b"he");
        builder.push(&[0xe2, 0x82]);
        let eos = builder.push_control("</s>");
        builder.set_bos(bos, "<s>");
        builder.set_eos(eos, "</s>");
        builder.mark_eog(eos);
        builder.set_add_bos(true);
        builder.build()
    }

    #[test]
    fn control_tokens_have_no_piece_but_a_text() {
        let vocab = small();
        assert_eq!(vocab.len(), 4);
        assert_eq!(vocab.piece(TokenId(0)), b"");
        assert_eq!(vocab.piece(TokenId(1)), b"he");
        assert_eq!(vocab.piece(TokenId(2)), [0xe2, 0x82]);
        assert_eq!(vocab.piece(TokenId(3)), b"");
        assert_eq!(vocab.special_texts(), ["</s>", "<s>"]);
        assert_eq!((vocab.bos(), vocab.bos_text()), (Some(TokenId(0)), "<s>"));
        assert_eq!((vocab.eos(), vocab.eos_text()), (Some(TokenId(3)), "</s>"));
        assert!(vocab.add_bos() && vocab.is_eog(TokenId(3)) && !vocab.is_eog(TokenId(1)));
    }

    #[test]
    fn ids_out_of_range_are_empty_and_end_nothing() {
        let vocab = small();
        for id in [-1, 4, 64, i32::MIN, i32::MAX] {
            assert_eq!(vocab.piece(TokenId(id)), b"");
            assert!(!vocab.is_eog(TokenId(id)));
        }
        let mut builder = VocabBuilder::default();
        builder.mark_eog(TokenId(0));
        builder.mark_eog(TokenId(-1));
        let empty = builder.build();
        assert!(empty.is_empty() && !empty.is_eog(TokenId(0)));
        assert_eq!((empty.bos_text(), empty.eos_text()), ("", ""));
    }

    proptest! {
        /// Against the obvious representation, a vector of vectors.
        #[test]
        fn behaves_like_a_list_of_pieces(
            tokens in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..4), any::<bool>(), any::<bool>()), 0..200)
        ) {
            let mut builder = VocabBuilder::with_capacity(tokens.len());
            for (at, (piece, control, eog)) in tokens.iter().enumerate() {
                let id = if *control { builder.push_control("x") } else { builder.push(piece) };
                prop_assert_eq!(id, TokenId(at as i32));
                if *eog {
                    builder.mark_eog(id);
                }
            }
            let vocab = builder.build();
            prop_assert_eq!(vocab.len(), tokens.len());
            prop_assert_eq!(vocab.special_texts().len(), usize::from(tokens.iter().any(|token| token.1)));
            for (at, (piece, control, eog)) in tokens.iter().enumerate() {
                let expected: &[u8] = if *control { &[] } else { piece };
                prop_assert_eq!(vocab.piece(TokenId(at as i32)), expected);
                prop_assert_eq!(vocab.is_eog(TokenId(at as i32)), *eog);
            }
        }
    }
}
