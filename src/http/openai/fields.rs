//! One field at a time: null means unset, whole floats are integers, and a wrong one is a 400 that names its path.
//!
//! `param` is anything that displays, so that `format_args!("messages[{i}].name")` costs nothing unless it is wrong.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::json::Object;
use crate::error::{ServeError, excerpt};

/// Removes a field; an explicit null is the same as an absent field (typed clients write every unset option as null).
pub fn take(object: &mut Object, name: &str) -> Option<Value> {
    object.remove(name).filter(|value| !value.is_null())
}

pub fn boolean(param: impl Display, value: Option<Value>) -> Result<Option<bool>, ServeError> {
    match value {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(value)),
        Some(other) => Err(wrong_type(param, "a boolean", &other)),
    }
}

pub fn string(param: impl Display, value: Option<Value>) -> Result<Option<String>, ServeError> {
    match value {
        None => Ok(None),
        Some(Value::String(value)) => Ok(Some(value)),
        Some(other) => Err(wrong_type(param, "a string", &other)),
    }
}

pub fn list(param: impl Display, value: Option<Value>) -> Result<Option<Vec<Value>>, ServeError> {
    match value {
        None => Ok(None),
        Some(Value::Array(value)) => Ok(Some(value)),
        Some(other) => Err(wrong_type(param, "an array", &other)),
    }
}

pub fn object(param: impl Display, value: Option<Value>) -> Result<Option<Object>, ServeError> {
    match value {
        None => Ok(None),
        Some(Value::Object(value)) => Ok(Some(value)),
        Some(other) => Err(wrong_type(param, "an object", &other)),
    }
}

/// A whole number in the signed 64-bit range; `8.0` is 8, `8.5` is an error.
pub fn whole(param: impl Display, value: Option<Value>) -> Result<Option<i64>, ServeError> {
    let number = match value {
        None => return Ok(None),
        Some(Value::Number(number)) => number,
        Some(other) => return Err(wrong_type(param, "an integer", &other)),
    };
    if let Some(whole) = number.as_i64() {
        return Ok(Some(whole));
    }
    let float = number.as_f64().unwrap_or(f64::INFINITY);
    if float.fract() != 0.0 {
        return Err(wrong_value(param, "must be a whole number", number));
    }
    // 2^63 is a float, 2^63 - 1 is not: the upper bound is exclusive. The cast is exact in this range.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if number.is_f64() && (-LIMIT..LIMIT).contains(&float) {
        return Ok(Some(float as i64));
    }
    Err(wrong_value(
        param,
        "is beyond the signed 64-bit range",
        number,
    ))
}

/// A finite number in `range`. JSON has no NaN, and the reader refuses what a double cannot hold.
pub fn number(
    param: impl Display,
    value: Option<Value>,
    range: RangeInclusive<f64>,
) -> Result<Option<f64>, ServeError> {
    let number = match value {
        None => return Ok(None),
        Some(Value::Number(number)) => number,
        Some(other) => return Err(wrong_type(param, "a number", &other)),
    };
    match number.as_f64().filter(|float| range.contains(float)) {
        Some(float) => Ok(Some(float)),
        None => Err(wrong_value(
            param,
            format_args!("must be between {} and {}", range.start(), range.end()),
            number,
        )),
    }
}

pub fn missing(param: impl Display) -> ServeError {
    let message = format!("'{param}' is required");
    ServeError::invalid(param, "missing_required_parameter", message)
}

pub fn wrong_type(param: impl Display, wanted: &str, got: &Value) -> ServeError {
    let message = format!("'{param}' must be {wanted}, got {}", describe(got));
    ServeError::invalid(param, "invalid_type", message)
}

pub fn wrong_value(param: impl Display, rule: impl Display, got: impl Display) -> ServeError {
    let message = format!("'{param}' {rule}, got {got}");
    ServeError::invalid(param, "invalid_value", message)
}

pub fn unsupported(param: impl Display, what: impl Display) -> ServeError {
    ServeError::invalid(
        param,
        "unsupported_value",
        format!("{what} not supported by this server"),
    )
}

/// A value in a few words: never the whole of a client's text.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => format!("the string {}", excerpt(value)),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
