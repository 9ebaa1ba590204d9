//! Replies as they were generated, so that the next turn of a conversation finds their KV.
//!
//! A client sends a reply back as text, and text can be tokenized in more ways than one: what the model
//! sampled need not be what the tokenizer makes of it. The prefix cache knows the tokens that were computed.
//! So the prompt of a later turn has the tokenizer's choice replaced by the model's, where the prompt before
//! it and the reply's text are exactly those of a reply given here. The text of the prompt stays the same.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::vocab::Vocab;
use crate::ids::TokenId;

/// Tokens remembered altogether, prompts included: 4 MB of them.
const TOKENS_MAX: usize = 1 << 20;

/// See the module's text. The lock is held for one look-up or one entry at a time.
#[derive(Debug, Default)]
pub struct Transcripts(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By the hash of the prompt; the last reply to it.
    replies: HashMap<u64, Arc<Reply>>,
    /// The same hashes, the oldest first.
    order: VecDeque<u64>,
    tokens: usize,
}

#[derive(Debug)]
struct Reply {
    prompt: Arc<[TokenId]>,
    text: Vec<u8>,
    tokens: Vec<TokenId>,
}

impl Reply {
    fn len(&self) -> usize {
        self.prompt.len() + self.tokens.len()
    }
}

/// The hash of a prompt, token by token.
#[derive(Clone, Copy)]
struct Rolling(u64);

impl Rolling {
    fn push(&mut self, token: TokenId) {
        self.0 = (self.0 ^ token.0 as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29);
    }
}

impl Transcripts {
    /// Remembers a reply. One that says nothing, or ends within a character, is none.
    pub fn remember(&self, prompt: &Arc<[TokenId]>, reply: &[TokenId], vocab: &Vocab) {
        let tokens: Vec<TokenId> = reply
            .iter()
            .copied()
            .filter(|t| !vocab.is_eog(*t))
            .collect();
        let text: Vec<u8> = tokens
            .iter()
            .flat_map(|t| vocab.piece(*t))
            .copied()
            .collect();
        if text.is_empty() || std::str::from_utf8(&text).is_err() {
            return;
        }
        let mut hash = Rolling(0);
        prompt.iter().for_each(|t| hash.push(*t));
        let reply = Arc::new(Reply {
            prompt: Arc::clone(prompt),
            text,
            tokens,
        });
        let inner = &mut *self.lock();
        inner.tokens += reply.len();
        match inner.replies.insert(hash.0, reply) {
            Some(old) => inner.tokens -= old.len(),
            None => inner.order.push_back(hash.0),
        }
        while inner.tokens > TOKENS_MAX
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.tokens -= inner.replies.remove(&oldest).map_or(0, |r| r.len());
        }
    }

    /// The prompt with the replies in it as they were generated.
    #[must_use]
    pub fn recall(&self, prompt: Vec<TokenId>, vocab: &Vocab) -> Vec<TokenId> {
        if self.lock().replies.is_empty() {
            return prompt;
        }
        let mut recalled = Vec::with_capacity(prompt.len());
        let (mut hash, mut at) = (Rolling(0), 0);
        while at < prompt.len() {
            let known = self.get(hash).filter(|r| *r.prompt == *recalled);
            let said = known.and_then(|r| {
                let n = spoken(&prompt[at..], &r.text, vocab)?;
                Some((r, n))
            });
            let tokens = match &said {
                Some((reply, n)) => {
                    at += n;
                    &reply.tokens[..]
                }
                None => {
                    at += 1;
                    &prompt[at - 1..at]
                }
            };
            tokens.iter().for_each(|t| hash.push(*t));
            recalled.extend_from_slice(tokens);
        }
        recalled
    }

    /// The last reply to a prompt of this hash.
    fn get(&self, prompt: Rolling) -> Option<Arc<Reply>> {
        self.lock().replies.get(&prompt.0).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of the first tokens are exactly `text`.
fn spoken(tokens: &[TokenId], text: &[u8], vocab: &Vocab) -> Option<usize> {
    let mut rest = text;
    for (i, token) in tokens.iter().enumerate() {
        if rest.is_empty() {
            return Some(i);
        }
        rest = rest.strip_prefix(vocab.piece(*token))?;
        // A control token is no text, wherever it stands.
        if vocab.piece(*token).is_empty() {
            return None;
        }
    }
    // A reply at the very end of a prompt is not one that the client has closed.
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::vocab::VocabBuilder;

    /// `a`, `b`, `ab`, an end.
    fn vocab() -> Vocab {
        let mut b = VocabBuilder::with_capacity(4);
        for piece in ["a", "b", "ab"] {
            b.push(piece.as_bytes());
        }
        let end = b.push_control("<end>");
        b.mark_eog(end);
        b.build()
    }

    const A: TokenId = TokenId(0);
    const B: TokenId = TokenId(1);
    const AB: TokenId = TokenId(2);
    const END: TokenId = TokenId(3);

    #[test]
    fn a_reply_comes_back_as_it_was_generated() {
        let (t, vocab) = (Transcripts::default(), vocab());
        let prompt: Arc<[TokenId]> = vec![B, END].into();
        t.remember(&prompt, &[A, B, A, END], &vocab);
        let next = vec![B, END, AB, A, END, B, END];
        assert_eq!(t.recall(next, &vocab), [B, END, A, B, A, END, B, END]);
        // And so does the one after it, whose prompt has the first one in it.
        let second: Arc<[TokenId]> = vec![B, END, A, B, A, END, B, END].into();
        t.remember(&second, &[A, B], &vocab);
        let next = vec![B, END, AB, A, END, B, END, AB, END];
        assert_eq!(
            t.recall(next, &vocab),
            [B, END, A, B, A, END, B, END, A, B, END]
        );
    }

    #[test]
    fn another_prompt_or_another_text_is_left_alone() {
        let (t, vocab) = (Transcripts::default(), vocab());
        t.remember(&vec![B, END].into(), &[A, B, END], &vocab);
        for other in [
            vec![A, END, AB, END],
            vec![B, END, AB, A, B, END],
            vec![B, END, A, END, B],
            vec![B, END, AB],
            vec![],
        ] {
            let said = t.recall(other.clone(), &vocab);
            let text = |p: &[TokenId]| -> Vec<u8> {
                p.iter().flat_map(|t| vocab.piece(*t)).copied().collect()
            };
            assert_eq!(text(&said), text(&other), "{other:?}");
        }
        assert_eq!(
            t.recall(vec![A, END, AB, END], &vocab),
            [A, END, AB, END],
            "a reply to another prompt"
        );
        assert_eq!(
            t.recall(vec![B, END, AB], &vocab),
            [B, END, AB],
            "not closed"
        );
    }

    #[test]
    fn what_says_nothing_is_not_remembered() {
        let (t, vocab) = (Transcripts::default(), vocab());
        t.remember(&vec![B].into(), &[END], &vocab);
        assert_eq!(t.recall(vec![B, END], &vocab), [B, END]);
        assert!(t.0.lock().unwrap().replies.is_empty());
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let (t, vocab) = (Transcripts::default(), vocab());
        for i in 0..5 {
            let prompt: Arc<[TokenId]> =
                vec![if i == 0 { A } else { B }; TOKENS_MAX / 4 + i].into();
            t.remember(&prompt, &[A, B], &vocab);
        }
        let inner = t.0.lock().unwrap();
        assert!(inner.tokens <= TOKENS_MAX);
        assert_eq!((inner.replies.len(), inner.order.len()), (3, 3));
        assert!(inner.replies.values().all(|r| r.prompt[0] == B));
    }
}
