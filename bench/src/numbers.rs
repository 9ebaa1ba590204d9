//! What a number among the options may be, where the type allows more. A value that makes no sense is refused before
//! anything is measured, by the option's name.

use clap::builder::RangedU64ValueParser;

/// A count that is not zero.
pub fn at_least_one<T>() -> RangedU64ValueParser<T>
where
    T: TryFrom<u64> + Clone + Send + Sync,
{
    RangedU64ValueParser::new().range(1..)
}

fn number(text: &str, is_one: impl Fn(f64) -> bool, wanted: &str) -> Result<f64, String> {
    let value = text.parse().map_err(|_| "not a number".to_owned())?;
    is_one(value)
        .then_some(value)
        .ok_or_else(|| format!("not {wanted}"))
}

/// A rate, a time or a multiple.
///
/// # Errors
/// For zero and less, and for what is not finite.
pub fn positive(text: &str) -> Result<f64, String> {
    number(text, |x| x > 0.0 && x.is_finite(), "a number above 0")
}

/// A time or a floor that may be nothing.
///
/// # Errors
/// For less than zero, and for what is not finite.
pub fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |x| x >= 0.0 && x.is_finite(), "a number of 0 or more")
}

/// A part of a whole, neither nothing nor all of it.
///
/// # Errors
/// For 0, 1 and what is beyond.
pub fn share(text: &str) -> Result<f64, String> {
    number(text, |x| x > 0.0 && x < 1.0, "between 0 and 1")
}

/// A percentile: the lowest and the highest value are none.
///
/// # Errors
/// For 0, 100 and what is beyond.
pub fn percentile(text: &str) -> Result<f64, String> {
    number(text, |x| x > 0.0 && x < 100.0, "between 0 and 100")
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use crate::Cli;

    /// Options that may be nothing: seeds, times beside a measurement, floors, and sizes that an engine checks itself.
    const MAY_BE_ZERO: [&str; 16] = [
        "seed",
        "warm_up_s",
        "cool_down_s",
        "temperature",
        "in_flight_min",
        "sleep_ms",
        "token_ms",
        "queue",
        "levels",
        "step_us",
        "skip",
        "own",
        "cells",
        "chunk",
        "context",
        "threads",
    ];

    fn refuses(arg: &clap::Arg, value: &str) -> bool {
        let command = clap::Command::new("x")
            .no_binary_name(true)
            .arg(arg.clone());
        let option = format!("--{}={value}", arg.get_long().unwrap());
        let parsed = command.try_get_matches_from([option]);
        parsed
            .is_err_and(|e| e.kind() == ErrorKind::ValueValidation && e.to_string().contains("--"))
    }

    /// `--percentile 100`, `--requests 0`, `--seeds 0` and others were accepted.
    #[test]
    fn no_option_takes_a_zero_that_makes_no_sense() {
        let types = [
            TypeId::of::<f64>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
        ];
        let mut seen = 0;
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments().filter(|a| a.get_long().is_some()) {
                let of = arg.get_value_parser().type_id();
                let name = format!("{} --{}", command.get_name(), arg.get_long().unwrap());
                if !types.iter().any(|t| of == *t) {
                    continue;
                }
                seen += 1;
                let may = MAY_BE_ZERO.contains(&arg.get_id().as_str());
                assert!(may || refuses(arg, "0"), "{name} takes 0");
                if of == TypeId::of::<f64>() {
                    assert!(
                        refuses(arg, "NaN") && refuses(arg, "-1"),
                        "{name} takes NaN or -1"
                    );
                }
                if arg.get_id() == "percentile" {
                    assert!(refuses(arg, "100"), "{name} takes 100");
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }
}
