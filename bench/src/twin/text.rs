//! Prompts without words: tokens that differ where the texts do and agree where the texts agree, which is all that
//! a prefix cache sees of them. A token is a function of who says it and of its place, so a conversation's next
//! turn begins as the turn before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cadenced::ids::TokenId;
use cadenced::model::fake::VOCAB;

use super::engine::Request;

/// What a prompt is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Text {
    /// Whose beginning it has; others with the same head share its first `head_tokens` tokens.
    pub head: u64,
    pub head_tokens: u32,
    /// Whose the rest is: the request's own, or its conversation's.
    pub own: u64,
}

/// The reply is nobody's: histories do not hold what was answered.
const REPLY: u64 = 0x5EED_4E91;

impl Text {
    /// The prompt of `prompt_tokens` tokens, and so many tokens of the reply to it.
    pub fn tokens(&self, prompt_tokens: u32, generated: u32) -> Arc<[TokenId]> {
        let prompt = (0..prompt_tokens).map(|i| match i < self.head_tokens {
            true => token(self.head, i),
            false => token(!self.own, i),
        });
        let reply = (0..generated).map(|i| token(self.own ^ REPLY, prompt_tokens + i));
        prompt.chain(reply).collect()
    }
}

/// How many tokens of each prompt another of these has as well, all but its last one at most: what a cache could
/// have at best.
pub fn shared_tokens(requests: &[Request]) -> Vec<u32> {
    let mut heads: BTreeMap<u64, usize> = BTreeMap::new();
    // The two longest prompts of each conversation.
    let mut own: BTreeMap<(u64, u64), [u32; 2]> = BTreeMap::new();
    for r in requests {
        *heads.entry(r.text.head).or_default() += 1;
        let longest = own.entry((r.text.head, r.text.own)).or_default();
        if r.prompt_tokens > longest[0] {
            *longest = [r.prompt_tokens, longest[0]];
        } else {
            longest[1] = longest[1].max(r.prompt_tokens);
        }
    }
    let of = |r: &Request| {
        let [first, second] = own[&(r.text.head, r.text.own)];
        let other = if r.prompt_tokens == first {
            second
        } else {
            first
        };
        let head = if heads[&r.text.head] > 1 {
            r.text.head_tokens
        } else {
            0
        };
        other.max(head).min(r.prompt_tokens - 1)
    };
    requests.iter().map(of).collect()
}

/// The finaliser of splitmix64 over both.
fn token(key: u64, place: u32) -> TokenId {
    let mut x = key.wrapping_add(u64::from(place).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    // As the fake's: none is a word of a reply.
    TokenId(VOCAB + 1 + ((x ^ (x >> 31)) >> 34) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::arrivals::Extent;
    use crate::load::mix::Mix;
    use crate::load::prompts::{Prompts, Style};
    use crate::twin::arrivals::{Answers, Offer};

    fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
        a.iter().zip(b).take_while(|(x, y)| x == y).count()
    }

    /// The tokens agree as far as the words do, for any two requests of a mix.
    #[test]
    fn tokens_agree_where_the_texts_do() {
        let prompts = Prompts::default();
        for mix in [
            Mix::Standard,
            Mix::MultiTurn,
            Mix::Agent,
            Mix::Short,
            Mix::Uniform,
        ] {
            let offer = Offer {
                mix,
                answers: Answers::Capped,
                rate: 1.0,
                extent: Extent::Requests(60),
                seed: 1,
                observed: BTreeMap::new(),
            };
            let bodies: Vec<Vec<u8>> = offer
                .asks()
                .map(|(_, ask)| prompts.body(&ask, &Style::default()).into_bytes())
                .collect();
            let tokens: Vec<_> = offer
                .requests()
                .iter()
                .map(|r| r.text.tokens(r.prompt_tokens, 0))
                .collect();
            // What can be shared is what is shared with anybody.
            let most = |i: usize| {
                let others = (0..60).filter(|j| *j != i);
                let common = others.map(|j| common(&tokens[i], &tokens[j])).max();
                common.unwrap_or(0).min(tokens[i].len() - 1) as u32
            };
            let expected: Vec<u32> = (0..60).map(most).collect();
            assert_eq!(shared_tokens(&offer.requests()), expected, "{mix:?}");
            let mut shared = 0;
            for i in 0..60 {
                for j in 0..i {
                    let (words, tokens) = (
                        common(&bodies[i], &bodies[j]),
                        common(&tokens[i], &tokens[j]),
                    );
                    // About five letters a token; what all bodies begin with and one question are no prefix.
                    assert_eq!(
                        words > 400,
                        tokens > 64,
                        "{mix:?} {i} {j}: {words} letters, {tokens} tokens"
                    );
                    shared += usize::from(tokens > 64);
                }
            }
            let shares = !matches!(mix, Mix::Short | Mix::Uniform);
            assert_eq!(shared > 100, shares, "{mix:?}: {shared}");
        }
    }

    #[test]
    fn a_reply_goes_on_where_the_prompt_ends_and_is_no_history() {
        let text = Text {
            head: 1,
            head_tokens: 10,
            own: 7,
        };
        let prompt = text.tokens(30, 0);
        assert_eq!(text.tokens(30, 5)[..30], prompt[..]);
        assert_eq!(common(&text.tokens(30, 5), &text.tokens(40, 0)), 30);
        assert_eq!(common(&prompt, &Text { own: 8, ..text }.tokens(30, 0)), 10);
    }
}
