//! Puts an [`Ask`] into words: the request's body. The texts are this project's own, from bench/data.
//!
//! A system prompt of one's own holds the sentences of one of the four shared ones in another order, behind a
//! first line that nobody else has: the two kinds differ in what can be shared, not in length or language.

use serde_json::{Value, json};

use super::mix::{Ask, Class};
use crate::workload::SYSTEM;

const QUESTIONS: &str = include_str!("../../data/questions.txt");
const TOOLS: &str = include_str!("../../data/agent-tools.txt");
/// Of English prose under the vocabularies of today's small models.
const TOKENS_PER_WORD: f64 = 1.25;
/// What a chat template and the turns around the filler add.
const TEMPLATE_TOKENS: u32 = 24;

/// What is the same in all bodies of a run.
#[derive(Clone, Debug, Default)]
pub struct Style {
    pub model: Option<String>,
    pub temperature: f64,
    /// For raw throughput only: the length of the answer is then the cap, which no admission could know.
    pub ignore_eos: bool,
}

/// What a prompt begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beginning {
    /// One of the shared system prompts.
    System(usize),
    /// The tools that all agents have.
    Tools,
    /// Something that no other request has, or only those of its own conversation.
    Own,
}

/// Of request `ask`.
pub fn beginning(ask: &Ask) -> Beginning {
    let shared = Beginning::System(index(ask.group, SYSTEM.len()));
    match ask.class {
        Class::Shared => shared,
        Class::Conversation if mix(ask.salt, 0) % 10 < 7 => shared,
        Class::Agent => Beginning::Tools,
        Class::Conversation | Class::Unique | Class::Uniform | Class::Short | Class::Trace => {
            Beginning::Own
        }
    }
}

/// The texts, split once.
pub struct Prompts {
    questions: Vec<&'static str>,
    sentences: Vec<Vec<&'static str>>,
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            questions: QUESTIONS.lines().collect(),
            sentences: SYSTEM.iter().map(|text| sentences(text)).collect(),
        }
    }
}

impl Prompts {
    /// The JSON body of request `ask`.
    pub fn body(&self, ask: &Ask, style: &Style) -> String {
        let mut body = json!({
            "messages": self.messages(ask),
            "max_tokens": ask.max_tokens,
            "temperature": style.temperature,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(model) = &style.model {
            body["model"] = model.as_str().into();
        }
        if style.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        body.to_string()
    }

    fn messages(&self, ask: &Ask) -> Vec<Value> {
        let message = |role: &str, text: String| json!({ "role": role, "content": text });
        let mut messages = Vec::new();
        match ask.class {
            Class::Short => {}
            Class::Shared | Class::Unique | Class::Uniform | Class::Conversation | Class::Agent => {
                let system = match beginning(ask) {
                    Beginning::System(i) => SYSTEM[i].to_owned(),
                    Beginning::Tools => TOOLS.to_owned(),
                    Beginning::Own => self.own(ask),
                };
                messages.push(message("system", system));
            }
            Class::Trace => {
                let words = f64::from(
                    ask.prompt_tokens
                        .unwrap_or(0)
                        .saturating_sub(TEMPLATE_TOKENS),
                ) / TOKENS_PER_WORD;
                messages.push(message("user", self.filler(ask.salt, words as usize)));
                return messages;
            }
        }
        for turn in 0..ask.turn {
            messages.push(message("user", self.question(ask, turn)));
            messages.push(message("assistant", self.answer(ask, turn)));
        }
        messages.push(message("user", self.question(ask, ask.turn)));
        messages
    }

    /// A system prompt of its own.
    fn own(&self, ask: &Ask) -> String {
        let mut order = self.sentences[index(ask.group, self.sentences.len())].clone();
        for i in (1..order.len()).rev() {
            order.swap(i, (mix(ask.salt, i as u64) % (i as u64 + 1)) as usize);
        }
        format!("Case {:08x}. {}", ask.salt as u32, order.join(" "))
    }

    fn question(&self, ask: &Ask, turn: u32) -> String {
        let draw = mix(ask.salt, 100 + u64::from(turn));
        let question = self.questions[index(draw as u32, self.questions.len())];
        match ask.class {
            Class::Agent if turn == 0 => format!("Task {}: {question}", draw % 10_000),
            Class::Agent => format!(
                "RESULT {{\"ok\":true,\"number\":\"19{}.{}\"}} {question}",
                draw % 90 + 10,
                draw % 900 + 100
            ),
            _ => format!("Note {}. {question}", draw % 10_000),
        }
    }

    /// What the history says that the assistant said.
    fn answer(&self, ask: &Ask, turn: u32) -> String {
        let draw = mix(ask.salt, 200 + u64::from(turn));
        match ask.class {
            Class::Agent => format!(
                "CALL read_object {{\"number\":\"19{}.{}\"}}",
                draw % 90 + 10,
                draw % 900 + 100
            ),
            _ => self.filler(draw, 40 + (draw % 60) as usize),
        }
    }

    /// About so many words, whole sentences until the last.
    fn filler(&self, salt: u64, words: usize) -> String {
        let mut text = Vec::with_capacity(words + 1);
        let mut i = 0;
        while text.len() < words {
            let draw = mix(salt, 300 + i);
            let from = &self.sentences[index(draw as u32, self.sentences.len())];
            text.extend(from[index((draw >> 32) as u32, from.len())].split_whitespace());
            i += 1;
        }
        text.truncate(words);
        format!("{:08x}. {}", salt as u32, text.join(" "))
    }
}

fn sentences(text: &'static str) -> Vec<&'static str> {
    let starts = text.split_inclusive(['.', '?']).map(str::trim);
    starts.filter(|s| !s.is_empty()).collect()
}

fn index(draw: u32, n: usize) -> usize {
    draw as usize % n
}

/// A hash of both, by splitmix64.
fn mix(salt: u64, i: u64) -> u64 {
    let mut x = salt ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::mix::{Mix, Workload};

    fn bodies(mix: Mix, n: usize) -> Vec<(Ask, Value)> {
        let prompts = Prompts::default();
        let style = Style::default();
        Workload::new(mix, 3, &[])
            .take(n)
            .map(|ask| {
                (
                    ask,
                    serde_json::from_str(&prompts.body(&ask, &style)).unwrap(),
                )
            })
            .collect()
    }

    fn system(body: &Value) -> &str {
        body["messages"][0]["content"].as_str().unwrap()
    }

    #[test]
    fn own_system_prompts_are_as_long_as_shared_ones_and_share_no_beginning() {
        let all = bodies(Mix::Standard, 400);
        let mut own: Vec<&str> = Vec::new();
        for (ask, body) in &all {
            match ask.class {
                Class::Shared => assert!(SYSTEM.contains(&system(body))),
                _ => own.push(system(body)),
            }
            let words = system(body).split_whitespace().count();
            assert!((430..=470).contains(&words), "{words}");
        }
        own.sort_unstable();
        for pair in own.windows(2) {
            let same = pair[0]
                .bytes()
                .zip(pair[1].bytes())
                .take_while(|(a, b)| a == b)
                .count();
            assert!(same < 16, "{same}");
        }
    }

    #[test]
    fn a_turn_repeats_the_history_of_the_turn_before_it() {
        for mix in [Mix::MultiTurn, Mix::Agent] {
            let all = bodies(mix, 200);
            for (ask, body) in &all {
                let messages = body["messages"].as_array().unwrap();
                assert_eq!(messages.len(), 2 + 2 * ask.turn as usize);
                let before = all
                    .iter()
                    .find(|(a, _)| a.group == ask.group && a.turn + 1 == ask.turn);
                if let Some((_, before)) = before {
                    let before = before["messages"].as_array().unwrap();
                    assert_eq!(before[..], messages[..before.len()]);
                }
            }
        }
    }

    #[test]
    fn a_traced_prompt_has_about_the_length_that_the_trace_names() {
        let prompts = Prompts::default();
        let ask = Ask {
            class: Class::Trace,
            group: 0,
            turn: 0,
            max_tokens: 9,
            salt: 5,
            prompt_tokens: Some(1024),
        };
        let body: Value = serde_json::from_str(&prompts.body(&ask, &Style::default())).unwrap();
        let words = body["messages"][0]["content"]
            .as_str()
            .unwrap()
            .split_whitespace()
            .count();
        assert_eq!(words, 801);
    }

    #[test]
    fn a_body_names_what_it_was_told_to() {
        let prompts = Prompts::default();
        let ask = Workload::new(Mix::Standard, 0, &[]).next().unwrap();
        let style = Style {
            model: Some("m".into()),
            ignore_eos: true,
            ..Style::default()
        };
        let body: Value = serde_json::from_str(&prompts.body(&ask, &style)).unwrap();
        assert_eq!(
            (body["model"].as_str(), body["ignore_eos"].as_bool()),
            (Some("m"), Some(true))
        );
        assert!(bodies(Mix::Standard, 1)[0].1.get("ignore_eos").is_none());
    }
}
