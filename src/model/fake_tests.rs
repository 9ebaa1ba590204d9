use super::*;
use crate::logic::scheduler::step::RowResult;
use crate::model::sampling::{Sampler, SamplingParams};
use crate::model::step::{SampledRow, run_rows};

fn defaults() -> Config {
    Config::load(None, [], &crate::config::Flags::default()).unwrap()
}

fn config() -> FakeConfig {
    defaults().fake
}

fn fake(fake: FakeConfig) -> FakeBackend {
    FakeBackend::new(&Config { fake, ..defaults() })
}

const GREEDY: SamplingParams = SamplingParams {
    temperature: 0.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    seed: 0,
};

fn prompt(words: &[i32]) -> Vec<TokenId> {
    words.iter().map(|w| TokenId(VOCAB + 1 + w)).collect()
}

fn row<'a>(seq: u32, position: u32, tokens: &'a [TokenId], index: u32) -> SampledRow<'a> {
    let batch = BatchRow {
        seq: SeqId(seq),
        position,
        tokens,
        logits: true,
    };
    SampledRow {
        batch,
        sample: Some((index, &GREEDY)),
    }
}

/// Generates a reply alone.
fn reply(backend: &mut FakeBackend, seq: u32, prompt: &[TokenId]) -> Vec<TokenId> {
    let (mut sampler, mut results) = (Sampler::default(), Vec::new());
    let mut said = Vec::new();
    let (mut position, mut tokens) = (0, prompt.to_vec());
    loop {
        let rows = [row(seq, position, &tokens, said.len() as u32)];
        run_rows(backend, &mut sampler, &rows, &mut results);
        let RowResult::Sampled(token) = results[0] else {
            panic!("{results:?}")
        };
        if token == EOG {
            return said;
        }
        said.push(token);
        position += tokens.len() as u32;
        tokens = vec![token];
    }
}

#[test]
fn a_reply_depends_on_its_prompt_alone() {
    let (a, b) = (prompt(&[1, 2, 3]), prompt(&[1, 2, 4]));
    let mut backend = fake(config());
    let alone = reply(&mut backend, 0, &a);
    assert!((16..=512).contains(&alone.len()));
    assert_ne!(alone, reply(&mut backend, 1, &b));
    backend.remove(SeqId(0), 0);
    assert_eq!(
        alone,
        reply(&mut backend, 0, &a),
        "again, under a reused id"
    );
    // In chunks.
    backend.remove(SeqId(2), 0);
    let rows = [BatchRow {
        seq: SeqId(2),
        position: 0,
        tokens: &a[..2],
        logits: false,
    }];
    backend.decode(&rows).unwrap();
    let (mut sampler, mut results) = (Sampler::default(), Vec::new());
    run_rows(
        &mut backend,
        &mut sampler,
        &[row(2, 2, &a[2..], 0)],
        &mut results,
    );
    assert_eq!(results, [RowResult::Sampled(alone[0])]);
}

#[test]
fn lengths_are_lognormal_within_their_bounds() {
    let c = config();
    let mut lengths: Vec<u32> = (0..10_000).map(|h| reply_length(&c, mix(h))).collect();
    lengths.sort_unstable();
    let median = f64::from(lengths[5000]);
    assert!(
        (92.0..108.0).contains(&median),
        "exp(4.6) is about 99.5: {median}"
    );
    assert!(lengths[0] >= 16 && lengths[9999] == 512);
}

#[test]
fn costs_follow_the_formula() {
    let mut backend = fake(FakeConfig {
        step_us: 100.0,
        prefill_token_us: 10.0,
        decode_seq_us: 7.0,
        cached_token_us: 0.5,
        ..config()
    });
    let p = prompt(&[1, 2, 3, 4]);
    backend
        .decode(&[BatchRow {
            seq: SeqId(0),
            position: 0,
            tokens: &p,
            logits: true,
        }])
        .unwrap();
    assert_eq!(backend.take_delay(), Duration::from_micros(140));
    assert_eq!(backend.take_delay(), Duration::ZERO);
    let q = prompt(&[5, 6]);
    let rows = [
        BatchRow {
            seq: SeqId(0),
            position: 4,
            tokens: &[TokenId(3)],
            logits: true,
        },
        BatchRow {
            seq: SeqId(1),
            position: 0,
            tokens: &q,
            logits: false,
        },
    ];
    backend.decode(&rows).unwrap();
    assert_eq!(
        backend.take_delay(),
        Duration::from_micros(100 + 7 + 2 + 20)
    );
}

/// In a batch of five, the third is marked: it alone fails, the others get what they get without it.
#[test]
fn a_refused_batch_is_split_until_the_one_to_blame_stands_alone() {
    for (fault, code) in [(Fault::NoRoom, 1), (Fault::Invalid, -1)] {
        let mut backend = fake(FakeConfig {
            fault,
            fault_at_token: 0,
            ..config()
        });
        let prompts: Vec<Vec<TokenId>> = (0..5).map(|i| prompt(&[i, 7])).collect();
        let marked = [prompt(&[2]), vec![FAULT]].concat();
        let (mut sampler, mut results) = (Sampler::default(), Vec::new());
        // The first chunk carries the mark; the fault strikes at the second.
        backend
            .decode(&[BatchRow {
                seq: SeqId(2),
                position: 0,
                tokens: &marked,
                logits: false,
            }])
            .unwrap();
        let second = prompt(&[9]);
        let rows: Vec<SampledRow<'_>> = (0..5)
            .map(|i| {
                if i == 2 {
                    row(2, 2, &second, 0)
                } else {
                    row(i, 0, &prompts[i as usize], 0)
                }
            })
            .collect();
        run_rows(&mut backend, &mut sampler, &rows, &mut results);
        assert_eq!(results[2], RowResult::Failed(code));
        assert_eq!(
            backend.cells[&SeqId(2)].tokens,
            marked,
            "what it had before is whole, for others may share it"
        );
        for i in [0, 1, 3, 4] {
            let mut alone = fake(config());
            let mut expected = Vec::new();
            run_rows(
                &mut alone,
                &mut sampler,
                &[row(0, 0, &prompts[i], 0)],
                &mut expected,
            );
            assert_eq!(results[i], expected[0], "row {i}");
        }
    }
}

#[test]
fn a_hole_in_a_sequence_is_refused() {
    let mut backend = fake(config());
    let p = prompt(&[1]);
    let rows = [BatchRow {
        seq: SeqId(0),
        position: 3,
        tokens: &p,
        logits: true,
    }];
    assert_eq!(backend.decode(&rows), Err(DecodeCode(-1)));
}

#[test]
fn the_marker_marks_only_prompts_that_contain_it() {
    let encoder = FakeEncoder {
        fault_marker: "BOOM".into(),
    };
    let with = encoder
        .encode_chat(&serde_json::json!([{"content": "a BOOM b"}]), None)
        .unwrap();
    let without = encoder
        .encode_chat(&serde_json::json!([{"content": "a b"}]), None)
        .unwrap();
    assert_eq!(with.last(), Some(&FAULT));
    assert!(!without.contains(&FAULT));
}
