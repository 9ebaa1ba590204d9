//! `ChatTemplate`: renders a model's own chat template, and keeps what a client wrote from
//! becoming a control token.
//!
//! - [`ChatTemplate::new`]: compiles the Jinja source that came with the model; once.
//! - [`ChatTemplate::render`]: one run of the template and one scan of its text, microseconds for
//!   each message. The result is cut into [`Segment`]s, each to be tokenized with or without
//!   special tokens parsed.
//! - [`ChatTemplate::check`]: dry runs, for the log at start.
//!
//! # Control tokens as capabilities
//!
//! A rendered prompt is one string, in which `<|im_end|>` written by the template and
//! `<|im_end|>` written by a client look the same. Three ways to tell them apart:
//!
//! 1. *Mark each special text in the client's strings.* It misses a special text that only the
//!    rendering forms: out of two content parts, or by a `replace` or `split` that takes a marker
//!    or the middle of one out.
//! 2. *Mark each client string as a whole.* Nothing is missed, but `trim`, `split`, `==`,
//!    `startswith` and `in` no longer see what was sent, and the cut at each end of each string
//!    changes the tokens of ordinary prompts: BPE would not merge across it, SentencePiece would
//!    put a space there.
//! 3. *Mark the control tokens of the template*: what it writes itself is what was meant. This is
//!    what is done here. A control token is then a capability (Dennis & Van Horn, 1966; the same
//!    idea as taint tracking, with the safe side marked): its mark is made of noncharacters that
//!    are removed from all that comes from a client, so no string operation on client text, of
//!    any template, can make one. Client strings themselves stay untouched, so a template sees
//!    exactly what Hugging Face's would.
//!
//! After rendering, the marks say where the template's own control tokens are. If no other special
//! text occurs, as in every honest prompt, the prompt is a single segment: its tokens are those of
//! the unmarked rendering. Otherwise each stretch between two control tokens in which a special
//! text was forged becomes a segment with `parse_special` off. Its ends are at control tokens,
//! where a tokenizer cuts anyway, so its ordinary text still gets the tokens that it would get.
//!
//! Limits, all on the safe side. A template that builds a control token out of pieces gets plain
//! text, except for the form that occurs, `'<|' + role + '|>'`, which is known. A template that
//! looks in the content for a control token held in a variable, by `in` or `==`, does not find it.
//! The mark of a literal counts in its length. And what a template writes because of what it found
//! in a content is still its own: one that writes `<think>` when a content has one does so here.

mod python;
mod source;

use aho_corasick::AhoCorasick;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat;
use std::borrow::Cow;
use std::ops::Range;

use source::{CLOSE, Marker, OPEN, ROLES};

/// A run of a prompt's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub text: String,
    /// Whether the texts of control tokens in it stand for these tokens.
    pub parse_special: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model's template is no template. Lines count from 1; 0 is unknown.
    #[error("chat template, line {line}: {message}")]
    Syntax { line: usize, message: String },
    /// The template itself refuses the messages.
    #[error("{0}")]
    Raised(String),
    /// The template fails on the messages. Lines count from 1; 0 is unknown.
    #[error("chat template, line {line}: {message}")]
    Render { line: usize, message: String },
}

/// The cause of an error that is the template's own refusal.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Value,
    eos: Value,
    special: AhoCorasick,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles `source`. The special texts are those of all tokens that only parsing special
    /// tokens gives: control and unknown tokens.
    pub fn new(
        source: &str,
        bos_text: &str,
        eos_text: &str,
        special_texts: &[String],
    ) -> Result<Self, TemplateError> {
        let unusable = |error: &dyn std::fmt::Display| TemplateError::Syntax {
            line: 0,
            message: error.to_string(),
        };
        let texts: Vec<String> = special_texts
            .iter()
            .filter(|text| !text.is_empty())
            .cloned()
            .collect();
        let marker = Marker::new(&texts).map_err(|error| unusable(&error))?;
        let special = AhoCorasick::new(&texts).map_err(|error| unusable(&error))?;
        let mut environment = environment();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| unusable(&error))?);
        environment
            .add_template_owned(NAME, marker.prepare(&without_marks(source)))
            .map_err(|error| TemplateError::Syntax {
                line: error.line().unwrap_or(0),
                message: message(&error),
            })?;
        Ok(Self {
            environment,
            bos: Value::from(marker.mark(bos_text)),
            eos: Value::from(marker.mark(eos_text)),
            special,
        })
    }

    /// The prompt for `messages`, an array of objects with at least a role and a content.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<Vec<Segment>, TemplateError> {
        let none = Value::from(());
        let context = Value::from_pairs([
            ("messages", to_value(messages)),
            // None, not undefined: transformers always passes both.
            ("tools", tools.map_or(none.clone(), to_value)),
            ("documents", none),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", self.bos.clone()),
            ("eos_token", self.eos.clone()),
        ]);
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(context));
        Ok(self.segments(&rendered.map_err(|error| refusal(&error))?))
    }

    /// The usual conversations that this template does not render, and why.
    pub fn check(&self) -> Vec<(&'static str, TemplateError)> {
        let user = serde_json::json!({"role": "user", "content": "Hello."});
        let system = serde_json::json!({"role": "system", "content": "Be brief."});
        let assistant = serde_json::json!({"role": "assistant", "content": "Hello!"});
        let tools = serde_json::json!([{"type": "function", "function": {
            "name": "weather",
            "description": "Looks outside.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        }}]);
        let dry_runs = [
            ("a user message", vec![user.clone()], None),
            (
                "a system and a user message",
                vec![system, user.clone()],
                None,
            ),
            (
                "several turns",
                vec![user.clone(), assistant, user.clone()],
                None,
            ),
            ("tools", vec![user], Some(&tools)),
        ];
        let failure = |(name, messages, tools)| {
            self.render(&serde_json::Value::Array(messages), tools, true)
                .err()
                .map(|error| (name, error))
        };
        dry_runs.into_iter().filter_map(failure).collect()
    }

    /// Cuts a marked rendering where special tokens may, and may not, be parsed. Linear, up to the
    /// sorting, in the text and in the special texts in it.
    fn segments(&self, rendered: &str) -> Vec<Segment> {
        let (text, marked) = unmarked(rendered);
        // Overlapping: whichever match a tokenizer prefers, it is among them.
        let mut found: Vec<Range<usize>> = self
            .special
            .find_overlapping_iter(&text)
            .map(|found| found.range())
            .collect();
        found.sort_unstable_by_key(|range| (range.start, range.end));
        let own = own_tokens(&text, marked, &found);

        // Gap `i` is what lies before the i-th of the template's control tokens.
        let gap = |i: usize| {
            let start = if i == 0 { 0 } else { own[i - 1].end };
            start..own.get(i).map_or(text.len(), |token| token.start)
        };
        let mut forged = vec![false; own.len() + 1];
        for found in found {
            let first = own.partition_point(|token| token.end <= found.start);
            let is_own = own
                .get(first)
                .is_some_and(|token| token.start <= found.start && found.end <= token.end);
            if !is_own {
                (first..=own.len())
                    .take_while(|&i| gap(i).start < found.end)
                    .for_each(|i| forged[i] = true);
            }
        }

        let mut segments = Segments {
            text: &text,
            cut: Vec::new(),
        };
        for (i, &forged) in forged.iter().enumerate() {
            segments.push(gap(i), !forged);
            if let Some(token) = own.get(i) {
                segments.push(token.clone(), true);
            }
        }
        segments.cut
    }
}

/// Collects adjacent ranges, merging equals.
struct Segments<'a> {
    text: &'a str,
    cut: Vec<Segment>,
}

impl Segments<'_> {
    fn push(&mut self, range: Range<usize>, parse_special: bool) {
        let text = &self.text[range];
        match self.cut.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.parse_special == parse_special => last.text.push_str(text),
            _ => self.cut.push(Segment {
                text: text.to_owned(),
                parse_special,
            }),
        }
    }
}

/// The text of a rendering without its marks, and the ranges of it that were marked. A mark that
/// lost its other half, which a template can do by slicing, marks nothing.
fn unmarked(rendered: &str) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(rendered.len());
    let (mut marked, mut open) = (Vec::new(), None);
    let mut rest = rendered;
    while let Some(at) = rest.find([OPEN, CLOSE]) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with(OPEN) {
            open = Some(text.len());
        } else if let Some(start) = open.take() {
            marked.push(start..text.len());
        }
        rest = &rest[OPEN.len_utf8()..]; // both are as long
    }
    text.push_str(rest);
    (text, marked)
}

/// The template's own control tokens, in order: what was marked, and what is a marked beginning, a
/// role and a marked end. Only if they are among `found`, sorted: of a `<|` the role may be unknown.
fn own_tokens(text: &str, marked: Vec<Range<usize>>, found: &[Range<usize>]) -> Vec<Range<usize>> {
    let is_token = |range: &Range<usize>| {
        let order = |other: &Range<usize>| (other.start, other.end).cmp(&(range.start, range.end));
        found.binary_search_by(order).is_ok()
    };
    let around_role = |(before, after): (&Range<usize>, &Range<usize>)| {
        let is_role = text
            .get(before.end..after.start)
            .is_some_and(|role| ROLES.contains(&role));
        is_role.then_some(before.start..after.end)
    };
    let mut own: Vec<Range<usize>> = marked
        .iter()
        .zip(marked.iter().skip(1))
        .filter_map(around_role)
        .collect();
    own.extend(marked);
    own.retain(is_token);
    own.sort_unstable_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
    // Disjoint already, but for a control token that is itself the beginning or end of another.
    let mut end = 0;
    own.retain(|range| {
        range.start >= end && {
            end = range.end;
            true
        }
    });
    own
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Jinja2's default: an undefined value is empty and false, an attribute of one is an error.
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", python::to_json);
    // In Python strings are sequences, and so are mappings by Jinja's test; None is not iterable.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map
        )
    });
    environment.add_function("raise_exception", |message: &str| -> Result<Value, Error> {
        let message = without_marks(message);
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    // In UTC: a server's replies should not depend on where it stands.
    environment.add_function("strftime_now", |format: &str| {
        python::strftime(time::OffsetDateTime::now_utc(), format)
    });
    environment
}

/// Python's methods. Arguments that are looked for are compared without marks, so that a control
/// token held in a variable is found in a content.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let mut args = Cow::Borrowed(args);
    if source::is_matcher(name) {
        let looked_for = if name == "replace" { 1 } else { args.len() };
        for at in 0..looked_for.min(args.len()) {
            if let Some(text) = args[at].as_str().filter(|text| text.contains(OPEN)) {
                let plain = Value::from(without_marks(text));
                args.to_mut()[at] = plain;
            }
        }
    }
    match value
        .as_str()
        .and_then(|text| python::string_method(text, name, &args))
    {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, name, &args),
    }
}

fn without_marks(text: &str) -> String {
    text.replace([OPEN, CLOSE], "")
}

/// A client's value as the template sees it. No mark gets in, in keys neither.
fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(value) => {
            let integer = value
                .as_i64()
                .map(Value::from)
                .or_else(|| value.as_u64().map(Value::from));
            integer
                .or_else(|| value.as_f64().map(Value::from))
                .unwrap_or(Value::UNDEFINED)
        }
        serde_json::Value::String(text) => Value::from(without_marks(text)),
        serde_json::Value::Array(items) => items.iter().map(to_value).collect(),
        serde_json::Value::Object(entries) => Value::from_pairs(
            entries
                .iter()
                .map(|(key, value)| (without_marks(key), to_value(value))),
        ),
    }
}

/// The error of a rendering, told apart by its causes.
fn refusal(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(Raised(message)) = this.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        cause = this.source();
    }
    TemplateError::Render {
        line: error.line().unwrap_or(0),
        message: message(error),
    }
}

fn message(error: &Error) -> String {
    let text = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    without_marks(&text)
}

#[cfg(test)]
#[path = "chat_template_tests.rs"]
mod tests;
