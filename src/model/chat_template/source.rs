//! Prepares the source of a chat template: marks the control tokens that it writes, and makes the
//! tags of Hugging Face's dialect plain Jinja.
//!
//! One pass over the source, which need only know where Jinja's strings are. It keeps every line
//! where it was, so the lines of later errors are those of the model's own template.
//!
//! A control token is marked where its text is *written*: in template data and in string literals.
//! It is left alone where a literal is only looked at, so that `'<|x|>' in content` or
//! `content.split('<|x|>')` still find in the content what they look for.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, BuildError, MatchKind};

/// Around a control token written by the template. Unicode keeps these for a program's own use.
pub const OPEN: char = '\u{fdd0}';
pub const CLOSE: char = '\u{fdd1}';

/// The roles that a template may paste between `<|` and `|>` to write a control token.
pub const ROLES: [&str; 8] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "model",
    "ipython",
];

/// Whether arguments of this method, filter or test are looked for, not written: all of them, or,
/// of `replace`, the first one.
pub fn is_matcher(name: &str) -> bool {
    matches!(
        name,
        "split"
            | "rsplit"
            | "partition"
            | "rpartition"
            | "startswith"
            | "endswith"
            | "startingwith"
            | "endingwith"
            | "find"
            | "rfind"
            | "index"
            | "rindex"
            | "count"
            | "replace"
            | "strip"
            | "lstrip"
            | "rstrip"
            | "trim"
            | "removeprefix"
            | "removesuffix"
            | "selectattr"
            | "rejectattr"
            | "eq"
    )
}

/// Marks the texts of control tokens.
pub struct Marker {
    tokens: AhoCorasick,
    /// What comes before and after the role in control tokens such as `<|user|>`.
    affixes: Vec<(String, String)>,
}

impl Marker {
    pub fn new(special_texts: &[String]) -> Result<Self, BuildError> {
        let tokens = AhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .build(special_texts)?;
        let mut affixes: Vec<(String, String)> = special_texts
            .iter()
            .flat_map(|text| ROLES.iter().filter_map(|role| text.split_once(role)))
            .filter(|(before, after)| {
                let punctuation =
                    |affix: &str| !affix.is_empty() && !affix.contains(char::is_alphanumeric);
                punctuation(before) && punctuation(after)
            })
            .map(|(before, after)| (before.to_owned(), after.to_owned()))
            .collect();
        affixes.sort_unstable();
        affixes.dedup();
        Ok(Self { tokens, affixes })
    }

    /// Marks `text` as the template's own: each control token in it, and at its ends what a role
    /// makes a control token of.
    pub fn mark(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len() + 8);
        let mut rest = text;
        if let Some((_, after)) = self
            .affixes
            .iter()
            .find(|(_, after)| text.starts_with(after))
        {
            push_marked(&mut marked, after);
            rest = &text[after.len()..];
        }
        let tail = self
            .affixes
            .iter()
            .find(|(before, _)| rest.ends_with(before))
            .map_or("", |(before, _)| before);
        let body = &rest[..rest.len() - tail.len()];
        let mut written = 0;
        for token in self.tokens.find_iter(body) {
            marked.push_str(&body[written..token.start()]);
            push_marked(&mut marked, &body[token.range()]);
            written = token.end();
        }
        marked.push_str(&body[written..]);
        if !tail.is_empty() {
            push_marked(&mut marked, tail);
        }
        marked
    }

    /// The source with its control tokens marked, and `generation` tags as `with` blocks: both
    /// open a scope and write nothing of their own.
    pub fn prepare(&self, source: &str) -> String {
        let mut out = String::with_capacity(source.len() + source.len() / 4);
        let mut rest = source;
        while let Some(at) = rest
            .find("{{")
            .into_iter()
            .chain(rest.find("{%"))
            .chain(rest.find("{#"))
            .min()
        {
            out.push_str(&self.mark(&rest[..at]));
            rest = &rest[at..];
            if rest.starts_with("{#") {
                let end = rest.find("#}").map_or(rest.len(), |at| at + 2);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            let tag = Tag::scan(rest);
            rest = &rest[tag.text.len()..];
            self.write_tag(&tag, &mut out);
            if tag.keyword() == Some("raw") {
                let end = end_of_raw(rest);
                out.push_str(&self.mark(&rest[..end]));
                rest = &rest[end..];
            }
        }
        out.push_str(&self.mark(rest));
        out
    }

    fn write_tag(&self, tag: &Tag<'_>, out: &mut String) {
        let mut written = 0;
        for (at, token) in tag.tokens.iter().enumerate() {
            let replaced = match token.kind {
                Kind::Name if at == 0 && tag.keyword() == Some("generation") => "with".to_owned(),
                Kind::Name if at == 0 && tag.keyword() == Some("endgeneration") => {
                    "endwith".to_owned()
                }
                Kind::Text if !token.looked_for && !tag.is_compared(at) => self.mark(token.text),
                _ => continue,
            };
            out.push_str(&tag.text[written..token.start]);
            out.push_str(&replaced);
            written = token.start + token.text.len();
        }
        out.push_str(&tag.text[written..]);
    }
}

fn push_marked(out: &mut String, text: &str) {
    out.push(OPEN);
    out.push_str(text);
    out.push(CLOSE);
}

/// Where the `endraw` tag starts.
fn end_of_raw(source: &str) -> usize {
    let is_end = |at: &usize| {
        source[at + 2..]
            .trim_start_matches(['-', '+'])
            .trim_start()
            .starts_with("endraw")
    };
    source
        .match_indices("{%")
        .map(|(at, _)| at)
        .find(is_end)
        .unwrap_or(source.len())
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Name,
    /// A string literal, without its quotes.
    Text,
    Symbol,
}

struct Token<'a> {
    kind: Kind,
    text: &'a str,
    start: usize,
    /// Within the arguments of a matcher, a subscript, or a collection right of `in`.
    looked_for: bool,
}

/// What is between an open bracket and where the scan is.
struct Bracket {
    looked_for: bool,
    /// Of its arguments the second one is written.
    of_replace: bool,
}

/// A `{{ … }}` or `{% … %}`.
struct Tag<'a> {
    text: &'a str,
    is_block: bool,
    tokens: Vec<Token<'a>>,
}

impl<'a> Tag<'a> {
    /// Scans the tag at the start of `source`. As in Jinja, its end does not count in a string or
    /// inside brackets. A tag without an end reaches to the end of the source: a syntax error,
    /// which the engine reports.
    fn scan(source: &'a str) -> Self {
        let is_block = source.starts_with("{%");
        let end = if is_block { "%}" } else { "}}" };
        let mut tag = Self {
            text: source,
            is_block,
            tokens: Vec::new(),
        };
        let mut brackets: Vec<Bracket> = Vec::new();
        let mut at = 2;
        while let Some(first) = source[at..].chars().next() {
            let here = &source[at..];
            if brackets.is_empty() && here.starts_with(end) {
                tag.text = &source[..at + end.len()];
                break;
            }
            let looked_for = brackets.last().is_some_and(|bracket| bracket.looked_for);
            let (kind, start, length) = match first {
                '\'' | '"' => (Kind::Text, at + 1, literal_length(&here[1..], first)),
                _ if first.is_alphanumeric() || first == '_' => {
                    let name = here.find(|c: char| !c.is_alphanumeric() && c != '_');
                    (Kind::Name, at, name.unwrap_or(here.len()))
                }
                '=' | '!' if here[1..].starts_with('=') => (Kind::Symbol, at, 2),
                _ if first.is_whitespace() => {
                    at += first.len_utf8();
                    continue;
                }
                '(' | '[' | '{' => {
                    brackets.push(Bracket {
                        looked_for: looked_for || tag.opens_search(first),
                        of_replace: tag.tokens.last().is_some_and(|last| last.text == "replace"),
                    });
                    (Kind::Symbol, at, 1)
                }
                ')' | ']' | '}' => {
                    brackets.pop();
                    (Kind::Symbol, at, 1)
                }
                ',' => {
                    if let Some(bracket) = brackets.last_mut().filter(|last| last.of_replace) {
                        bracket.looked_for = false;
                    }
                    (Kind::Symbol, at, 1)
                }
                // Whitespace control is no part of what the tag says.
                '-' | '+' if at == 2 => {
                    at += 1;
                    continue;
                }
                _ => (Kind::Symbol, at, first.len_utf8()),
            };
            tag.tokens.push(Token {
                kind,
                text: &source[start..start + length],
                start,
                looked_for,
            });
            at = start + length + usize::from(kind == Kind::Text);
            at = at.min(source.len());
        }
        tag
    }

    fn keyword(&self) -> Option<&'a str> {
        self.tokens
            .first()
            .filter(|token| self.is_block && token.kind == Kind::Name)
            .map(|token| token.text)
    }

    /// Whether the bracket about to open holds what is looked for.
    fn opens_search(&self, bracket: char) -> bool {
        let Some(last) = self.tokens.last() else {
            return false;
        };
        let is_operator =
            ["in", "not", "and", "or", "if", "else", "is", "set"].contains(&last.text);
        match bracket {
            _ if last.kind == Kind::Name && is_operator => {
                self.is_membership(self.tokens.len() - 1)
            }
            '(' => last.kind == Kind::Name && is_matcher(last.text),
            '[' => last.kind != Kind::Symbol || [")", "]"].contains(&last.text),
            _ => false,
        }
    }

    /// Whether this token is the operator `in`, and not the `in` of a `for`.
    fn is_membership(&self, at: usize) -> bool {
        let is_in = |token: &Token<'_>| token.kind == Kind::Name && token.text == "in";
        let of_loop = self.keyword() == Some("for") && !self.tokens[..at].iter().any(is_in);
        is_in(&self.tokens[at]) && !of_loop
    }

    /// Whether a string literal is an operand of a comparison or of `in`.
    fn is_compared(&self, at: usize) -> bool {
        let symbol = |at: usize| {
            ["==", "!="].contains(&self.tokens[at].text) && self.tokens[at].kind == Kind::Symbol
        };
        let before = at > 0 && (symbol(at - 1) || self.is_membership(at - 1));
        let after = at + 1;
        let not_in = self
            .tokens
            .get(after)
            .is_some_and(|token| token.text == "not")
            && after + 1 < self.tokens.len();
        let after = after < self.tokens.len()
            && (symbol(after)
                || self.is_membership(after)
                || (not_in && self.is_membership(after + 1)));
        before || after
    }
}

/// The length of the rest of a string literal, up to its closing quote.
fn literal_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    rest.find(|c| {
        let closes = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    })
    .unwrap_or(rest.len())
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
