//! Who is to blame for a configuration that can't be read: the variable or the file, the key, and what it may be.
//! The `config` crate merges all sources before it looks at what they say, so each is looked at again by itself.

use std::path::Path;

use config::{Environment, File, FileFormat, Source};

use super::{Config, DEFAULT_TOML};

/// What starts the name of a variable.
const PREFIX: &str = "CADENCED__";

/// A source of variables out of those of ours in `vars`; empty ones are as good as unset.
pub(super) fn ours(vars: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    vars.into_iter()
        .filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty())
        .collect()
}

pub(super) fn environment(vars: &[(String, String)]) -> Environment {
    Environment::with_prefix("CADENCED")
        .prefix_separator("__")
        .separator("__")
        .try_parsing(true)
        .source(Some(vars.iter().cloned().collect()))
}

/// What is wrong with a variable that is meant for a section and has one underscore where two belong.
pub(super) fn near_miss(name: &str, value: &str) -> Option<String> {
    let rest = name.strip_prefix("CADENCED_")?;
    let (section, _) = rest.split_once("__")?;
    let defaults = toml::from_str::<toml::Table>(DEFAULT_TOML).ok()?;
    let meant = !value.is_empty() && defaults.contains_key(&section.to_lowercase());
    meant.then(|| format!("{name}: two underscores follow CADENCED: {PREFIX}{rest}"))
}

/// The variable, or the file and its key, that `whole` is about, with what is wrong in one line.
pub(super) fn explain(
    whole: &str,
    file: Option<(&Path, &str)>,
    vars: &[(String, String)],
) -> String {
    let by_variable = vars.iter().find_map(|var| {
        let why = fault(environment(std::slice::from_ref(var)))?;
        Some(format!("{}: {why}", var.0))
    });
    let by_key = || {
        let (path, text) = file?;
        single_keys(text).into_iter().find_map(|(key, alone)| {
            let why = fault(File::from_str(&alone, FileFormat::Toml))?;
            Some(format!("{}: {key}: {why}", path.display()))
        })
    };
    by_variable
        .or_else(by_key)
        .unwrap_or_else(|| format!("configuration: {}", one_line(whole)))
}

/// The keys of a file, each with a file that has it alone.
fn single_keys(text: &str) -> Vec<(String, String)> {
    let alone = |name: &str, value: toml::Value| {
        toml::Table::from_iter([(name.to_owned(), value)]).to_string()
    };
    let mut keys = Vec::new();
    for (section, value) in toml::from_str::<toml::Table>(text).unwrap_or_default() {
        let toml::Value::Table(table) = value else {
            keys.push((section.clone(), alone(&section, value)));
            continue;
        };
        for (key, value) in table {
            let table = toml::Table::from_iter([(key.clone(), value)]);
            keys.push((format!("{section}.{key}"), alone(&section, table.into())));
        }
    }
    keys
}

/// Why the defaults with this over them are no configuration; `None` if they are one.
fn fault(source: impl Source + Send + Sync + 'static) -> Option<String> {
    let built = config::Config::builder()
        .add_source(File::from_str(DEFAULT_TOML, FileFormat::Toml))
        .add_source(source)
        .build();
    let built = match built {
        Ok(built) => built,
        Err(e) => return Some(one_line(&e.to_string())),
    };
    let error = built.clone().try_deserialize::<Config>().err()?;
    // TOML's own words tell the choices, where the other crate's name the enum's Rust type.
    let table = built.try_deserialize::<toml::Value>().ok();
    let better = table.and_then(|table| table.try_into::<Config>().err());
    let why = better.map_or_else(|| error.to_string(), |e| e.message().to_owned());
    Some(one_line(&why))
}

/// `message` without its line breaks.
pub(super) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
