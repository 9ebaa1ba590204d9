//! What is offered: the load generator's arrivals and asks, by the same seeds, with the two sizes that only
//! a server finds out: tokens of the prompt, and tokens that the model would answer.
//!
//! Both sizes are estimates until a run has told them: [`observed()`] takes them from records. Request `i` of
//! a seed asks the same at every rate and of every rung, so any run of that seed will do.

use std::collections::BTreeMap;

use cadenced::model::fake::FakeConfig;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::engine::Request;
use super::text::Text;
use crate::load::arrivals::{Extent, Process, Schedule};
use crate::load::mix::{Ask, Class, Mix, Workload};
use crate::load::prompts::{Beginning, beginning};
use crate::load::record::Record;

/// Of English prose under the vocabularies of today's small models.
const TOKENS_PER_WORD: f64 = 1.25;
/// What a chat template adds.
const TEMPLATE_TOKENS: u32 = 24;
/// Who sends no system message is given one by the default model's template, the same for all: a block of it and more.
const DEFAULT_SYSTEM_TOKENS: u32 = 20;
/// Words of the texts in bench/data: a system prompt, the agent's tools, a question with what stands before
/// it, an agent's call and its result, and an answer in a history.
const SYSTEM_WORDS: u32 = 452;
const TOOLS_WORDS: u32 = 758;
const QUESTION_WORDS: u32 = 14;
const CALL_WORDS: u32 = 20;
const ANSWER_WORDS: u32 = 70;

/// How long answers get when only their caps are known.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// As long as their caps.
    Capped,
    /// As the fake has them: hidden, whatever the cap.
    Hidden(Lengths),
}

/// A lognormal, clipped: the fake's lengths, in tokens.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lengths {
    pub log_mean: f64,
    pub log_sd: f64,
    pub min: u32,
    pub max: u32,
}

impl From<&FakeConfig> for Lengths {
    fn from(fake: &FakeConfig) -> Self {
        Self {
            log_mean: fake.length_log_mean,
            log_sd: fake.length_log_sd,
            min: fake.length_min,
            max: fake.length_max,
        }
    }
}

impl Lengths {
    /// By what the request is, not by when it comes, and one more for the token that ends it.
    fn of(&self, ask: &Ask) -> u32 {
        let seed = ask.salt ^ (u64::from(ask.turn) << 48);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let z: f64 = StandardNormal.sample(&mut rng);
        let length = (self.log_mean + self.log_sd * z).exp().round() as u32;
        length.clamp(self.min, self.max) + 1
    }
}

/// Tokens of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
}

/// A sequence of requests, not yet drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct Offer {
    pub mix: Mix,
    pub answers: Answers,
    /// Requests per second in the mean.
    pub rate: f64,
    pub extent: Extent,
    pub seed: u64,
    /// What is known of requests by their number in the sequence.
    pub observed: BTreeMap<u32, Size>,
}

impl Offer {
    /// The sequence as `run` sends it: Poisson arrivals, and what each one asks.
    pub fn asks(&self) -> impl Iterator<Item = (u64, Ask)> {
        let schedule = Schedule {
            process: Process::Poisson,
            rate: self.rate,
            extent: self.extent,
            seed: self.seed,
            burst: None,
        };
        let asks = Workload::new(self.mix, self.seed, &[]);
        schedule.offsets_us().into_iter().zip(asks)
    }

    /// The same with its sizes.
    pub fn requests(&self) -> Vec<Request> {
        let request = |(index, (at_us, ask)): (u32, (u64, Ask))| {
            let observed = self.observed.get(&index).copied();
            let size = observed.unwrap_or_else(|| self.estimate(&ask));
            Request {
                at_us,
                prompt_tokens: size.prompt_tokens,
                text: text(&ask, size.prompt_tokens),
                max_tokens: ask.max_tokens,
                answer_tokens: size.answer_tokens,
            }
        };
        (0..).zip(self.asks()).map(request).collect()
    }

    fn estimate(&self, ask: &Ask) -> Size {
        Size {
            prompt_tokens: prompt_tokens(ask),
            answer_tokens: match self.answers {
                Answers::Hidden(lengths) if ask.class != Class::Trace => lengths.of(ask),
                _ => ask.max_tokens,
            },
        }
    }
}

/// Which tokens the prompt shares with which others.
fn text(ask: &Ask, prompt_tokens: u32) -> Text {
    let of = |words: u32| (f64::from(words) * TOKENS_PER_WORD) as u32;
    let (head, head_tokens) = match beginning(ask) {
        Beginning::System(i) => (1 + i as u64, of(SYSTEM_WORDS)),
        Beginning::Tools => (1000, of(TOOLS_WORDS)),
        Beginning::Own if ask.class == Class::Short => (2000, DEFAULT_SYSTEM_TOKENS),
        Beginning::Own => (0, 0),
    };
    Text {
        head,
        head_tokens: head_tokens.min(prompt_tokens - 1),
        own: ask.salt,
    }
}

fn prompt_tokens(ask: &Ask) -> u32 {
    let (system, turn) = match ask.class {
        Class::Agent => (TOOLS_WORDS, CALL_WORDS),
        Class::Short => (0, 0),
        _ => (SYSTEM_WORDS, QUESTION_WORDS + ANSWER_WORDS),
    };
    let words = system + QUESTION_WORDS + ask.turn * turn;
    let estimate = (f64::from(words) * TOKENS_PER_WORD) as u32 + TEMPLATE_TOKENS;
    ask.prompt_tokens.unwrap_or(estimate)
}

/// The sizes that the answered requests of a run had. A capped answer might have been longer, but not for
/// its cap.
pub fn observed(records: &[Record]) -> BTreeMap<u32, Size> {
    let size = |r: &Record| {
        let size = Size {
            prompt_tokens: r.prompt_tokens?,
            answer_tokens: r.completion_tokens?,
        };
        Some((r.index, size))
    };
    let answered = records.iter().filter(|r| r.is_completed());
    answered.filter_map(size).collect()
}

#[cfg(test)]
impl Answers {
    /// The fake's defaults.
    pub fn hidden() -> Self {
        Self::Hidden(Lengths::from(&super::rung::config(None).unwrap().fake))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(rate: f64, seed: u64) -> Offer {
        Offer {
            mix: Mix::Standard,
            answers: Answers::hidden(),
            rate,
            extent: Extent::Requests(20_000),
            seed,
            observed: BTreeMap::new(),
        }
    }

    #[test]
    fn a_seed_asks_the_same_at_every_rate() {
        let (slow, fast) = (offer(1.0, 7).requests(), offer(4.0, 7).requests());
        for (s, f) in slow.iter().zip(&fast) {
            assert!((s.at_us / 4).abs_diff(f.at_us) <= 1);
            let at_us = s.at_us;
            assert_eq!(*s, Request { at_us, ..*f });
        }
        assert_ne!(slow, offer(1.0, 8).requests());
    }

    #[test]
    fn arrivals_and_asks_are_the_load_generators() {
        let schedule = Schedule {
            process: Process::Poisson,
            rate: 1.4,
            extent: Extent::Seconds(180.0),
            seed: 3,
            burst: None,
        };
        let offer = Offer {
            extent: schedule.extent,
            ..offer(1.4, 3)
        };
        let (at, asks): (Vec<u64>, Vec<Ask>) = offer.asks().unzip();
        assert_eq!(at, schedule.offsets_us());
        assert!(
            asks.into_iter()
                .eq(Workload::new(Mix::Standard, 3, &[]).take(at.len()))
        );
    }

    #[test]
    fn sizes_are_those_of_the_standard_mix() {
        let requests = offer(1.0, 0).requests();
        let mean = |of: &dyn Fn(&Request) -> u32| {
            requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / requests.len() as f64
        };
        assert!((480.0..650.0).contains(&mean(&|r| r.prompt_tokens)));
        // As the caps, and one for the end.
        assert!((mean(&|r| r.answer_tokens) - 134.0).abs() < 4.0);
        assert!(
            requests
                .iter()
                .all(|r| (17..=513).contains(&r.answer_tokens))
        );
        let capped = Offer {
            answers: Answers::Capped,
            ..offer(1.0, 0)
        };
        assert!(
            capped
                .requests()
                .iter()
                .all(|r| r.answer_tokens == r.max_tokens)
        );
    }

    #[test]
    fn what_a_run_told_replaces_the_estimate() {
        let told = Record {
            index: 1,
            status: Some(200),
            first_frame_us: Some(5),
            prompt_tokens: Some(77),
            completion_tokens: Some(9),
            ..Record::default()
        };
        let refused = Record {
            index: 2,
            status: Some(503),
            ..told.clone()
        };
        let plain = offer(1.0, 0).requests();
        let known = Offer {
            observed: observed(&[told, refused]),
            ..offer(1.0, 0)
        };
        let known = known.requests();
        assert_eq!((known[1].prompt_tokens, known[1].answer_tokens), (77, 9));
        assert_eq!(known[1].max_tokens, plain[1].max_tokens);
        assert_eq!([known[0], known[2]], [plain[0], plain[2]]);
    }
}
