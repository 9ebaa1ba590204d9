//! Reads a request body into its top-level fields, within bounds.
//!
//! A plain `serde_json::Value` of the whole body costs up to 16 bytes of memory for a byte received (`[0,0,0,…`), also
//! for fields nobody reads. Here an unknown field is checked and thrown away as it is read, and the known ones share a
//! budget of JSON values. Nesting is held by serde_json's recursion limit of 128 in both cases. (`IgnoredAny` would not
//! do: serde_json skips it without a depth limit, without decoding strings.)

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{ServeError, excerpt};

/// A JSON object of which only non-null known fields are kept. A field given twice: the last one counts, as in Python.
pub type Object = Map<String, Value>;

/// Parses `body`, an object, keeping the fields in `known`. `max_values` bounds how many JSON values are built.
pub fn read_object(body: &[u8], known: &[&str], max_values: usize) -> Result<Object, ServeError> {
    // Before parsing, so that no error text can repeat bytes that are not UTF-8.
    let text = std::str::from_utf8(body).map_err(|error| {
        ServeError::invalid_body(format!(
            "the body is not valid UTF-8: bad byte at offset {}",
            error.valid_up_to()
        ))
    })?;
    let mut reading = None;
    let mut left = max_values;
    let mut parser = serde_json::Deserializer::from_str(text);
    let top = Top {
        known,
        reading: &mut reading,
        left: &mut left,
    };
    let parsed = serde::Deserializer::deserialize_map(&mut parser, top)
        .and_then(|object| parser.end().map(|()| object));
    parsed.map_err(|error| explain(&error, reading.as_deref(), left == 0))
}

/// Parses a text of its own, such as a tool call's arguments, if it is one JSON object within the budget that is left.
pub fn read_embedded_object(text: &str, left: &mut usize) -> Option<Value> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Tree { left, keep: true }.deserialize(&mut parser).ok()?;
    (parser.end().is_ok() && value.is_object()).then_some(value)
}

/// `reading` is the top-level field that was being read. serde_json's own words are used only for syntax errors, whose
/// texts are fixed; its type errors repeat the client's value whole.
fn explain(error: &serde_json::Error, reading: Option<&str>, exhausted: bool) -> ServeError {
    let message = if error.is_data() && exhausted {
        "the body holds too many JSON values".to_owned()
    } else if error.is_data() {
        "the body must be a JSON object".to_owned()
    } else {
        let detail = error.to_string();
        match detail.strip_prefix("recursion limit exceeded") {
            Some(place) => format!("the body is nested too deeply{place}"),
            None => format!("the body is not valid JSON: {detail}"),
        }
    };
    // An unfinished body is not the fault of the field that it happens to end in.
    match reading.filter(|_| !error.is_eof()) {
        Some(field) => ServeError::invalid(field, "invalid_json", message),
        None => ServeError::invalid_body(message),
    }
}

struct Top<'a> {
    known: &'a [&'a str],
    reading: &'a mut Option<String>,
    left: &'a mut usize,
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Object;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = Object::new();
        while let Some(key) = map.next_key::<String>()? {
            let keep = self.known.contains(&key.as_str());
            *self.reading = Some(if keep { key.clone() } else { excerpt(&key) });
            let value = map.next_value_seed(Tree {
                left: self.left,
                keep,
            })?;
            *self.reading = None;
            if keep {
                object.insert(key, value);
            }
        }
        Ok(object)
    }
}

/// Reads any JSON value: builds it out of the budget, or (`keep` false) only checks it and returns null.
struct Tree<'a> {
    left: &'a mut usize,
    keep: bool,
}

impl Tree<'_> {
    fn leaf<E: serde::de::Error>(self, value: impl Into<Value>) -> Result<Value, E> {
        if self.keep {
            self.spend()?;
            return Ok(value.into());
        }
        Ok(Value::Null)
    }

    fn spend<E: serde::de::Error>(self) -> Result<(), E> {
        *self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| E::custom("too many values"))?;
        Ok(())
    }

    fn again(&mut self) -> Tree<'_> {
        Tree {
            left: self.left,
            keep: self.keep,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.leaf(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.leaf(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.leaf(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.leaf(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.leaf(number),
            None => Err(E::custom("number out of range")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        if self.keep {
            self.leaf(value)
        } else {
            Ok(Value::Null)
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.again())? {
            if self.keep {
                items.push(item);
            }
        }
        self.leaf(items)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Object::new();
        if self.keep {
            while let Some(key) = map.next_key::<String>()? {
                object.insert(key, map.next_value_seed(self.again())?);
            }
        } else {
            while map.next_key::<IgnoredAny>()?.is_some() {
                map.next_value_seed(self.again())?;
            }
        }
        self.leaf(object)
    }
}
