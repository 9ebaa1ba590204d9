//! Tools on offer (`tools`, `tool_choice`) and tool calls replayed in assistant turns.
//!
//! On the wire a call's `arguments` is a string of JSON; chat templates want the object. It is parsed when it is a JSON
//! object and stays text when it is not: a model's broken JSON is history, not the client's mistake.

use serde_json::{Value, json};

use super::fields::{list, missing, object, string, take, unsupported, wrong_type, wrong_value};
use super::json::{Object, read_embedded_object};
use crate::error::{ServeError, excerpt};

/// The tools to show to the template. `tool_choice: "none"` is honoured by showing none.
pub fn parse_tools(body: &mut Object) -> Result<Option<Value>, ServeError> {
    let tools = list("tools", take(body, "tools"))?.filter(|tools| !tools.is_empty());
    let tools = match tools {
        Some(tools) => Some(
            tools
                .into_iter()
                .enumerate()
                .map(tool)
                .collect::<Result<Vec<_>, _>>()?,
        ),
        None => None,
    };
    match take(body, "tool_choice") {
        None => {}
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => {}
            "none" => return Ok(None),
            "required" => return Err(unsupported("tool_choice", "'tool_choice': \"required\" is")),
            other => {
                return Err(wrong_value(
                    "tool_choice",
                    "must be \"auto\" or \"none\"",
                    excerpt(other),
                ));
            }
        },
        Some(Value::Object(_)) => {
            return Err(unsupported(
                "tool_choice",
                "a 'tool_choice' that names a tool is",
            ));
        }
        Some(other) => return Err(wrong_type("tool_choice", "a string or an object", &other)),
    }
    Ok(tools.map(Value::Array))
}

/// Passed on whole: its JSON Schema is the template's business.
fn tool((index, tool): (usize, Value)) -> Result<Value, ServeError> {
    let path = format_args!("tools[{index}]");
    let Value::Object(fields) = &tool else {
        return Err(wrong_type(path, "an object", &tool));
    };
    only_function(format_args!("{path}.type"), fields.get("type"))?;
    match fields.get("function") {
        None | Some(Value::Null) => Err(missing(format_args!("{path}.function"))),
        Some(Value::Object(function)) => match function.get("name") {
            Some(Value::String(name)) if !name.is_empty() => Ok(tool),
            None | Some(Value::Null | Value::String(_)) => {
                Err(missing(format_args!("{path}.function.name")))
            }
            Some(other) => Err(wrong_type(
                format_args!("{path}.function.name"),
                "a string",
                other,
            )),
        },
        Some(other) => Err(wrong_type(
            format_args!("{path}.function"),
            "an object",
            other,
        )),
    }
}

/// The calls of an assistant turn in the shape that templates read; their ids are added to `known_ids`.
pub fn parse_tool_calls(
    message: usize,
    calls: Vec<Value>,
    known_ids: &mut std::collections::HashSet<String>,
    values_left: &mut usize,
) -> Result<Value, ServeError> {
    let mut normal = Vec::with_capacity(calls.len());
    for (index, call) in calls.into_iter().enumerate() {
        let path = format_args!("messages[{message}].tool_calls[{index}]");
        let mut call = object(path, Some(call))?.unwrap_or_default();
        only_function(format_args!("{path}.type"), call.get("type"))?;
        let id_path = format_args!("{path}.id");
        let id = string(id_path, take(&mut call, "id"))?.ok_or_else(|| missing(id_path))?;
        let function_path = format_args!("{path}.function");
        let mut function = object(function_path, take(&mut call, "function"))?
            .ok_or_else(|| missing(function_path))?;
        let name_path = format_args!("{path}.function.name");
        let name =
            string(name_path, take(&mut function, "name"))?.ok_or_else(|| missing(name_path))?;
        let arguments = match take(&mut function, "arguments") {
            None => Value::Object(Object::new()),
            Some(Value::String(text)) => {
                read_embedded_object(&text, values_left).unwrap_or(Value::String(text))
            }
            Some(object @ Value::Object(_)) => object,
            Some(other) => {
                return Err(wrong_type(
                    format_args!("{path}.function.arguments"),
                    "a string",
                    &other,
                ));
            }
        };
        normal.push(json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        }));
        known_ids.insert(id);
    }
    Ok(Value::Array(normal))
}

/// `type` may be left out, but only functions exist here.
fn only_function(path: impl std::fmt::Display, kind: Option<&Value>) -> Result<(), ServeError> {
    match kind {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(kind)) if kind == "function" => Ok(()),
        Some(Value::String(kind)) => Err(unsupported(
            path,
            format_args!("a tool of type {} is", excerpt(kind)),
        )),
        Some(other) => Err(wrong_type(path, "a string", other)),
    }
}
