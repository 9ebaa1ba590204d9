//! Whether a sequence's tokens depend on what else is in its batch, and on how its prompt was cut.
//!
//! Under teacher forcing: each sequence is first continued greedily alone, then fed the same tokens in other
//! company, and the most likely token is compared position by position. Free-running texts would count one
//! near-tie as a disagreement for the rest of the reply.
//!
//! Two computations of the same position are either identical or apart by the noise of the activations'
//! quantisation (a quarter of a logit on average), however small the difference that they began with: one
//! rounding that falls the other way moves others in the next layer. What begins it is the attention of
//! llama.cpp's CPU backend, which has one kernel for 64 tokens and more, one for a single token after 512
//! cells, and one for all else — if keys and values are `f16` or `f32`. For other types it has one for all, and
//! there the logits of the default model are the same bit for bit in any company.

use cadenced::config::KvType;
use cadenced::ids::{SeqId, TokenId};
use cadenced::model::llama::LlamaBackend;
use cadenced::model::{BatchRow, ModelBackend as _};

use crate::agreement::{AGREEMENT, AGREEMENT_OF_FEW, AGREEMENT_WITH_NEAR_TIES, Tally, best};
use crate::support::{InProcess, gemma, smollm2, turn, user};

const QUESTIONS: [&str; 20] = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List five fruits.",
    "Who wrote Hamlet?",
    "How do I boil an egg?",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 12?",
    "Write a Python function that adds two numbers.",
    "Name three planets and say one thing about each.",
    "Why is the sky blue?",
    "Tell me a short story about a fox.",
    "What is a prime number?",
    "Give me a recipe for pancakes.",
    "Summarise the plot of Romeo and Juliet.",
    "What are the primary colours?",
    "Describe winter in two sentences.",
    "How does a bicycle stay upright?",
    "Write a polite e-mail that declines an invitation.",
    "What does HTTP stand for?",
];

/// A sequence continued greedily alone, with the logits at each position of its reply.
pub struct Alone {
    pub prompt: Vec<TokenId>,
    pub reply: Vec<TokenId>,
    pub logits: Vec<Vec<f32>>,
}

/// Feeds `tokens` to a sequence in pieces of `piece`; the logits after the last one can be read then.
pub fn feed(
    backend: &mut LlamaBackend,
    seq: SeqId,
    start: usize,
    tokens: &[TokenId],
    piece: usize,
) {
    let end = start + tokens.len();
    let mut position = start;
    for tokens in tokens.chunks(piece) {
        let logits = position + tokens.len() == end;
        let row = BatchRow {
            seq,
            position: position as u32,
            tokens,
            logits,
        };
        backend.decode(&[row]).expect("a decode");
        position += tokens.len();
    }
}

/// Continues a prompt as sequence 0, of which nothing is left then.
pub fn alone(backend: &mut LlamaBackend, prompt: Vec<TokenId>, length: usize) -> Alone {
    let (mut reply, mut logits) = (Vec::new(), Vec::new());
    feed(backend, SeqId(0), 0, &prompt, 512);
    loop {
        logits.push(backend.logits(0).to_vec());
        reply.push(TokenId(best(backend.logits(0)).0 as i32));
        if reply.len() == length {
            backend.remove(SeqId(0), 0);
            return Alone {
                prompt,
                reply,
                logits,
            };
        }
        feed(
            backend,
            SeqId(0),
            prompt.len() + reply.len() - 1,
            &reply[reply.len() - 1..],
            1,
        );
    }
}

/// Computes all of `group` in shared batches as the scheduler would: a newcomer joins every `stagger` steps
/// with a piece of its prompt, those that have had theirs decode on.
fn together(backend: &mut LlamaBackend, group: &[Alone], stagger: usize, tally: &mut Tally) {
    const PIECE: usize = 48;
    let mut fed = vec![0_usize; group.len()];
    for step in 0.. {
        let (mut rows, mut due) = (Vec::new(), Vec::new());
        for (i, s) in group
            .iter()
            .enumerate()
            .filter(|(i, _)| step >= stagger * i)
        {
            let (at, prompt) = (fed[i], s.prompt.len());
            let tokens = match at.checked_sub(prompt) {
                None => &s.prompt[at..prompt.min(at + PIECE)],
                Some(n) if n + 1 < s.reply.len() => &s.reply[n..=n],
                Some(_) => continue,
            };
            fed[i] += tokens.len();
            let logits = fed[i] >= prompt;
            rows.push(BatchRow {
                seq: SeqId(i as u32),
                position: at as u32,
                tokens,
                logits,
            });
            due.push(logits.then(|| &s.logits[fed[i] - prompt]));
        }
        if rows.is_empty() {
            break;
        }
        backend.decode(&rows).expect("a decode");
        for (row, expected) in due.iter().enumerate() {
            if let Some(expected) = expected {
                tally.take(expected, backend.logits(row));
            }
        }
    }
    for i in 0..group.len() {
        backend.remove(SeqId(i as u32), 0);
    }
}

/// Compares `prompts` alone with the same in batches of up to ten: all at once, and one after another.
fn company(model: &InProcess, kv_type: KvType, prompts: &[String], length: usize) -> [Tally; 2] {
    let mut backend = model.backend(8192, 10, kv_type);
    let mut tallies = [Tally::default(), Tally::default()];
    for group in prompts.chunks(10) {
        let alone = |prompt: &String| alone(&mut backend, model.encode(&user(prompt)), length);
        let group: Vec<Alone> = group.iter().map(alone).collect();
        for (tally, stagger) in tallies.iter_mut().zip([0, 2]) {
            together(&mut backend, &group, stagger, tally);
        }
    }
    tallies
}

fn questions(n: usize) -> Vec<String> {
    QUESTIONS[..n].iter().map(|q| (*q).to_owned()).collect()
}

/// A sequence computed among nine others gets the tokens that it gets alone; near-ties can turn where many
/// prompts in one batch make it use the other kernel.
#[test]
fn company_does_not_change_the_tokens() {
    let _turn = turn();
    let [at_once, one_by_one] = company(&smollm2(), KvType::F16, &questions(20), 40);
    at_once.check(
        "smollm2, f16, ten prompts at once",
        AGREEMENT_WITH_NEAR_TIES,
    );
    one_by_one.check("smollm2, f16, ten prompts one by one", AGREEMENT);
}

/// With keys and values for which there is one kernel, not even near-ties turn.
#[test]
fn company_changes_nothing_with_a_quantised_cache() {
    let _turn = turn();
    let [at_once, one_by_one] = company(&smollm2(), KvType::Q8_0, &questions(10), 24);
    at_once.check("smollm2, q8_0, ten prompts at once", AGREEMENT);
    one_by_one.check("smollm2, q8_0, ten prompts one by one", AGREEMENT);
}

/// The same with a sliding window of 512 tokens, and prompts that are longer.
#[test]
fn company_does_not_change_the_tokens_beyond_a_sliding_window() {
    let _turn = turn();
    let background =
        "Here is some background that you may want to read before you answer. ".repeat(40);
    let prompts: Vec<String> = QUESTIONS[..3]
        .iter()
        .map(|q| format!("{background}{q}"))
        .collect();
    assert!(gemma().count(&prompts[0]) > 550);
    let [at_once, one_by_one] = company(&gemma(), KvType::F16, &prompts, 12);
    at_once.check(
        "gemma, f16, three long prompts at once",
        AGREEMENT_WITH_NEAR_TIES,
    );
    one_by_one.check(
        "gemma, f16, three long prompts one by one",
        AGREEMENT_WITH_NEAR_TIES,
    );
}

/// However the prompt is cut, the tokens after it are those after the whole prompt at once.
#[test]
fn a_prompt_in_pieces_is_the_same_prompt() {
    let _turn = turn();
    let model = smollm2();
    for (kv_type, agreement) in [(KvType::F16, AGREEMENT_OF_FEW), (KvType::Q8_0, AGREEMENT)] {
        let mut backend = model.backend(1024, 2, kv_type);
        let mut tallies = [16, 17, 64, 256].map(|piece| (piece, Tally::default()));
        for some in QUESTIONS[..6].chunks(2) {
            let text = format!("Answer both of these.\n{}\n", some.join("\n")).repeat(13);
            let whole = alone(&mut backend, model.encode(&user(&text)), 8);
            assert!(
                (257..900).contains(&whole.prompt.len()),
                "{}",
                whole.prompt.len()
            );
            for (piece, tally) in &mut tallies {
                feed(&mut backend, SeqId(0), 0, &whole.prompt, *piece);
                for (n, expected) in whole.logits.iter().enumerate() {
                    tally.take(expected, backend.logits(0));
                    let at = whole.prompt.len() + n;
                    feed(&mut backend, SeqId(0), at, &whole.reply[n..=n], 1);
                }
                backend.remove(SeqId(0), 0);
            }
        }
        for (piece, tally) in &tallies {
            tally.check(
                &format!("smollm2, {kv_type:?}, a prompt in pieces of {piece}"),
                agreement,
            );
        }
    }
}
