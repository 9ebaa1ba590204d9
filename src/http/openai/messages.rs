//! The conversation in the one shape that chat templates get: `content` is always a string.
//!
//! Templates are full of `content is string` branches, and where one is missing a list or a null lands in the prompt as
//! a debug dump or the word "None". So text parts are concatenated, null next to tool calls becomes "", `developer`
//! becomes `system`, and keys that no template reads are dropped. Parts that are not text are refused and never looked
//! into: no URL in a request is ever opened.

use std::collections::HashSet;

use serde_json::Value;

use super::fields::{
    describe, list, missing, object, string, take, unsupported, wrong_type, wrong_value,
};
use super::json::Object;
use super::tools::parse_tool_calls;
use crate::error::{ServeError, excerpt};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => return None,
        })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// `values_left` is the budget for JSON values inside tool-call arguments.
pub fn parse_messages(
    value: Option<Value>,
    max_messages: usize,
    mut values_left: usize,
) -> Result<Value, ServeError> {
    let messages = list("messages", value)?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() || messages.len() > max_messages {
        let rule = format_args!("must hold from 1 to {max_messages} messages");
        return Err(wrong_value("messages", rule, messages.len()));
    }
    let mut call_ids = HashSet::new();
    let parsed = messages.into_iter().enumerate();
    parsed
        .map(|(index, message)| parse_message(index, message, &mut call_ids, &mut values_left))
        .collect()
}

fn parse_message(
    index: usize,
    message: Value,
    call_ids: &mut HashSet<String>,
    values_left: &mut usize,
) -> Result<Value, ServeError> {
    let path = format_args!("messages[{index}]");
    let Value::Object(mut message) = message else {
        return Err(wrong_type(path, "an object", &message));
    };
    let role = parse_role(index, &mut message)?;
    let mut normal = Object::new();
    normal.insert("role".to_owned(), role.as_str().into());

    let calls = match role {
        Role::Assistant => list(
            format_args!("{path}.tool_calls"),
            take(&mut message, "tool_calls"),
        )?,
        _ => None,
    }
    .filter(|calls| !calls.is_empty());
    let content = match take(&mut message, "content") {
        Some(content) => text(index, role, content)?,
        None if calls.is_some() => String::new(),
        None if role == Role::Assistant => {
            // A refusal takes the place of the content in replies of OpenAI's models.
            string(
                format_args!("{path}.refusal"),
                take(&mut message, "refusal"),
            )?
            .ok_or_else(|| missing(format_args!("{path}.content")))?
        }
        None => return Err(missing(format_args!("{path}.content"))),
    };
    normal.insert("content".to_owned(), content.into());

    if let Some(name) = string(format_args!("{path}.name"), take(&mut message, "name"))? {
        normal.insert("name".to_owned(), name.into());
    }
    if role == Role::Assistant
        && let Some(Value::String(reasoning)) = take(&mut message, "reasoning_content")
    {
        normal.insert("reasoning_content".to_owned(), reasoning.into());
    }
    if role == Role::Tool {
        normal.insert(
            "tool_call_id".to_owned(),
            answered_call(index, &mut message, call_ids)?.into(),
        );
    }
    if let Some(calls) = calls {
        normal.insert(
            "tool_calls".to_owned(),
            parse_tool_calls(index, calls, call_ids, values_left)?,
        );
    }
    Ok(Value::Object(normal))
}

fn parse_role(index: usize, message: &mut Object) -> Result<Role, ServeError> {
    let path = format_args!("messages[{index}].role");
    let name = string(path, take(message, "role"))?.ok_or_else(|| missing(path))?;
    Role::parse(&name).ok_or_else(|| {
        wrong_value(
            path,
            "must be system, developer, user, assistant or tool",
            excerpt(&name),
        )
    })
}

/// A tool result without its call would put words into the conversation that nobody asked for.
fn answered_call(
    index: usize,
    message: &mut Object,
    call_ids: &HashSet<String>,
) -> Result<String, ServeError> {
    let path = format_args!("messages[{index}].tool_call_id");
    let id = string(path, take(message, "tool_call_id"))?.ok_or_else(|| missing(path))?;
    if call_ids.contains(&id) {
        return Ok(id);
    }
    Err(wrong_value(
        path,
        "must be the id of a tool call in an earlier message",
        excerpt(&id),
    ))
}

fn text(index: usize, role: Role, content: Value) -> Result<String, ServeError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let path = format_args!("messages[{index}].content");
            return Err(wrong_type(path, "a string or an array of parts", &other));
        }
    };
    let mut whole = String::new();
    for (part_index, part) in parts.into_iter().enumerate() {
        let path = format_args!("messages[{index}].content[{part_index}]");
        let mut part = object(path, Some(part))?.ok_or_else(|| missing(path))?;
        let key = match part.get("type").and_then(Value::as_str) {
            Some("text") => "text",
            Some("refusal") if role == Role::Assistant => "refusal",
            Some("image_url" | "input_image" | "image") => {
                return Err(unsupported(path, "image input is"));
            }
            Some("input_audio" | "audio") => return Err(unsupported(path, "audio input is")),
            Some("file" | "input_file") => return Err(unsupported(path, "file input is")),
            Some("video_url" | "video") => return Err(unsupported(path, "video input is")),
            Some(other) => {
                return Err(unsupported(
                    path,
                    format_args!("a part of type {} is", excerpt(other)),
                ));
            }
            None => {
                let got = part.get("type").map_or_else(|| "none".to_owned(), describe);
                return Err(wrong_value(
                    path,
                    "must have a 'type' such as \"text\"",
                    got,
                ));
            }
        };
        match take(&mut part, key) {
            Some(Value::String(piece)) => whole.push_str(&piece),
            Some(other) => return Err(wrong_type(path, "a part with a string", &other)),
            None => {
                return Err(wrong_value(
                    path,
                    format_args!("must have a '{key}' string"),
                    "none",
                ));
            }
        }
    }
    Ok(whole)
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
