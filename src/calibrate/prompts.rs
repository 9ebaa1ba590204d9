//! What is asked while a calibration is collected: the requests of a file, or some of this module's own.
//!
//! Its own are like those of many services: some are a bare question; of the others seven of ten begin with one of four
//! system prompts, the rest with one that nobody else has; some go on with a conversation; replies are capped by a lognormal length, but for some
//! that leave it to the daemon's default, as clients do.

use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::Failure;
use crate::config::Config;
use crate::http::openai::{RequestLimits, parse_chat};
use crate::hub;
use crate::logic::rng::SplitMix64;

const SHARED: f64 = 0.7;
const SYSTEM_PROMPTS: usize = 4;
/// Of the requests without a system prompt.
const BARE: f64 = 0.15;
/// Of the others, those with earlier turns.
const CONVERSATIONS: f64 = 0.2;

/// Of the requests that name no cap.
const UNCAPPED: f64 = 0.05;

/// Logarithm of the caps' median, and its deviation.
const CAP_LOG_MEAN: f64 = 4.6;
const CAP_LOG_SD: f64 = 0.8;
const CAP: (f64, f64) = (16.0, 512.0);

const RULES: [&str; 24] = [
    "You answer questions about the timetable, the fares and the lost property of a small railway on an island.",
    "Trains leave both ends of the line every forty minutes from six in the morning until the last boat has landed.",
    "On market days two more trains run before noon, and the one at half past nine takes no bicycles.",
    "Say the name of the station first, then the time, then the platform, and leave out whatever was not asked.",
    "A child under six travels free, a pupil pays half, and a dog pays as much as a pupil unless it is carried.",
    "If a traveller has missed the last train, give the number of the harbour office and offer nothing else.",
    "Never guess at a delay: say what the board shows and at which minute it was last changed.",
    "Things that were found are kept for thirty days in the shed behind the second station and then given away.",
    "Ask for the colour, the size and the seat, because every second umbrella in the shed is black.",
    "A season ticket can be moved to another month once, in person, and not by letter or by telephone.",
    "The bridge is closed when the wind is above eighteen metres a second, and then buses stop at the church.",
    "When two connections take equally long, name the one with fewer changes and mention the other in one sentence.",
    "Groups of more than twelve are asked to write two days ahead, so that a second carriage can be put on.",
    "Explain a rule by the reason for it if you know the reason, and by nothing if you do not.",
    "Prices are in whole crowns, with the return fare in brackets behind the single one.",
    "Answer a complaint with what will be done and by when, before you say that you are sorry.",
    "The old carriages have no ramp; the new ones do, and the conductor lowers it when asked at the door.",
    "A wheelchair, a pram and a double bass may each travel at any time, one to a carriage.",
    "On the shortest day of the year the evening train waits for the choir, however late it is.",
    "Write in short sentences, in the language of the question, without exclamation marks.",
    "If something is not in these rules, say so, and say whom one can ask between eight and four.",
    "The line was built for peat, which is why it avoids the villages, and visitors like to hear it.",
    "Photographs of the engines may be taken from the platform, never from the track, and never with a drone.",
    "Lost keys are handed out only against a description of the ring, and the description is written down.",
];

const QUESTIONS: [&str; 12] = [
    "When does the first train leave tomorrow, and do I have to change?",
    "I left a bag on the bench at the harbour. What should I do now?",
    "Please explain in detail what a journey for two adults and three children costs, and why.",
    "Write a friendly letter to a school that wants to come with thirty pupils in June.",
    "My train was late and I missed the boat. Who pays for the night?",
    "Tell me the story of the line in a few paragraphs for our village paper.",
    "Which of the trains takes bicycles, and which should I avoid on a market day?",
    "List everything I need to know before I travel with a dog and a pram.",
    "Is the bridge open today, and what happens to the trains when it is not?",
    "Compare the season ticket with single fares for somebody who travels three days a week.",
    "My neighbour says that the evening train waits for the choir. Is that true?",
    "How would you explain to a visitor why the stations are so far from the villages?",
];

/// A source of requests.
pub enum Prompts {
    Own {
        systems: Vec<String>,
    },
    File {
        bodies: Vec<Map<String, Value>>,
        sha256: String,
    },
}

impl Prompts {
    /// Those of `file`: a JSON object a line, as it would be sent to `/v1/chat/completions`.
    ///
    /// # Errors
    /// Names the file and the line.
    pub fn read(file: Option<&Path>, config: &Config) -> Result<Self, Failure> {
        let Some(path) = file else {
            let systems = (0..SYSTEM_PROMPTS).map(|i| own_rules(i as u64, 12 + 8 * i));
            return Ok(Self::Own {
                systems: systems.collect(),
            });
        };
        let fault = |why: String| Failure::Usage(format!("--prompts: {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
        let limits = RequestLimits::of(config);
        let bodies: Vec<_> = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(n, line)| body(line, &limits).map_err(|why| fault(format!("line {n}: {why}"))))
            .collect::<Result<_, _>>()?;
        if bodies.is_empty() {
            return Err(fault("no request in it".into()));
        }
        Ok(Self::File {
            bodies,
            sha256: hub::hex(&Sha256::digest(text)),
        })
    }

    /// What tells them from others.
    pub fn name(&self) -> String {
        match self {
            Self::Own { .. } => "built in".into(),
            Self::File { sha256, .. } => sha256.clone(),
        }
    }

    /// Requests from a place of their own on, without end.
    pub fn asking(&self, seed: u64) -> Asking<'_> {
        let mut rng = SplitMix64::new(seed);
        Asking {
            at: rng.next_u64() as usize,
            prompts: self,
            rng,
        }
    }
}

/// A sequence of requests. Those of a file come in its order, the first after the last, so that what belongs
/// together stays together.
pub struct Asking<'a> {
    prompts: &'a Prompts,
    rng: SplitMix64,
    at: usize,
}

impl Asking<'_> {
    /// The body of the next request.
    pub fn next(&mut self) -> String {
        let rng = &mut self.rng;
        let mut body = match self.prompts {
            Prompts::Own { systems } => own(systems, rng),
            Prompts::File { bodies, .. } => {
                self.at = (self.at + 1) % bodies.len();
                bodies[self.at].clone()
            }
        };
        body.insert("stream".into(), true.into());
        Value::Object(body).to_string()
    }
}

/// A line of a file: what the daemon would take. It is asked of the model that is calibrated, whichever it names.
fn body(line: &str, limits: &RequestLimits) -> Result<Map<String, Value>, String> {
    parse_chat(line.as_bytes(), &|_| None, limits).map_err(|e| e.to_string())?;
    let mut body: Map<String, Value> = serde_json::from_str(line).map_err(|e| e.to_string())?;
    body.remove("model");
    Ok(body)
}

fn own(systems: &[String], rng: &mut SplitMix64) -> Map<String, Value> {
    let message = |role: &str, text: &str| json!({ "role": role, "content": text });
    let system = if rng.unit() < BARE {
        None
    } else if rng.unit() < SHARED {
        Some(systems[rng.below(systems.len())].clone())
    } else {
        Some(own_rules(rng.next_u64() | 1 << 63, 12 + rng.below(25)))
    };
    let turns = if system.is_some() && rng.unit() < CONVERSATIONS {
        1 + rng.below(2)
    } else {
        0
    };
    let mut messages: Vec<Value> = system.iter().map(|s| message("system", s)).collect();
    for _ in 0..turns {
        messages.push(message("user", QUESTIONS[rng.below(QUESTIONS.len())]));
        messages.push(message("assistant", RULES[rng.below(RULES.len())]));
    }
    let question = format!(
        "Note {}. {}",
        rng.below(10_000),
        QUESTIONS[rng.below(QUESTIONS.len())]
    );
    messages.push(message("user", &question));
    let mut body = Map::new();
    body.insert("messages".into(), messages.into());
    body.insert("temperature".into(), 0.into());
    if rng.unit() >= UNCAPPED {
        let cap = (CAP_LOG_MEAN + CAP_LOG_SD * rng.normal()).exp();
        let cap = cap.clamp(CAP.0, CAP.1).round() as u32;
        body.insert("max_tokens".into(), cap.into());
    }
    body
}

/// So many rules in an order of their own, behind a line that no other has.
fn own_rules(number: u64, rules: usize) -> String {
    let mut order: Vec<&str> = RULES.iter().copied().cycle().take(rules).collect();
    SplitMix64::new(number).shuffle(&mut order);
    format!("Desk {number:016x}. {}", order.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_its_own_leave_the_cap_to_the_daemon() {
        let prompts = Prompts::read(None, &config()).unwrap();
        let mut asking = prompts.asking(2);
        let caps = (0..1000).map(|_| {
            let body: Value = serde_json::from_str(&asking.next()).unwrap();
            body["max_tokens"].as_u64()
        });
        let (capped, uncapped): (Vec<_>, Vec<_>) = caps.partition(Option::is_some);
        assert!((20..100).contains(&uncapped.len()), "{}", uncapped.len());
        let caps = capped.into_iter().flatten();
        assert!(caps.clone().all(|c| (16..=512).contains(&c)));
        // The median of the lognormal is about 100.
        let below = caps.clone().filter(|c| *c < 100).count();
        assert!(below.abs_diff(caps.count() / 2) < 80, "{below}");
    }

    fn config() -> Config {
        Config::load(None, [], &crate::config::Flags::default()).unwrap()
    }

    /// `None` without a system prompt.
    fn system(body: &str) -> Option<String> {
        let body: Value = serde_json::from_str(body).unwrap();
        let first = &body["messages"][0];
        (first["role"] == "system").then(|| first["content"].as_str().unwrap().to_owned())
    }

    #[test]
    fn most_begin_with_one_of_four_and_the_others_with_their_own() {
        let prompts = Prompts::read(None, &config()).unwrap();
        let mut asking = prompts.asking(1);
        let mut bare = 0;
        let mut seen = std::collections::BTreeMap::<String, u32>::new();
        for _ in 0..1000 {
            match system(&asking.next()) {
                Some(system) => *seen.entry(system).or_default() += 1,
                None => bare += 1,
            }
        }
        assert!((100..200).contains(&bare), "{bare}");
        let shared: Vec<u32> = seen.values().copied().filter(|n| *n > 1).collect();
        assert_eq!(shared.len(), SYSTEM_PROMPTS);
        // Five standard deviations.
        assert!(
            shared.iter().sum::<u32>().abs_diff((1000 - bare) * 7 / 10) < 75,
            "{shared:?}"
        );
    }

    #[test]
    fn a_file_is_asked_as_it_stands_and_says_where_it_is_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = concat!(
            r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":7,"model":"other"}"#,
            "\n\n",
            r#"{"messages":[{"role":"user","content":"b"}],"stream":false}"#
        );
        std::fs::write(file.path(), lines).unwrap();
        let prompts = Prompts::read(Some(file.path()), &config()).unwrap();
        let mut asking = prompts.asking(1);
        for _ in 0..20 {
            let body: Value = serde_json::from_str(&asking.next()).unwrap();
            let cap = if body["messages"][0]["content"] == "b" {
                Value::Null
            } else {
                7.into()
            };
            assert_eq!(body["max_tokens"], cap, "{body}");
            assert_eq!(
                (&body["stream"], &body["model"]),
                (&true.into(), &Value::Null)
            );
        }
        for (text, says) in [
            (
                r#"{"messages":[{"role":"user","content":"a"}]}
{"messages":[1]}"#,
                "line 2: ",
            ),
            ("\n", "no request"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let Err(Failure::Usage(why)) = Prompts::read(Some(file.path()), &config()) else {
                panic!("{text} was taken")
            };
            assert!(why.contains(says) && why.contains("--prompts"), "{why}");
        }
    }
}
