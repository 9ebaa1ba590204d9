//! What is asked: the kinds of requests, their shares and their caps, a pure function of mix and seed.
//!
//! | mix | requests |
//! | --- | --- |
//! | `standard` | 70% share one of four system prompts, 30% bring one of like length of their own; caps lognormal(4.6, 0.8) in [16, 512] |
//! | `multi-turn` | conversations of 2 to 6 turns, eight alive at a time, each turn with the whole history; the same caps |
//! | `agent` | one long preamble of tools for all, tasks of 2 to 8 steps, caps lognormal(3.2, 0.5) in [8, 64] |
//! | `short` | a question without a system prompt, caps lognormal(2.8, 0.4) in [8, 32]: many arrivals in little time |
//! | `uniform` | a control in which all are alike: own system prompts, cap 133, the standard mix's mean |
//! | `trace` | lengths from a file |
//!
//! A history holds answers of this project's own, not the server's, so that what is offered does not depend on
//! who is measured. In an open loop a turn does not wait for the answer to the turn before it.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::trace::Row;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    #[default]
    Standard,
    MultiTurn,
    Agent,
    Short,
    Uniform,
    Trace,
}

/// The kind of one request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// One of the four system prompts.
    #[default]
    Shared,
    /// A system prompt of its own.
    Unique,
    Conversation,
    Agent,
    /// No system prompt.
    Short,
    Uniform,
    Trace,
}

impl Class {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Shared, "shared"),
        (Self::Unique, "unique"),
        (Self::Conversation, "conversation"),
        (Self::Agent, "agent"),
        (Self::Short, "short"),
        (Self::Uniform, "uniform"),
        (Self::Trace, "trace"),
    ];

    pub fn label(self) -> &'static str {
        let found = Self::ALL.iter().find(|(class, _)| *class == self);
        found.map_or("", |(_, label)| label)
    }

    pub fn from_label(label: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, l)| *l == label);
        found.map(|(class, _)| *class)
    }
}

/// What one request asks for; [`super::prompts`] puts it into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub class: Class,
    /// Which system prompt, conversation or task.
    pub group: u32,
    pub turn: u32,
    pub max_tokens: u32,
    /// Makes texts differ where they must.
    pub salt: u64,
    /// Length of the prompt, where a trace gives it.
    pub prompt_tokens: Option<u32>,
}

/// Share of requests whose system prompt others have too.
const SHARED: f64 = 0.7;
/// System prompts that are shared.
pub const SYSTEM_PROMPTS: u32 = 4;
/// Conversations or tasks that are alive at a time.
const ALIVE: usize = 8;
/// The mean of the standard mix's caps.
const UNIFORM_CAP: u32 = 133;

/// A lognormal, clipped.
struct Caps {
    log_mean: f64,
    log_sd: f64,
    min: f64,
    max: f64,
}

impl Caps {
    fn draw(&self, rng: &mut Xoshiro256PlusPlus) -> u32 {
        let z: f64 = StandardNormal.sample(rng);
        let length = (self.log_mean + self.log_sd * z).exp();
        length.clamp(self.min, self.max).round() as u32
    }
}

/// Of conversations.
const LONG: Caps = Caps {
    log_mean: 4.6,
    log_sd: 0.8,
    min: 16.0,
    max: 512.0,
};
/// Of an agent's calls.
const CALLS: Caps = Caps {
    log_mean: 3.2,
    log_sd: 0.5,
    min: 8.0,
    max: 64.0,
};

/// Of the short mix.
const SHORT: Caps = Caps {
    log_mean: 2.8,
    log_sd: 0.4,
    min: 8.0,
    max: 32.0,
};

/// The endless sequence of what is asked.
pub struct Workload<'a> {
    mix: Mix,
    rng: Xoshiro256PlusPlus,
    caps: Caps,
    alive: Vec<Dialogue>,
    dialogues: u32,
    trace: &'a [Row],
    next: usize,
}

#[derive(Clone, Copy)]
struct Dialogue {
    group: u32,
    salt: u64,
    turn: u32,
    turns: u32,
}

impl<'a> Workload<'a> {
    /// `trace` is what [`Mix::Trace`] replays, from the beginning again after its end.
    pub fn new(mix: Mix, seed: u64, trace: &'a [Row]) -> Self {
        let caps = match mix {
            Mix::Agent => CALLS,
            Mix::Short => SHORT,
            _ => LONG,
        };
        Self {
            mix,
            // Another stream than the arrivals', which use the seed as it is.
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5EED_0FA1_1A5C),
            caps,
            alive: Vec::new(),
            dialogues: 0,
            trace,
            next: 0,
        }
    }

    fn standard(&mut self) -> Ask {
        // The same number of draws whatever they say, so that one request's kind does not move the others.
        let shared = self.rng.random::<f64>() < SHARED;
        let group = self.rng.random_range(0..SYSTEM_PROMPTS);
        let salt = self.rng.random();
        Ask {
            class: if shared { Class::Shared } else { Class::Unique },
            group,
            turn: 0,
            max_tokens: self.caps.draw(&mut self.rng),
            salt,
            prompt_tokens: None,
        }
    }

    fn dialogue(&mut self, class: Class, turns: std::ops::RangeInclusive<u32>) -> Ask {
        let at = self.rng.random_range(0..ALIVE);
        if at >= self.alive.len() {
            self.alive.push(Dialogue {
                group: self.dialogues,
                salt: self.rng.random(),
                turn: 0,
                turns: self.rng.random_range(turns),
            });
            self.dialogues += 1;
        }
        let at = at.min(self.alive.len() - 1);
        let dialogue = self.alive[at];
        if dialogue.turn + 1 == dialogue.turns {
            self.alive.swap_remove(at);
        } else {
            self.alive[at].turn += 1;
        }
        Ask {
            class,
            group: dialogue.group,
            turn: dialogue.turn,
            max_tokens: self.caps.draw(&mut self.rng),
            salt: dialogue.salt,
            prompt_tokens: None,
        }
    }

    fn replayed(&mut self) -> Option<Ask> {
        let row = self.trace.get(self.next % self.trace.len().max(1))?;
        self.next += 1;
        Some(Ask {
            class: Class::Trace,
            group: 0,
            turn: 0,
            max_tokens: row.answer_tokens,
            salt: self.rng.random(),
            prompt_tokens: Some(row.prompt_tokens),
        })
    }
}

impl Iterator for Workload<'_> {
    type Item = Ask;

    /// Ends for a trace without rows only.
    fn next(&mut self) -> Option<Ask> {
        match self.mix {
            Mix::Standard => Some(self.standard()),
            Mix::MultiTurn => Some(self.dialogue(Class::Conversation, 2..=6)),
            Mix::Agent => Some(self.dialogue(Class::Agent, 2..=8)),
            Mix::Short => Some(Ask {
                class: Class::Short,
                ..self.standard()
            }),
            Mix::Uniform => Some(Ask {
                class: Class::Uniform,
                max_tokens: UNIFORM_CAP,
                ..self.standard()
            }),
            Mix::Trace => self.replayed(),
        }
    }
}

#[cfg(test)]
#[path = "mix_tests.rs"]
mod tests;
