//! What chat templates take for granted of Python: `json.dumps`, `strftime` and the string
//! methods that minijinja-contrib's pycompat lacks. (Values print as by `str()` in minijinja itself.)
//!
//! All are linear in what they write. Where CPython and Rust write a number differently in
//! JSON, CPython wins: models were trained on its text.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use time::OffsetDateTime;

/// The `tojson` filter of transformers: `json.dumps(value, ensure_ascii=False, …)`, which escapes
/// no HTML, unlike Jinja's own.
pub fn to_json(value: &Value, positional: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }, ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "separators must be a pair",
            ));
        }
    };
    let style = JsonStyle {
        indent,
        item,
        key,
        sort_keys: sort_keys.unwrap_or(false),
        // Its first parameter after the value.
        ensure_ascii: ensure_ascii
            .unwrap_or_else(|| positional.first().is_some_and(Value::is_true)),
    };
    let mut json = String::new();
    style.write(value, 0, &mut json)?;
    Ok(Value::from(json))
}

struct JsonStyle<'a> {
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl JsonStyle<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items('{', '}', keys, depth, out, |key, out| {
                    self.write_string(&key.to_string(), out);
                    out.push_str(self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items('[', ']', items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => {
                let message = format!("{kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        open: char,
        close: char,
        items: Vec<Value>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                _ if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => out.push_str(&float(number)),
        _ => out.push_str(&value.to_string()),
    }
}

/// `repr` of a float: Rust's shortest digits, and its choice of notation too, but `1e-05`.
fn float(number: f64) -> String {
    let digits = format!("{number:?}");
    let Some((mantissa, exponent)) = digits.split_once('e') else {
        return digits;
    };
    let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{mantissa}e-{exponent:0>2}"),
        None => format!("{mantissa}e+{exponent:0>2}"),
    }
}

/// `datetime.strftime`.
pub fn strftime(at: OffsetDateTime, format: &str) -> Result<String, Error> {
    let invalid = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime: {error}"))
    };
    let items =
        time::format_description::parse_strftime_owned(format).map_err(|error| invalid(&error))?;
    at.format(&items).map_err(|error| invalid(&error))
}

/// String methods beyond those of pycompat; `None` if this is not one of them.
pub fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Value> {
    let arg = args.first().and_then(Value::as_str);
    Some(match (method, arg) {
        ("removeprefix", Some(prefix)) => Value::from(text.strip_prefix(prefix).unwrap_or(text)),
        ("removesuffix", Some(suffix)) => Value::from(text.strip_suffix(suffix).unwrap_or(text)),
        ("rsplit", Some(separator)) if !separator.is_empty() => {
            let splits = args
                .get(1)
                .and_then(Value::as_i64)
                .and_then(|splits| usize::try_from(splits).ok());
            let mut parts: Vec<&str> = text
                .rsplitn(
                    splits.map_or(usize::MAX, |splits| splits.saturating_add(1)),
                    separator,
                )
                .collect();
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        ("partition", Some(separator)) if !separator.is_empty() => {
            let (before, found, after) = match text.split_once(separator) {
                Some((before, after)) => (before, separator, after),
                None => (text, "", ""),
            };
            [before, found, after]
                .into_iter()
                .map(Value::from)
                .collect()
        }
        ("rpartition", Some(separator)) if !separator.is_empty() => {
            let (before, found, after) = match text.rsplit_once(separator) {
                Some((before, after)) => (before, separator, after),
                None => ("", "", text),
            };
            [before, found, after]
                .into_iter()
                .map(Value::from)
                .collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
#[path = "python_tests.rs"]
mod tests;
