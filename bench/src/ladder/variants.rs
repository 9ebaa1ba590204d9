//! Variants of one configuration: each differs from it in one key, so that what is measured of it is that key's doing.

use std::path::Path;

use anyhow::Result;

use super::plan::Step;
use crate::report::DEFAULT;
use crate::serving::Serving;

/// A key of the configuration and the values that it is tried with.
#[derive(Clone, PartialEq, Debug)]
pub struct Knob {
    key: String,
    values: Vec<String>,
}

/// Of `section.key=value,value`. A variant's name is a file's as well, hence plain characters.
///
/// # Errors
/// When it is not that.
pub fn knob(text: &str) -> Result<Knob, String> {
    let is_plain = |s: &str| {
        !s.is_empty()
            && s.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
    };
    let (key, values) = text.split_once('=').ok_or("not section.key=value,value")?;
    let values: Vec<String> = values.split(',').map(str::to_owned).collect();
    let odd = std::iter::once(key)
        .chain(values.iter().map(String::as_str))
        .find(|s| !is_plain(s));
    match odd {
        Some(odd) => Err(format!("{odd:?} can't name a file")),
        None => Ok(Knob {
            key: key.to_owned(),
            values,
        }),
    }
}

/// The configuration in `file` as it is, then each of its variants. A value that it has already makes none.
///
/// # Errors
/// Names the key or the file at fault.
pub fn steps(serving: &Serving, file: &Path, knobs: &[Knob]) -> Result<Vec<Step>> {
    let default = serving.config(file, &[])?;
    let mut steps = vec![Step::read(DEFAULT, file, Vec::new())?];
    for knob in knobs {
        for value in &knob.values {
            let setting = (knob.key.clone(), value.clone());
            if serving.config(file, std::slice::from_ref(&setting))? != default {
                let name = format!("{}={value}", knob.key);
                steps.push(Step::read(&name, file, vec![setting])?);
            }
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::sweep::tests::serving;
    use crate::twin::rung::Rung;

    #[test]
    fn each_variant_differs_in_one_key_and_what_changes_nothing_is_none() {
        let knobs = [
            "scheduler.prefill_budget=16,256,496",
            "scheduler.order=decode_first,prefill_first",
            "scheduler.max_running=16,1",
        ]
        .map(|text| knob(text).unwrap());
        let file = &Rung::files()[3];
        let steps = steps(&serving(), file, &knobs).unwrap();
        let names: Vec<&str> = steps.iter().map(|s| s.rung.as_str()).collect();
        assert_eq!(
            names,
            [
                "default",
                "scheduler.prefill_budget=16",
                "scheduler.prefill_budget=496",
                "scheduler.order=prefill_first",
                "scheduler.max_running=1",
            ]
        );
        assert_eq!(steps[0].settings, []);
        let set = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        assert_eq!(steps[2].settings, set("scheduler.prefill_budget", "496"));
        assert!(
            steps
                .iter()
                .all(|s| s.file == *file && s.config == steps[0].config)
        );
    }

    #[test]
    fn what_is_no_setting_is_refused_before_anything_is_measured() {
        let file = &Rung::files()[3];
        let refused = |text: &str| {
            let knob = knob(text).unwrap();
            format!("{:#}", steps(&serving(), file, &[knob]).unwrap_err())
        };
        assert!(refused("scheduler.budget=1").contains("budget"));
        assert!(refused("scheduler.order=random").contains("ORDER"));
        for text in ["scheduler.order", "=1", "a.b=", "a.b=1,,2", "a.b=x/y"] {
            assert!(knob(text).is_err(), "{text}");
        }
    }
}
