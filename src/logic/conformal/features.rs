//! The features of a prediction: one table of names and formulas over what is known at admission.

use serde::{Deserialize, Serialize};

use super::snapshot::{AdmitContext, Snapshot};

/// How many there are.
pub const COUNT: usize = 16;

/// A cached prefix of at least so many tokens is a large hit: a shared system prompt, not a chance match.
const LARGE_HIT_TOKENS: u32 = 256;

/// One value for each of [`NAMES`].
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Features(pub [f32; COUNT]);

impl Features {
    #[must_use]
    pub fn get(&self, feature: Feature) -> f32 {
        self.0[feature as usize]
    }

    /// Tokens that may be computed for the request: what of its prompt is not cached, and its cap.
    #[must_use]
    pub fn work_tokens(&self) -> u32 {
        (self.get(Feature::NewPrefillTokens) + self.get(Feature::MaxTokens)) as u32
    }

    /// Requests with a promise that wait or run: the load by which classes are formed.
    #[must_use]
    pub fn load(&self) -> u32 {
        (self.get(Feature::Waiting) + self.get(Feature::Running)) as u32
    }
}

/// Whether a feature is the client's doing alone, whatever the engine and its cache are like.
#[must_use]
pub fn is_of_request(name: &str) -> bool {
    let own = [
        Feature::PromptTokens,
        Feature::MaxTokens,
        Feature::LogMaxTokens,
        Feature::Messages,
    ];
    own.iter().any(|f| NAMES[*f as usize] == name)
}

macro_rules! features {
    (|$request:ident, $engine:ident| $($feature:ident $name:literal $value:expr;)*) => {
        /// Where each feature stands in [`Features`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Feature { $($feature),* }

        /// The names, in order. An artifact fitted on other ones is refused.
        pub const NAMES: [&str; COUNT] = [$($name),*];

        /// What a prediction may look at: these two arguments, and nothing that is known only afterwards.
        #[must_use]
        pub fn extract($request: &AdmitContext, $engine: &Snapshot) -> Features {
            Features([$($value as f32),*])
        }
    };
}

features! { |request, engine|
    PromptTokens "prompt_tokens" request.prompt_tokens;
    CachedPrefixTokens "cached_prefix_tokens" request.cached_prefix_tokens;
    NewPrefillTokens "new_prefill_tokens" request.new_prefill_tokens();
    MaxTokens "max_tokens" request.max_tokens;
    LogMaxTokens "log_max_tokens" f64::from(request.max_tokens).ln_1p();
    Messages "messages" request.messages;
    LargeHit "large_hit" u8::from(request.cached_prefix_tokens >= LARGE_HIT_TOKENS);
    Waiting "waiting" engine.promised.waiting;
    Running "running" engine.promised.running;
    OutputTokens "output_tokens" engine.promised.output_tokens;
    PrefillTokens "prefill_tokens" engine.promised.prefill_tokens;
    KvFree "kv_free" engine.kv_free;
    StepMs "step_ms" engine.pace.step_ms;
    TokensPerS "tokens_per_s" engine.pace.tokens_per_s;
    // Waiting best-effort requests hold nobody up; running ones share the batch.
    BestEffortRunning "best_effort_running" engine.best_effort.running;
    BestEffortTokens "best_effort_tokens" engine.best_effort.output_tokens;
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::{LaneLoad, Pace};
    use super::*;

    /// A new field breaks this test. Before adding it: is it known at admission, and does it stay true when
    /// the controller refuses? An arrival rate fails the second question (see `snapshot.rs`).
    #[test]
    fn no_feature_is_of_the_outcome_or_of_the_offered_load() {
        let request = AdmitContext {
            prompt_tokens: 300,
            cached_prefix_tokens: 256,
            max_tokens: 64,
            messages: 2,
        };
        let engine = Snapshot {
            admissions_seen: 7,
            promised: LaneLoad {
                waiting: 3,
                running: 4,
                output_tokens: 900,
                prefill_tokens: 50,
            },
            best_effort: LaneLoad::default(),
            kv_free: 0.5,
            pace: Pace {
                step_ms: 5.0,
                tokens_per_s: 200.0,
            },
        };
        let AdmitContext {
            prompt_tokens: _,
            cached_prefix_tokens: _,
            max_tokens: _,
            messages: _,
        } = request;
        let Snapshot {
            admissions_seen: _,
            promised:
                LaneLoad {
                    waiting: _,
                    running: _,
                    output_tokens: _,
                    prefill_tokens: _,
                },
            best_effort: _,
            kv_free: _,
            pace: Pace {
                step_ms: _,
                tokens_per_s: _,
            },
        } = engine;
        for name in NAMES {
            for word in [
                "arriv",
                "offered",
                "rps",
                "qps",
                "rate",
                "demand",
                "generated",
                "finish",
            ] {
                assert!(!name.contains(word), "{name}: of the kind of {word}");
            }
        }
        let x = extract(&request, &engine);
        assert_eq!(x.get(Feature::NewPrefillTokens), 44.0);
        assert_eq!(x.get(Feature::LargeHit), 1.0);
        assert_eq!(x.get(Feature::BestEffortTokens), 0.0);
        assert_eq!(x.load(), 7);
        // How many were admitted so far is the ledger's business: counted over time it would be a rate.
        let later = Snapshot {
            admissions_seen: 9000,
            ..engine
        };
        assert_eq!(extract(&request, &later), x);
    }
}
